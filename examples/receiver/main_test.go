package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/signature"
)

func TestTheReceiverTakesWhatIsSignedAndNothingElse(t *testing.T) {
	t.Parallel()
	key, other := parseKey(t, "sample-key-do-not-use-elsewhere-0001"), parseKey(t, "sample-key-do-not-use-elsewhere-0002")
	const body = `{"amount":12.340,"note":"paid 🚚"}`

	for _, c := range []struct {
		name   string
		key    signature.Key
		at     time.Time
		sent   string
		status int
		kept   string
	}{
		{"signed", key, time.Now(), body, http.StatusNoContent, "event-1 " + body + "\n"},
		{"signed with another key", other, time.Now(), body, http.StatusUnauthorized, ""},
		{"altered on the way", key, time.Now(), strings.Replace(body, "12", "99", 1), http.StatusUnauthorized, ""},
		{"six minutes old", key, time.Now().Add(-6 * time.Minute), body, http.StatusUnauthorized, ""},
		{"longer than the receiver reads", key, time.Now(), strings.Repeat("a", maxBody+1), http.StatusBadRequest, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var kept strings.Builder
			handler := receive(&signature.Verifier{Keys: []signature.Key{key}}, &kept)
			for range 2 { // the second time is a duplicate, and no error
				request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(c.sent))
				request.Header.Set(signature.HeaderID, "event-1")
				request.Header.Set(signature.HeaderTimestamp, signature.Timestamp(c.at))
				request.Header.Set(signature.HeaderSignature, signature.Sign("event-1", c.at, []byte(body), c.key))
				response := httptest.NewRecorder()
				handler.ServeHTTP(response, request)
				if response.Code != c.status {
					t.Errorf("status: got %d %s, want %d", response.Code, response.Body, c.status)
				}
			}
			if kept.String() != c.kept {
				t.Errorf("kept: got %q, want %q", kept.String(), c.kept)
			}
		})
	}
}

func parseKey(t *testing.T, secret string) signature.Key {
	t.Helper()
	key, err := signature.ParseKey([]byte(secret))
	if err != nil {
		t.Fatalf("parse the key: %v", err)
	}
	return key
}

package access

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// apiServer answers reviews as it is told to, without a network, and keeps what it was asked.
type apiServer struct {
	answer func(asked int, r *http.Request) (status int, body string) // asked counts from 1

	mu    sync.Mutex
	specs []map[string]any
}

func (s *apiServer) RoundTrip(r *http.Request) (*http.Response, error) {
	var review struct{ Spec map[string]any }
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		return nil, fmt.Errorf("read the review: %w", err)
	}
	s.mu.Lock()
	s.specs = append(s.specs, review.Spec)
	asked := len(s.specs)
	s.mu.Unlock()
	status, body := s.answer(asked, r)
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	if status == 0 {
		return nil, fmt.Errorf("dial: %s", body)
	}
	return &http.Response{
		StatusCode: status, Status: fmt.Sprint(status), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)),
	}, nil
}

func (s *apiServer) asked() []map[string]any {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.specs
}

const timeout = 3 * time.Second

func (s *apiServer) client(t *testing.T) *API {
	t.Helper()
	api, err := New(&rest.Config{Host: "http://api.invalid", Transport: s}, timeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	return api
}

// says answers reviews of both kinds by their status, and others not at all.
func says(token, access string) func(int, *http.Request) (int, string) {
	return func(_ int, r *http.Request) (int, string) {
		if strings.HasSuffix(r.URL.Path, "/apis/authentication.k8s.io/v1/tokenreviews") {
			return http.StatusCreated, tokenReview(token)
		}
		return http.StatusCreated, accessReview(access)
	}
}

func tokenReview(status string) string {
	return `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":` + status + `}`
}

func accessReview(status string) string {
	return `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":` + status + `}`
}

func failure(code int, reason, details string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"it quotes secret-token","reason":%q,"code":%d,"details":{%s}}`, reason, code, details)
}

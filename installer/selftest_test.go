package installer

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/signature"
)

const testKey, testToken = "sample-key-do-not-use-elsewhere-0001", "sample-token"

// ingestDouble accepts events as ingest does, and delivers them at once, signed with its key.
type ingestDouble struct {
	*httptest.Server

	receiver string // URL
	key      signature.Key
	early    int // posts that find no endpoint yet

	mutex     sync.Mutex
	posts     int
	delivered map[string]bool
	refused   int
	senders   sync.WaitGroup
}

func startIngest(t *testing.T, receiver, key string, early int) *ingestDouble {
	t.Helper()
	parsed, err := signature.ParseKey([]byte(key))
	if err != nil {
		t.Fatal(err)
	}
	d := &ingestDouble{receiver: receiver, key: parsed, early: early, delivered: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /api/v1/events", d.accept)
	mux.HandleFunc("GET /api/v1/events/{id}", d.read)
	d.Server = httptest.NewServer(mux)
	t.Cleanup(func() { d.Close(); d.senders.Wait() })
	return d
}

func (d *ingestDouble) accept(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer "+testToken {
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	d.mutex.Lock()
	d.posts++
	id, matched := fmt.Sprintf("event-%d", d.posts), 1
	if d.posts <= d.early {
		matched = 0
	}
	d.mutex.Unlock()
	if matched > 0 {
		d.senders.Go(func() { d.send(context.WithoutCancel(r.Context()), id) })
	}
	w.WriteHeader(http.StatusAccepted)
	_, _ = fmt.Fprintf(w, `{"id": %q, "matched": %d}`, id, matched)
}

func (d *ingestDouble) send(ctx context.Context, id string) {
	body, at := []byte(`{"hello": "there"}`), time.Now()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.receiver, bytes.NewReader(body))
	if err != nil {
		return
	}
	request.Header.Set(signature.HeaderID, id)
	request.Header.Set(signature.HeaderTimestamp, signature.Timestamp(at))
	request.Header.Set(signature.HeaderSignature, signature.Sign(id, at, body, d.key))
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err == nil {
		_ = response.Body.Close()
		if response.StatusCode == http.StatusNoContent {
			d.delivered[id] = true
			return
		}
	}
	d.refused++
}

func (d *ingestDouble) read(w http.ResponseWriter, r *http.Request) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	state := "pending"
	if d.delivered[r.PathValue("id")] {
		state = "delivered"
	}
	_, _ = fmt.Fprintf(w, `{"deliveries": [{"state": %q}]}`, state)
}

func TestTheSelfTestSeesAnEventAllTheWay(t *testing.T) {
	t.Parallel()
	test := selfTest(t)
	ingest := startIngest(t, "http://"+test.Address, testKey, 1)
	test.IngestURL = ingest.URL
	if err := test.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	ingest.mutex.Lock()
	defer ingest.mutex.Unlock()
	if ingest.posts != 2 || !ingest.delivered["event-2"] {
		t.Errorf("got %d posts, delivered %v; want a second post after one that nobody matched, and its delivery", ingest.posts, ingest.delivered)
	}
}

func TestTheSelfTestSaysHowFarTheEventCame(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		alter func(*SelfTest, *ingestDouble)
		want  string
	}{
		{"no endpoint matches", func(_ *SelfTest, d *ingestDouble) { d.early = 1 << 30 }, errNobody.Error()},
		{"signed with another key", func(_ *SelfTest, d *ingestDouble) { d.key, _ = signature.ParseKey([]byte(testKey + "-another")) }, "did not arrive"},
		{"the token is refused", func(s *SelfTest, _ *ingestDouble) { s.TokenFile = s.KeyFile }, "401"},
		{"nobody delivers", func(_ *SelfTest, d *ingestDouble) { d.receiver = "http://127.0.0.1:1" }, "did not arrive"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			test := selfTest(t)
			ingest := startIngest(t, "http://"+test.Address, testKey, 0)
			test.IngestURL, test.Timeout = ingest.URL, 2*time.Second
			c.alter(&test, ingest)
			err := test.Run(t.Context())
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), testKey) {
				t.Errorf("the error shows the key: %v", err)
			}
		})
	}
}

func selfTest(t *testing.T) SelfTest {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	write := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return SelfTest{
		TokenFile: write("token", testToken+"\n"), KeyFile: write("key", testKey+"\n"), Address: address,
		EventType: "postrider.selftest", Timeout: 30 * time.Second, Client: client, Logger: slog.New(slog.DiscardHandler),
	}
}

package dispatcher

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider/store"
)

// D10: whatever a receiver answers is recorded, bounded and harmless.
func TestHostileResponsesAreKeptBoundedAndClean(t *testing.T) {
	t.Parallel()
	answer := func(head string, body []byte) string {
		return "http://" + listen(t, afterRequest(func(conn net.Conn) {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\n"+head+"\r\n")
			_, _ = conn.Write(body)
		}))
	}
	gzipped := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff, 0xcb, 0x48, 0xcd, 0xc9, 0xc9, 7, 0}
	for _, test := range []struct {
		name string
		url  string
		want string // "": not compared
	}{
		{"plain", answer("Content-Length: 5\r\n", []byte("hello")), "hello"},
		{"gzip bytes are not unpacked", answer("Content-Encoding: gzip\r\n", gzipped), ""},
		{"NUL bytes", answer("", []byte("a\x00b\x00")), "a\uFFFDb\uFFFD"},
		{"invalid UTF-8", answer("", []byte("a\xff\xfeb\xc3")), "a\uFFFDb\uFFFD"},
		{"4 KiB of invalid UTF-8", answer("", bytes.Repeat([]byte{0xff, 'a'}, 4<<10)), ""},
		{"a rune across the bound", answer("", []byte(strings.Repeat("x", keptResponse-1)+"é and more")), strings.Repeat("x", keptResponse-1)},
		{"headers that are not ASCII", answer("X-Name: J\xfcrgen\r\nX-\xe9: 1\r\n", []byte("ok")), ""},
		{"a wrong content type", answer("Content-Type: image/png; charset=\x01\r\n", []byte("ok")), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := attemptOnce(t, testSpec(test.url), outside{})
			if len(got.Response) > keptResponse || !utf8.Valid(got.Response) || bytes.IndexByte(got.Response, 0) >= 0 {
				t.Errorf("response: got %d bytes %q, want valid UTF-8 without NUL of %d at most", len(got.Response), got.Response, keptResponse)
			}
			if test.want != "" && (string(got.Response) != test.want || got.Verdict != store.Delivered) {
				t.Errorf("got %s with %q, want delivered with %q", got.Verdict, got.Response, test.want)
			}
			if got.Verdict != store.Delivered && got.Reason != string(InvalidResponse) {
				t.Errorf("got %s %s %q, want delivered, or a retry since it is not HTTP", got.Verdict, got.Reason, got.Message)
			}
		})
	}
}

// 50 MB are delivered at the price of the first 64 KiB.
func TestLongResponseIsReadToABound(t *testing.T) {
	t.Parallel()
	written := make(chan int64, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		n, _ := io.Copy(w, io.LimitReader(endless{}, 50<<20))
		written <- n
	}))
	t.Cleanup(server.Close)
	got := attemptOnce(t, testSpec(server.URL), outside{})
	if got.Verdict != store.Delivered || len(got.Response) != keptResponse {
		t.Errorf("got %s with %d bytes, want delivered with %d", got.Verdict, len(got.Response), keptResponse)
	}
	if n := <-written; n > 20<<20 {
		t.Errorf("the receiver could write %d bytes, want the connection closed long before 50 MB", n)
	}
	counted := &counter{}
	b := newBench(t, outside{transport: receiver(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Body: io.NopCloser(io.TeeReader(endless{}, counted))}, nil
	})})
	if got := b.attempt(testSpec("http://127.0.0.1:1")); got.Verdict != store.Delivered || counted.n != readResponse {
		t.Errorf("got %s after %d bytes, want delivered after %d", got.Verdict, counted.n, readResponse)
	}
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	return len(p), nil
}

type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) {
	c.n += len(p)
	return len(p), nil
}

// 200 deliveries to one host open a handful of connections, which are used again for the next ones.
func TestDeliveriesToOneHostShareAHandfulOfConnections(t *testing.T) {
	t.Parallel()
	for _, protocol := range []int{1, 2} {
		var opened atomic.Int64
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			_, _ = io.WriteString(w, strings.Repeat("an answer that is not short. ", 300))
		}))
		server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				opened.Add(1)
			}
		}
		server.EnableHTTP2 = protocol == 2
		server.StartTLS()
		t.Cleanup(server.Close)

		m := newMemory()
		endpoint := testEndpoint(t, 1)
		endpoint.Spec.URL = server.URL
		endpoint = m.apply(endpoint)
		for range 200 {
			m.add(endpoint)
		}
		world := outside{roots: rootsOf(server)}
		d := start(t, Config{Senders: 16}, testDependencies(t, m), world)
		waitFor(t, "200 deliveries", func() bool { return m.pending() == 0 })
		first := opened.Load()
		for range 50 {
			m.add(endpoint)
		}
		waitFor(t, "50 more", func() bool { return m.pending() == 0 })
		d.end()
		if got := len(m.recorded()); got != 250 {
			t.Errorf("attempts over HTTP/%d: got %d, want 250", protocol, got)
		}
		// Half of the senders may be busy with one endpoint. More connections are made in the first moments, for requests
		// that then find a connection free before their own is there: on a busy machine handshakes are slow.
		if first > 50 {
			t.Errorf("connections over HTTP/%d: got %d, want 8 or some more", protocol, first)
		}
		if more := opened.Load() - first; more > 8 {
			t.Errorf("connections over HTTP/%d: got %d more for the next deliveries, want those used that are there", protocol, more)
		}
	}
}

// waitFor polls until a condition holds.
func waitFor(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute for %s", what)
		}
	}
}

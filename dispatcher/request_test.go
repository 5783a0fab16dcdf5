package dispatcher

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
)

// seen is a request as it came in.
type seen struct {
	header        http.Header
	host          string
	uri           string
	body          []byte
	contentLength int64
	protocol      int
}

// record serves 200 and hands over each request.
func recordRequests(into chan<- seen) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		into <- seen{r.Header, r.Host, r.RequestURI, body, r.ContentLength, r.ProtoMajor}
		w.WriteHeader(http.StatusNoContent)
	})
}

// The requests verify with the official Standard Webhooks library, over HTTP/1.1 and HTTP/2, whatever the body.
func TestRequestsVerifyWithTheOfficialLibrary(t *testing.T) {
	t.Parallel()
	official, err := standardwebhooks.NewWebhook(testSecret)
	if err != nil {
		t.Fatal(err)
	}
	requests := make(chan seen, 1)
	for _, protocol := range []int{1, 2} {
		server := httptest.NewUnstartedServer(recordRequests(requests))
		server.EnableHTTP2 = protocol == 2
		server.StartTLS()
		t.Cleanup(server.Close)
		world := outside{roots: rootsOf(server)}
		for name, body := range map[string][]byte{
			"JSON": []byte(`{"test": 2432232314}`), "emoji": []byte(`{"mood":"🦊"}`), "empty": {}, "binary": {0, 1, 2, 0xff, 0xfe},
			"256 KiB": bytes.Repeat([]byte("0123456789abcdef"), 16<<10),
		} {
			got := attemptOnce(t, testSpec(server.URL), world, func(c *store.Claim) { c.Body = body })
			if got.Verdict != store.Delivered {
				t.Fatalf("%s body over HTTP/%d: got %s %s %q, want delivered", name, protocol, got.Verdict, got.Reason, got.Message)
			}
			request := <-requests
			if err := official.Verify(request.body, request.header); err != nil {
				t.Errorf("%s body over HTTP/%d: the official library says %v", name, protocol, err)
			}
			if request.protocol != protocol || !bytes.Equal(request.body, body) || request.contentLength != int64(len(body)) {
				t.Errorf("%s body over HTTP/%d: got HTTP/%d, %d bytes, content length %d, want %d bytes unchanged",
					name, protocol, request.protocol, len(request.body), request.contentLength, len(body))
			}
		}
	}
}

func TestRequestCarriesOurHeaders(t *testing.T) {
	t.Parallel()
	requests := make(chan seen, 1)
	server := httptest.NewServer(recordRequests(requests))
	t.Cleanup(server.Close)
	const traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	event := uuid.Must(uuid.NewV7())
	spec := testSpec(server.URL + "/in?x=1&y=2")
	// S4: user headers that differ from ours in case only, or would change how the request is framed, never get through.
	forbidden := []string{
		"Webhook-Signature", "webhook-ID", "WEBHOOK-TIMESTAMP", "HOST", "content-length", "Transfer-Encoding", "connection",
		"Content-Type", "user-agent", "TRACEPARENT", "Postrider-Attempt", "postrider-anything", "Accept-Encoding", "Expect",
		"Proxy-Authorization", "Upgrade", "Te", "Trailer", "Keep-Alive",
	}
	headers := []store.Header{{Name: "X-Team", Value: "billing"}, {Name: "authorization", Value: "Bearer abc"}, {Name: "Idempotency-Key", Value: "k"}}
	for _, name := range forbidden {
		headers = append(headers, store.Header{Name: name, Value: "theirs"})
	}
	headers = append(headers, store.Header{Name: "X-Broken", Value: "a\r\nX-Injected: b"}, store.Header{Name: "X Broken", Value: "a"})
	spec.Headers = sealedHeaders(t, headers...)
	got := attemptOnce(t, spec, outside{}, func(c *store.Claim) {
		c.EventID, c.Attempt, c.EventType, c.ContentType, c.Traceparent = event, 7, "invoice.paid", "application/cloudevents+json; charset=utf-8", traceparent
		c.Headers = map[string]string{"Ce-Source": "/billing", "webhook-id": "theirs", "x-team": "the endpoint's wins"}
	})
	if got.Verdict != store.Delivered || got.Status != 204 || got.Reason != "" || got.Response != nil {
		t.Fatalf("got %+v, want delivered with 204", got)
	}
	request := <-requests
	want := map[string]string{
		"Content-Type": "application/cloudevents+json; charset=utf-8", "User-Agent": "Postrider/test", "Webhook-Id": event.String(),
		"Postrider-Event-Type": "invoice.paid", "Postrider-Attempt": "7", "Traceparent": traceparent, "Content-Length": "7",
		"X-Team": "billing", "Authorization": "Bearer abc", "Idempotency-Key": "k", "Ce-Source": "/billing",
	}
	for name, value := range want {
		if values := request.header.Values(name); len(values) != 1 || values[0] != value {
			t.Errorf("%s: got %q, want %q once", name, values, value)
		}
	}
	if at, err := strconv.ParseInt(request.header.Get("Webhook-Timestamp"), 10, 64); err != nil || time.Since(time.Unix(at, 0)).Abs() > time.Minute {
		t.Errorf("Webhook-Timestamp: got %q, want now in seconds", request.header.Get("Webhook-Timestamp"))
	}
	if request.uri != "/in?x=1&y=2" || "http://"+request.host != server.URL {
		t.Errorf("got %s at host %s, want /in?x=1&y=2 at %s", request.uri, request.host, server.URL)
	}
	for name := range request.header {
		if _, known := want[name]; !known && name != "Webhook-Timestamp" && name != "Webhook-Signature" {
			t.Errorf("header %s: %q, want no such header", name, request.header[name])
		}
	}
}

// A body that net/http does not know to be in memory goes out in a packet of its own, after the headers: two system calls
// here and two there for each delivery.
func TestHeadersAndBodyAreSentTogether(t *testing.T) {
	t.Parallel()
	row := testEndpoint(t, 1)
	e := newEndpoints(Config{}.WithDefaults(), testDependencies(t, newMemory())).prepare(&row)
	claim := &store.Claim{EventID: uuid.Must(uuid.NewV7()), Body: []byte(`{"amount":1}`)}
	var sent writes
	if err := newRequest(t.Context(), e, claim, "Postrider/test", time.Now(), nil).Write(&sent); err != nil {
		t.Fatal(err)
	}
	if len(sent) != 1 || !bytes.HasSuffix(sent[0], claim.Body) {
		t.Errorf("sent in %d parts: %q; want one that ends in the body", len(sent), sent)
	}
}

type writes [][]byte

func (w *writes) Write(p []byte) (int, error) {
	*w = append(*w, bytes.Clone(p))
	return len(p), nil
}

// Signature: right accepted, altered body refused, six-minute-old refused, the previous key accepted inside its window
// and absent after it.
func TestSignatureOfARequest(t *testing.T) {
	t.Parallel()
	const previous = "the previous key, of no fewer than 24 bytes"
	key := func(secret string) signature.Key {
		k, err := signature.ParseKey([]byte(secret))
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	row := testEndpoint(t, 1)
	at := time.Now()
	row.Keys = append(row.Keys, sealKey(t, row.PublicID, previous, at.Add(time.Hour)))
	e := newEndpoints(Config{}.WithDefaults(), testDependencies(t, newMemory())).prepare(&row)
	claim := &store.Claim{EventID: uuid.Must(uuid.NewV7()), Body: []byte(`{"amount":1}`)}
	sign := func(at time.Time) http.Header {
		keys, err := e.signingKeys(nil, at)
		if err != nil {
			t.Fatal(err)
		}
		return newRequest(t.Context(), e, claim, "Postrider/test", at, keys).Header
	}
	verify := func(secret string, at time.Time, h http.Header, body string) error {
		v := signature.Verifier{Keys: []signature.Key{key(secret)}, Now: func() time.Time { return at }}
		return v.Verify(h, []byte(body))
	}
	now := sign(at)
	for _, test := range []struct {
		name string
		err  error
		ok   bool
	}{
		{"right", verify(testSecret, at, now, `{"amount":1}`), true},
		{"altered body", verify(testSecret, at, now, `{"amount":9}`), false},
		{"six minutes old", verify(testSecret, at.Add(6*time.Minute), now, `{"amount":1}`), false},
		{"another key", verify("a key that nobody signed with, ever", at, now, `{"amount":1}`), false},
		{"previous key inside its window", verify(previous, at, now, `{"amount":1}`), true},
		{"previous key after its window", verify(previous, at.Add(time.Hour), sign(at.Add(time.Hour)), `{"amount":1}`), false},
		{"present key after the other's window", verify(testSecret, at.Add(time.Hour), sign(at.Add(time.Hour)), `{"amount":1}`), true},
	} {
		if (test.err == nil) != test.ok {
			t.Errorf("%s: got %v, want accepted %v", test.name, test.err, test.ok)
		}
	}
	if n := len(strings.Fields(now.Get(signature.HeaderSignature))); n != 2 {
		t.Errorf("signatures inside the window: got %d, want 2", n)
	}
	if n := len(strings.Fields(sign(at.Add(time.Hour)).Get(signature.HeaderSignature))); n != 1 {
		t.Errorf("signatures after the window: got %d, want 1", n)
	}
}

func TestOurHeadersAreSpeltAsHTTPKeepsThem(t *testing.T) {
	t.Parallel()
	for _, name := range []string{headerID, headerTimestamp, headerSignature, headerEventType, headerAttempt, headerTraceparent} {
		if canonical := textproto.CanonicalMIMEHeaderKey(name); canonical != name {
			t.Errorf("header %q: want %q", name, canonical)
		}
	}
	for name := range reservedHeaders {
		if canonical := textproto.CanonicalMIMEHeaderKey(name); canonical != name {
			t.Errorf("reserved header %q: want %q", name, canonical)
		}
	}
}

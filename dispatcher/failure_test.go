package dispatcher

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/http2"

	"github.com/postrider/postrider/store"
)

const (
	secretQuery = "?token=do-not-tell-this-query"
	secretValue = "do-not-tell-this-value"
)

// D3: every way in which a receiver fails to answer is told from the others, and retried.
func TestFailuresOfTheTransportAreToldApart(t *testing.T) {
	t.Parallel()
	ca, stranger := newAuthority(t), newAuthority(t)
	world := outside{roots: ca.pool, resolver: nameserver(t, func(name string) ([]netip.Addr, dnsmessage.RCode) {
		switch {
		case strings.HasPrefix(name, "nowhere"):
			return nil, dnsmessage.RCodeNameError
		case strings.HasPrefix(name, "private"):
			return []netip.Addr{netip.MustParseAddr("10.1.2.3")}, dnsmessage.RCodeSuccess
		}
		return nil, dnsmessage.RCodeServerFailure
	})}
	expired := ca.config(t)
	expired.Certificates = []tls.Certificate{ca.issue(t, "127.0.0.1", time.Now().Add(-time.Minute))}
	otherName := ca.config(t)
	otherName.Certificates = []tls.Certificate{ca.issue(t, "other.example", time.Now().Add(time.Hour))}
	oldTLS := ca.config(t)
	oldTLS.MinVersion, oldTLS.MaxVersion = tls.VersionTLS11, tls.VersionTLS11
	answer := func(text string) string { return listen(t, afterRequest(reply(text))) }

	for _, test := range []struct {
		name string
		url  string
		want Reason
	}{
		{"the name does not exist", "https://nowhere.example/hook", DNSNotFound},
		{"the name cannot be looked up", "https://broken.example/hook", DNSFailure},
		{"the name is a private address", "https://private.example/hook", DestinationNotAllowed},
		{"a private address", "https://10.1.2.3/hook", DestinationNotAllowed},
		{"nobody listens", "http://" + closedPort(t) + "/hook", ConnectionRefused},
		{"reset after the request", "http://" + listen(t, afterRequest(reset)) + "/hook", ConnectionReset},
		{"closed after the request", "http://" + listen(t, afterRequest(func(net.Conn) {})) + "/hook", ConnectionClosed},
		{"the body is cut", "http://" + answer("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc") + "/hook", TruncatedResponse},
		{"a chunked body is cut", "http://" + answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabc") + "/hook", TruncatedResponse},
		{"the head is cut", "http://" + answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n") + "/hook", TruncatedResponse},
		{"the head is cut in a line", "http://" + answer("HTTP/1.1 200 OK\r\nContent-Le") + "/hook", InvalidResponse},
		{"not HTTP", "http://" + answer("SSH-2.0-OpenSSH_9.9\r\n") + "/hook", InvalidResponse},
		{"headers without end", "http://" + answer("HTTP/1.1 200 OK\r\nX: "+strings.Repeat("y", 100<<10)+"\r\n\r\n") + "/hook", InvalidResponse},
		{"a header with a line break", "http://" + answer("HTTP/1.1 200 OK\r\nX: y\n z\r\nno colon\r\n\r\n") + "/hook", InvalidResponse},
		{"a certificate of a stranger", "https://" + listen(t, overTLS(stranger.config(t), func(net.Conn) {})) + "/hook", TLSFailure},
		{"a certificate that expired", "https://" + listen(t, overTLS(expired, func(net.Conn) {})) + "/hook", TLSFailure},
		{"a certificate of another name", "https://" + listen(t, overTLS(otherName, func(net.Conn) {})) + "/hook", TLSFailure},
		{"TLS 1.1", "https://" + listen(t, overTLS(oldTLS, func(net.Conn) {})) + "/hook", TLSFailure},
		{"no TLS", "https://" + listen(t, reply("HTTP/1.1 400 Bad Request\r\n\r\n")) + "/hook", TLSFailure},
		{"HTTP/2 GOAWAY", "https://" + listen(t, overTLS(ca.config(t, "h2"), speakHTTP2(func(f *http2.Framer, _ uint32) {
			_ = f.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, []byte("calm down"))
		}))) + "/hook", GoAway},
		{"HTTP/2 GOAWAY after the request was taken", "https://" + listen(t, overTLS(ca.config(t, "h2"), speakHTTP2(func(f *http2.Framer, stream uint32) {
			_ = f.WriteGoAway(stream, http2.ErrCodeInternal, nil)
		}))) + "/hook", GoAway},
		{"HTTP/2 stream reset", "https://" + listen(t, overTLS(ca.config(t, "h2"), speakHTTP2(func(f *http2.Framer, stream uint32) {
			_ = f.WriteRSTStream(stream, http2.ErrCodeInternal)
		}))) + "/hook", ConnectionReset},
		{"HTTP/2 connection closed", "https://" + listen(t, overTLS(ca.config(t, "h2"), speakHTTP2(func(*http2.Framer, uint32) {}))) + "/hook", TruncatedResponse},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			spec := testSpec(test.url + secretQuery)
			spec.Headers = sealedHeaders(t, store.Header{Name: "X-Secret", Value: secretValue})
			got := attemptOnce(t, spec, world)
			if got.Reason != string(test.want) || got.Verdict != store.Retry || !got.Failing || got.Unsent {
				t.Errorf("got %s %s (failing %v, unsent %v), want %s %s; message %q", got.Verdict, got.Reason, got.Failing, got.Unsent, store.Retry, test.want, got.Message)
			}
			if got.Message == "" || strings.Contains(got.Message, "do-not-tell") || strings.Contains(got.Message, "/hook") {
				t.Errorf("message: got %q, want words without the path, the query or a header", got.Message)
			}
		})
	}
}

// A receiver that never answers, or not to the end, ends at the endpoint's timeout.
func TestRequestEndsAtTheEndpointsTimeout(t *testing.T) {
	t.Parallel()
	ca := newAuthority(t)
	wait := func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) } // until we close
	trickle := func(head string) func(net.Conn) {
		return func(conn net.Conn) {
			text := head
			for {
				if _, err := conn.Write([]byte(text)); err != nil {
					return
				}
				text = "x"
				time.Sleep(20 * time.Millisecond)
			}
		}
	}
	for _, test := range []struct {
		name   string
		url    string
		status int
		reason Reason
	}{
		{"never answers", "http://" + listen(t, afterRequest(wait)), 0, Timeout},
		{"never reads", "http://" + listen(t, func(conn net.Conn) { time.Sleep(time.Second) }), 0, Timeout},
		{"never shakes hands", "https://" + listen(t, wait), 0, Timeout},
		{"HTTP/2 that never answers", "https://" + listen(t, overTLS(ca.config(t, "h2"), speakHTTP2(func(f *http2.Framer, _ uint32) {
			for _, err := f.ReadFrame(); err == nil; _, err = f.ReadFrame() {
				continue // until we close
			}
		}))), 0, Timeout},
		{"trickles the head", "http://" + listen(t, afterRequest(trickle("HTTP/1.1 200 OK\r\nX: "))), 0, Timeout},
		{"trickles the body", "http://" + listen(t, afterRequest(trickle("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"))), 200, Timeout},
		{"trickles a body without length", "http://" + listen(t, afterRequest(trickle("HTTP/1.1 200 OK\r\n\r\n"))), 200, Timeout},
		{"trickles the body of an error", "http://" + listen(t, afterRequest(trickle("HTTP/1.1 503 Busy\r\n\r\n"))), 503, ServerError},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			const timeout = 300 * time.Millisecond
			spec := testSpec(test.url)
			spec.Timeout = timeout
			got := attemptOnce(t, spec, outside{roots: ca.pool})
			if got.Reason != string(test.reason) || got.Status != test.status || got.Verdict != store.Retry {
				t.Errorf("got %s %s with status %d, want %s %s with %d; message %q", got.Verdict, got.Reason, got.Status, store.Retry, test.reason, test.status, got.Message)
			}
			if got.Duration < timeout || got.Duration > timeout+5*time.Second {
				t.Errorf("duration: got %v, want the timeout of %v", got.Duration, timeout)
			}
		})
	}
}

// D2: a redirect is neither followed nor a success, and only the target's host is told.
func TestRedirectsAreNotFollowed(t *testing.T) {
	t.Parallel()
	target := listen(t, func(net.Conn) { t.Error("a redirect was followed") })
	for _, status := range []int{301, 302, 303, 304, 307, 308} {
		for location, told := range map[string]string{
			"http://" + target + "/elsewhere?code=secret": "to host " + target + ",",
			"/elsewhere?code=secret":                      "on the same host,",
			"http://%zz/":                                 "on the same host,",
			"":                                            "",
		} {
			text := fmt.Sprintf("HTTP/1.1 %d Elsewhere\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n", status, location)
			got := attemptOnce(t, testSpec("http://"+listen(t, afterRequest(reply(text)))), outside{})
			if got.Reason != string(Redirect) || got.Verdict != store.Retry || got.Status != status {
				t.Errorf("%d to %q: got %s %s %d, want %s %s", status, location, got.Verdict, got.Reason, got.Status, store.Retry, Redirect)
			}
			if !strings.Contains(got.Message, told) || strings.Contains(got.Message, "secret") || strings.Contains(got.Message, "elsewhere") {
				t.Errorf("%d to %q: got message %q, want %q in it and neither path nor query", status, location, got.Message, told)
			}
		}
	}
}

func TestMessagesAreCleanAndBounded(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ text, want string }{
		{"", ""},
		{" plain ", "plain"},
		{"two\r\nlines\tand \x00 \x1b[31mred", "two  lines and    [31mred"},
		{"not \xff\xfe UTF-8", "not    UTF-8"},
		{strings.Repeat("x", 300), strings.Repeat("x", 256)},
		{strings.Repeat("é", 200), strings.Repeat("é", 128)},
		{strings.Repeat("é", 127) + "x" + "é", strings.Repeat("é", 127) + "x"},
	} {
		if got := clean(test.text); got != test.want || len(got) > maxMessage || !utf8.ValidString(got) {
			t.Errorf("clean(%q): got %q, want %q", test.text, got, test.want)
		}
	}
}

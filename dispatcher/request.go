package dispatcher

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
)

// Headers that we set, in the form in which http.Header keeps them.
var (
	headerID        = textproto.CanonicalMIMEHeaderKey(signature.HeaderID)
	headerTimestamp = textproto.CanonicalMIMEHeaderKey(signature.HeaderTimestamp)
	headerSignature = textproto.CanonicalMIMEHeaderKey(signature.HeaderSignature)
)

const (
	headerEventType   = "Postrider-Event-Type"
	headerAttempt     = "Postrider-Attempt"
	headerTraceparent = "Traceparent"
)

// reservedHeaders are set by us or by HTTP itself, or would change what the answer looks like; no header of a user or a
// producer replaces or joins them. Those with a prefix of reservedPrefixes are too.
var (
	reservedHeaders = map[string]bool{
		headerID: true, headerTimestamp: true, headerSignature: true, headerTraceparent: true, "Tracestate": true,
		"Content-Type": true, "User-Agent": true, "Host": true, "Content-Length": true, "Content-Encoding": true,
		"Transfer-Encoding": true, "Connection": true, "Keep-Alive": true, "Te": true, "Trailer": true, "Upgrade": true,
		"Expect": true, "Http2-Settings": true, "Accept-Encoding": true,
	}
	reservedPrefixes = []string{"Postrider-", "Proxy-"}
)

// setUserHeader adds a header that is not ours to a request's, unless it may not be.
func setUserHeader(header http.Header, name, value string) {
	if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
		return
	}
	key := textproto.CanonicalMIMEHeaderKey(name)
	if reservedHeaders[key] {
		return
	}
	for _, p := range reservedPrefixes {
		if strings.HasPrefix(key, p) {
			return
		}
	}
	if key == "Idempotency-Key" || key == "X-Idempotency-Key" {
		// In its usual spelling it tells net/http to repeat a failed request by itself: an attempt that nobody counts.
		key = strings.ToLower(key)
	}
	header[key] = []string{value}
}

// newRequest makes the signed request for a claim. at is the database's time.
func newRequest(ctx context.Context, e *endpoint, c *store.Claim, userAgent string, at time.Time, keys []signature.Key) *http.Request {
	id := c.EventID.String()
	header := make(http.Header, len(e.header)+len(c.Headers)+8)
	for name, value := range c.Headers {
		setUserHeader(header, name, value)
	}
	for key, values := range e.header {
		header[key] = values
	}
	// One array for all of ours.
	ours := make([]string, 0, 8)
	set := func(key, value string) {
		ours = append(ours, value)
		header[key] = ours[len(ours)-1 : len(ours) : len(ours)]
	}
	set("User-Agent", userAgent)
	set(headerID, id)
	set(headerTimestamp, signature.Timestamp(at))
	set(headerSignature, signature.Sign(id, at, c.Body, keys...))
	set(headerEventType, c.EventType)
	set(headerAttempt, strconv.Itoa(c.Attempt))
	if c.ContentType != "" && httpguts.ValidHeaderFieldValue(c.ContentType) {
		set("Content-Type", c.ContentType)
	}
	if c.Traceparent != "" && httpguts.ValidHeaderFieldValue(c.Traceparent) {
		set(headerTraceparent, c.Traceparent)
	}

	request := e.template.WithContext(ctx)
	request.Header = header
	request.ContentLength = int64(len(c.Body))
	request.Body = http.NoBody
	if body := c.Body; len(body) > 0 {
		request.Body = newPayload(body)
		// Lets the transport take another connection where nothing was written to the first one, or where an HTTP/2 server
		// says that it did not process the request. What may have been processed it does not repeat.
		request.GetBody = func() (io.ReadCloser, error) { return newPayload(body), nil }
	}
	return request
}

// newPayload reads a body that is shared and never changes. It is of types that net/http knows to be in memory: others it
// sends in a packet of their own after the headers.
func newPayload(body []byte) io.ReadCloser { return io.NopCloser(bytes.NewReader(body)) }

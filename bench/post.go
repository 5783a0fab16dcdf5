package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/signature"
)

// poster makes the signed POST that everybody makes here: the baseline's client and River's workers by this code, the
// dispatcher by its own, with the same headers, the same signature and the same settings of the transport.
type poster struct {
	transport *http.Transport
	key       signature.Key
}

// newPoster makes one that keeps as many idle connections as may be in use at once.
func newPoster(key signature.Key, most int) *poster {
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 15 * time.Second}
	return &poster{key: key, transport: &http.Transport{
		DialContext:         dialer.DialContext,
		ForceAttemptHTTP2:   true,
		DisableCompression:  true,
		MaxIdleConns:        2 * most,
		MaxIdleConnsPerHost: most,
		IdleConnTimeout:     30 * time.Second,
	}}
}

func (p *poster) close() { p.transport.CloseIdleConnections() }

const postTimeout = 10 * time.Second

// post sends a body once and reads the answer to its end.
func (p *poster) post(ctx context.Context, url string, event uuid.UUID, body []byte) error {
	ctx, cancel := context.WithTimeout(ctx, postTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	id, at := event.String(), time.Now()
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "Postrider/bench")
	request.Header.Set(signature.HeaderID, id)
	request.Header.Set(signature.HeaderTimestamp, signature.Timestamp(at))
	request.Header.Set(signature.HeaderSignature, signature.Sign(id, at, body, p.key))
	request.Header.Set("Postrider-Event-Type", "load")
	request.Header.Set("Postrider-Attempt", "1")
	response, err := p.transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("post: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return fmt.Errorf("post: read the answer: %w", err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("post: %s", response.Status)
	}
	return nil
}

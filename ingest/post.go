package ingest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"
)

// acceptedAnswer is the answer to an accepted event.
type acceptedAnswer struct {
	ID         string             `json:"id"`
	Type       string             `json:"type"`
	AcceptedAt string             `json:"accepted_at"`
	Matched    int                `json:"matched"`
	Deliveries []acceptedDelivery `json:"deliveries"`
	Duplicate  bool               `json:"duplicate"`
}

type acceptedDelivery struct {
	Endpoint string `json:"endpoint"`
}

// postEvent answers POST /api/v1/events.
func (s *Server) postEvent(w http.ResponseWriter, r *http.Request, from caller) error {
	if p := checkMedia(r.Header); p != nil {
		return p
	}
	body, err := s.readBody(w, r)
	if err != nil {
		return err
	}
	e, p := parseEvent(body, r.Header)
	if p != nil {
		return p
	}
	result := s.accepter.accept(r.Context(), []submission{{namespace: from.namespace, event: e}})[0]
	switch {
	case result.err != nil:
		return storeProblem(result.err)
	case result.conflict != nil:
		s.metrics.conflicting.Inc()
		return conflicting(result.conflict)
	}
	s.count(result)
	s.log.Debug("event accepted", "event", result.id.String(), "namespace", from.namespace,
		"matched", len(result.endpoints), "duplicate", result.duplicate)
	writeJSON(w, http.StatusAccepted, mediaTypeJSON, acceptedOf(e, result))
	return nil
}

func (s *Server) count(result outcome) {
	switch {
	case result.duplicate:
		s.metrics.duplicate.Inc()
	default:
		s.metrics.accepted.Inc()
		s.metrics.fannedOut.Add(float64(len(result.endpoints)))
		if len(result.endpoints) == 0 {
			s.metrics.unmatched.Inc()
		}
	}
}

func acceptedOf(e event, result outcome) acceptedAnswer {
	answer := acceptedAnswer{
		ID: result.id.String(), Type: e.eventType, AcceptedAt: rfc3339(result.acceptedAt),
		Matched: len(result.endpoints), Deliveries: make([]acceptedDelivery, len(result.endpoints)),
		Duplicate: result.duplicate,
	}
	for i, endpoint := range result.endpoints {
		answer.Deliveries[i].Endpoint = endpoint
	}
	return answer
}

// checkMedia refuses what is not plain JSON. Compressed bodies are refused rather than unpacked: their size is not
// known before.
func checkMedia(header http.Header) *problem {
	if encoding := header.Values("Content-Encoding"); len(encoding) > 0 && !strings.EqualFold(strings.Join(encoding, ","), "identity") {
		return unsupportedMedia("The body must not be compressed: send it without Content-Encoding.")
	}
	values := header.Values("Content-Type")
	if len(values) == 1 {
		mediaType, parameters, err := mime.ParseMediaType(values[0])
		charset, given := parameters["charset"]
		if err == nil && mediaType == mediaTypeJSON && (!given || strings.EqualFold(charset, "utf-8")) {
			return nil
		}
	}
	return unsupportedMedia("The body must be JSON in UTF-8: send it with Content-Type: application/json.")
}

// readBody reads a body up to the limit. One that is announced as larger is refused unread; of one that turns out so,
// no more than the limit is held.
func (s *Server) readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	limit := s.config.BodyLimit
	if r.ContentLength > limit {
		w.Header().Set("Connection", "close") // what the client sends on is not to be read
		return nil, tooLarge(limit)
	}
	control := http.NewResponseController(w)
	if err := control.SetReadDeadline(time.Now().Add(s.config.BodyTimeout)); err != nil {
		return nil, fmt.Errorf("bound the reading of a body: %w", err)
	}
	var body bytes.Buffer
	_, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, limit))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, tooSlow()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, malformed("The body ended before its announced length.")
	case err != nil:
		return nil, malformed("The body could not be read.")
	}
	// Left in place, the deadline would end the request's context while the store is at work.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("lift the bound on the reading of a body: %w", err)
	}
	return body.Bytes(), nil
}

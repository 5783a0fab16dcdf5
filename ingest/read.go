package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/store"
)

// eventAnswer is an event with what became of it.
type eventAnswer struct {
	ID          string           `json:"id"`
	Type        string           `json:"type"`
	ContentType string           `json:"content_type"`
	OrderingKey string           `json:"ordering_key,omitempty"`
	AcceptedAt  string           `json:"accepted_at"`
	Deliveries  []deliveryAnswer `json:"deliveries"`
}

type deliveryAnswer struct {
	Endpoint      string          `json:"endpoint"`
	Replay        int             `json:"replay"`
	State         string          `json:"state"`
	Reason        string          `json:"reason,omitempty"`
	NextAttemptAt string          `json:"next_attempt_at,omitempty"`
	Attempts      []attemptAnswer `json:"attempts"`
}

type attemptAnswer struct {
	Number     int    `json:"number"`
	At         string `json:"at"`
	Outcome    string `json:"outcome"`
	StatusCode int    `json:"status_code,omitempty"`
	Reason     string `json:"reason,omitempty"`
	DurationMS int64  `json:"duration_ms"`
	Response   string `json:"response,omitempty"`
}

// getEvent answers GET /api/v1/events/{id}.
func (s *Server) getEvent(w http.ResponseWriter, r *http.Request, from caller) error {
	id, err := uuid.Parse(r.PathValue("id"))
	if err != nil || id.String() != r.PathValue("id") {
		return eventNotFound()
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.config.DatabaseTimeout)
	defer cancel()
	// Read afresh: a remembered uid may be that of a namespace of the same name that was deleted since, whose events
	// are not for the new one's tenant.
	uid, err := s.store.NamespaceUID(ctx, from.namespace)
	if err != nil {
		return storeProblem(fmt.Errorf("read the namespace: %w", err))
	}
	detail, err := s.store.Event(ctx, from.namespace, uid, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return eventNotFound()
	case err != nil:
		return storeProblem(fmt.Errorf("read an event: %w", err))
	}
	writeJSON(w, http.StatusOK, mediaTypeJSON, answerOf(detail))
	return nil
}

func answerOf(detail store.EventDetail) eventAnswer {
	answer := eventAnswer{
		ID: detail.ID.String(), Type: detail.Type, ContentType: detail.ContentType, OrderingKey: detail.OrderingKey,
		AcceptedAt: rfc3339(detail.AcceptedAt), Deliveries: make([]deliveryAnswer, len(detail.Deliveries)),
	}
	for i, delivery := range detail.Deliveries {
		d := deliveryAnswer{
			Endpoint: delivery.Endpoint, Replay: delivery.ReplayNo, State: string(delivery.State),
			Reason: delivery.Reason, Attempts: make([]attemptAnswer, len(delivery.Attempts)),
		}
		if !delivery.NextAttemptAt.IsZero() {
			d.NextAttemptAt = rfc3339(delivery.NextAttemptAt)
		}
		for n, attempt := range delivery.Attempts {
			d.Attempts[n] = attemptAnswer{
				Number: attempt.Number, At: rfc3339(attempt.At), Outcome: string(attempt.Outcome),
				StatusCode: attempt.Status, Reason: attempt.Reason,
				DurationMS: int64(attempt.Duration / time.Millisecond), Response: attempt.Response,
			}
		}
		answer.Deliveries[i] = d
	}
	return answer
}

// unavailableStore tells an absent or overrun Postgres from a fault of ours.
func unavailableStore(err error) bool {
	return store.IsUnavailable(err) || errors.Is(err, context.DeadlineExceeded)
}

// storeProblem is the answer where the store failed.
func storeProblem(err error) *problem {
	switch {
	case errors.Is(err, errNamespaceUnknown):
		return namespaceUnknown(err)
	case errors.Is(err, errKeepsChanging):
		return unavailable("endpoints-changing", "The namespace's endpoints are changing; nothing was accepted.", err)
	case errors.Is(err, errCrowded), errors.Is(err, errOutwaited):
		return unavailable("overloaded", "Too many events wait to be stored; this one was not accepted.", err)
	case errors.Is(err, errStopping), errors.Is(err, context.Canceled):
		return unavailable("stopping", "The server is stopping; nothing was accepted.", err)
	case errors.Is(err, store.ErrRefused):
		return refusedValue(err)
	case errors.Is(err, store.ErrConflict):
		return unavailable("key-contended", "The idempotency key is in dispute; nothing was accepted.", err)
	case unavailableStore(err):
		return unavailable("store-away", "The database cannot be reached in time; nothing is known to have been accepted.", err)
	}
	return internal(err)
}

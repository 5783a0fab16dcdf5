package ingest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/store"
)

// Store is what ingest needs of the store; *store.Store is it.
type Store interface {
	Ping(ctx context.Context) error
	Matching(ctx context.Context, namespace string) (store.Matching, error)
	NamespaceUID(ctx context.Context, namespace string) (string, error)
	Accept(ctx context.Context, events []store.NewEvent, window time.Duration) ([]store.Acceptance, error)
	Touch(ctx context.Context, lanes []store.Touched) error
	Notify(ctx context.Context) error
	Event(ctx context.Context, namespace, namespaceUID string, id uuid.UUID) (store.EventDetail, error)
}

// submission is one event that one caller waits for.
type submission struct {
	namespace string
	event     event
}

// outcome is what became of a submission. Exactly one of these holds: err set, conflict set, or accepted.
type outcome struct {
	id         uuid.UUID
	acceptedAt time.Time
	endpoints  []string
	duplicate  bool     // accepted earlier; nothing was created
	conflict   []string // fields that differ from the event that has the idempotency key
	err        error
}

// accepter puts events into the store, each with its deliveries or not at all.
type accepter struct {
	store   Store
	tables  *tables
	window  time.Duration
	timeout time.Duration
	touched func([]store.Touched)
	metrics *metrics
}

// maxStale bounds how often an event is matched again because the namespace's endpoints changed meanwhile.
const maxStale = 8

var (
	errKeepsChanging    = errors.New("the namespace's endpoints keep changing")
	errNamespaceUnknown = errors.New("the controller has not told of the namespace")
)

// accept stores events in one transaction and returns one outcome for each, in their order. A batch, or the requests
// of several callers that share a commit, come here together; one's conflict does not touch the others.
//
// It goes on when the caller's context ends: the answer of a commit under way would be lost, with the waking of the
// dispatchers, and breaking off a statement costs its connection. Its own deadline bounds it.
func (a *accepter) accept(ctx context.Context, submissions []submission) []outcome {
	ctx = context.WithoutCancel(ctx)
	outcomes := make([]outcome, len(submissions))
	stale := make([]*table, len(submissions))
	pending := make([]int, len(submissions))
	for i := range submissions {
		pending[i] = i
	}
	for range maxStale {
		if pending = a.try(ctx, submissions, outcomes, stale, pending); len(pending) == 0 {
			return outcomes
		}
		a.metrics.staleMatches.Add(float64(len(pending)))
	}
	for _, i := range pending {
		outcomes[i].err = errKeepsChanging
	}
	return outcomes
}

// try settles the pending submissions, but for those whose matching table turned out to be outdated: these it returns,
// with the table in stale.
func (a *accepter) try(ctx context.Context, submissions []submission, outcomes []outcome, stale []*table, pending []int) []int {
	var events []store.NewEvent
	var matched [][]store.MatchedEndpoint
	var members []int
	for _, i := range pending {
		t, err := a.tables.present(ctx, submissions[i].namespace, stale[i])
		if err == nil && t.Version == 0 {
			err = errNamespaceUnknown
		}
		if err != nil {
			outcomes[i].err = err
			continue
		}
		endpoints := t.match(submissions[i].event.eventType)
		events = append(events, newEvent(t, submissions[i].event, endpoints))
		matched = append(matched, endpoints)
		members = append(members, i)
		stale[i] = t
	}
	if len(events) == 0 {
		return nil
	}
	results, err := a.commit(ctx, events)
	if err != nil {
		for _, i := range members {
			outcomes[i].err = err
		}
		return nil
	}
	var again []int
	var lanes []store.Touched
	for n, result := range results {
		i := members[n]
		switch {
		case result.Stale:
			again = append(again, i)
		case result.Original != nil:
			outcomes[i] = duplicateOf(result, submissions[i].event)
		default:
			outcomes[i] = outcome{id: result.EventID, acceptedAt: result.AcceptedAt, endpoints: names(matched[n])}
			lanes = append(lanes, lanesOf(events[n])...)
		}
	}
	if len(lanes) > 0 {
		a.touched(lanes)
	}
	return again
}

func (a *accepter) commit(ctx context.Context, events []store.NewEvent) ([]store.Acceptance, error) {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	began := time.Now()
	results, err := a.store.Accept(ctx, events, a.window)
	a.metrics.acceptSeconds.Observe(time.Since(began).Seconds())
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	if len(results) != len(events) {
		return nil, fmt.Errorf("accept: %d results for %d events", len(results), len(events))
	}
	return results, nil
}

func newEvent(t *table, e event, endpoints []store.MatchedEndpoint) store.NewEvent {
	targets := make([]store.Target, len(endpoints))
	for i, endpoint := range endpoints {
		targets[i] = endpoint.Target
	}
	return store.NewEvent{
		Namespace: t.Namespace, NamespaceUID: t.UID, Version: t.Version,
		Type: e.eventType, ContentType: e.contentType, Body: e.payload,
		OrderingKey: e.orderingKey, Traceparent: e.traceparent, IdempotencyKey: e.idempotencyKey,
		Targets: targets,
	}
}

// duplicateOf compares an event with the one that has its idempotency key.
func duplicateOf(result store.Acceptance, e event) outcome {
	var differing []string
	if result.Original.Type != e.eventType {
		differing = append(differing, "type")
	}
	if result.Original.BodySHA256 != sha256.Sum256(e.payload) || result.Original.ContentType != e.contentType {
		differing = append(differing, "payload")
	}
	if result.Original.OrderingKey != e.orderingKey {
		differing = append(differing, "ordering_key")
	}
	if len(differing) > 0 {
		return outcome{conflict: differing}
	}
	return outcome{
		id: result.EventID, acceptedAt: result.AcceptedAt, endpoints: result.Original.Endpoints, duplicate: true,
	}
}

func names(endpoints []store.MatchedEndpoint) []string {
	all := make([]string, len(endpoints))
	for i, endpoint := range endpoints {
		all[i] = endpoint.Name
	}
	return all
}

func lanesOf(e store.NewEvent) []store.Touched {
	lanes := make([]store.Touched, len(e.Targets))
	for i, target := range e.Targets {
		lanes[i].LaneID = target.LaneID
		if target.Ordered {
			lanes[i].OrderingKey = e.OrderingKey
		}
	}
	return lanes
}

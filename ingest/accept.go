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
	store    Store
	tables   *tables
	window   time.Duration
	timeout  time.Duration
	touched  func(lanes []store.Touched, began time.Time)
	metrics  *metrics
	gatherer *gatherer
}

func newAccepter(config Config, s Store, t *tables, touched func([]store.Touched, time.Time), m *metrics) *accepter {
	a := &accepter{store: s, tables: t, window: config.IdempotencyWindow, timeout: config.DatabaseTimeout, touched: touched, metrics: m}
	a.gatherer = newGatherer(config.gathering(), a.commit, m)
	return a
}

// maxStale bounds how often an event is matched again because the namespace's endpoints changed meanwhile.
const maxStale = 8

var (
	errKeepsChanging    = errors.New("the namespace's endpoints keep changing")
	errNamespaceUnknown = errors.New("the controller has not told of the namespace")
)

// accept stores the events of one caller, in their order, and returns one outcome for each. They share their commits with
// those of others; whatever becomes of those does not touch these.
//
// Once a commit is under way it goes on when the caller's context ends: its answer would be lost.
func (a *accepter) accept(ctx context.Context, submissions []submission) []outcome {
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
// with the table in stale. It hands over as many at once as go into one group: the others of the caller come after.
func (a *accepter) try(ctx context.Context, submissions []submission, outcomes []outcome, stale []*table, pending []int) []int {
	var again []int
	for len(pending) > 0 {
		var b bundle
		b, pending = a.bundle(ctx, submissions, outcomes, stale, pending)
		if len(b.events) == 0 {
			break
		}
		results, err := a.gatherer.put(ctx, b.events)
		for n, i := range b.members {
			switch {
			case err != nil:
				outcomes[i].err = err
			case results[n].Err != nil:
				outcomes[i].err = results[n].Err
			case results[n].Stale:
				again = append(again, i)
			case results[n].Original != nil:
				outcomes[i] = duplicateOf(results[n], submissions[i].event)
			default:
				outcomes[i] = outcome{id: results[n].EventID, acceptedAt: results[n].AcceptedAt, endpoints: names(b.matched[n])}
			}
		}
	}
	return again
}

// bundle is what a caller hands over at once.
type bundle struct {
	members []int // their numbers
	events  []store.NewEvent
	matched [][]store.MatchedEndpoint
}

// bundle matches as many of the pending submissions as go into one group, and returns the rest.
func (a *accepter) bundle(ctx context.Context, submissions []submission, outcomes []outcome, stale []*table, pending []int) (b bundle, rest []int) {
	var sum load
	for n, i := range pending {
		t, err := a.tables.present(ctx, submissions[i].namespace, stale[i])
		if err == nil && t.Version == 0 {
			err = errNamespaceUnknown
		}
		if err != nil {
			outcomes[i].err = err
			continue
		}
		endpoints := t.match(submissions[i].event.eventType)
		e := newEvent(t, submissions[i].event, endpoints)
		if sum = sum.plus(weight(&e)); len(b.events) > 0 && !sum.fits(a.gatherer.group) {
			return b, pending[n:]
		}
		stale[i] = t
		b.members, b.events, b.matched = append(b.members, i), append(b.events, e), append(b.matched, endpoints)
	}
	return b, nil
}

// commit stores a group and has the dispatchers woken for it. It runs for the group and not for any of the callers. The
// store keeps half of the time for finding out what became of a commit whose answer was lost.
func (a *accepter) commit(ctx context.Context, group []*parcel) {
	ctx, cancel := context.WithTimeout(ctx, 2*a.timeout)
	defer cancel()
	var events []store.NewEvent
	for _, p := range group {
		events = append(events, p.events...)
	}
	began := time.Now()
	results, err := a.store.Accept(ctx, events, a.window)
	a.metrics.acceptSeconds.Observe(time.Since(began).Seconds())
	if err == nil && len(results) != len(events) {
		err = fmt.Errorf("accept: %d results for %d events", len(results), len(events))
	}
	if err != nil {
		for _, p := range group {
			p.err = err
		}
		return
	}
	a.wake(events, results, began)
	for _, p := range group {
		p.results, results = results[:len(p.events)], results[len(p.events):]
	}
}

// wake hands over the lanes of what was accepted, and counts what had to be searched for.
func (a *accepter) wake(events []store.NewEvent, results []store.Acceptance, began time.Time) {
	var lanes []store.Touched
	for i, r := range results {
		if r.Err == nil && !r.Stale && r.Original == nil {
			lanes = append(lanes, lanesOf(events[i])...)
		}
		if r.Recovered {
			a.metrics.recovered.Inc()
		}
	}
	if len(lanes) > 0 {
		a.touched(lanes, began)
	}
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

package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// One statement, its own transaction: events, deliveries and idempotency keys, or none of them. No lane and no ordering
// key is locked: concurrent accepts never wait for one another, nor for a claim. Rows with an ordering key enter an
// ordered lane as followers (infinity); the touch that follows the commit promotes the first of each key.
//
// fresh: the matching table that the targets came from is the one of this statement's snapshot. An endpoint that was
// Ready before the caller began is in it, and a cancelled lane is not. And the ids carry Postgres' time: they are made
// before the statement is sent, or a commit whose answer was lost could not be found again.
//
// Keys are sorted, or two groups would deadlock, and deduplicated, since one statement may not touch a key twice. Only
// the winner of a key is stored; who holds it otherwise is read in a later statement: in this one it is invisible.
//
// $1…$11: one entry per event; $12 event number (1-based)[], $13 endpoint[], $14 lane[], $15 ordered[]: one per delivery;
// $16 how long a key is kept; $17 time of the ids, $18 how far that may be off, both in milliseconds.
const acceptEvents = `
WITH moment AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS ms
), incoming AS MATERIALIZED (
    SELECT t.n, t.id, t.namespace, t.uid, t.type, t.content_type, t.body, t.headers,
           nullif(t.ordering_key, '') AS ordering_key, nullif(t.traceparent, '') AS traceparent, t.key,
           coalesce(v.version = t.version AND v.uid = t.uid, false) AND abs((SELECT ms FROM moment) - $17::bigint) <= $18::bigint AS fresh
    FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bytea[], $8::jsonb[], $9::text[], $10::text[], $11::text[])
         WITH ORDINALITY AS t(id, namespace, uid, version, type, content_type, body, headers, ordering_key, traceparent, key, n)
    LEFT JOIN postrider.namespace_version v ON v.namespace = t.namespace
), target AS MATERIALIZED (
    SELECT * FROM unnest($12::bigint[], $13::bigint[], $14::bigint[], $15::bool[]) WITH ORDINALITY AS f(n, endpoint_id, lane_id, ordered, ord)
), keyed AS (
    INSERT INTO postrider.idempotency AS k (namespace, namespace_uid, key, event_id, expires_at)
    SELECT namespace, uid, key, id, now() + $16::interval
    FROM (SELECT DISTINCT ON (key, namespace, uid) * FROM incoming WHERE fresh AND key <> '' ORDER BY key, namespace, uid, n) first
    ORDER BY key, namespace, uid
    ON CONFLICT (key, namespace, namespace_uid) DO UPDATE SET event_id = excluded.event_id, expires_at = excluded.expires_at
        WHERE k.expires_at < now()
    RETURNING k.event_id
), winner AS MATERIALIZED (
    SELECT * FROM incoming WHERE fresh AND (key = '' OR id IN (SELECT event_id FROM keyed))
), stored AS (
    INSERT INTO postrider.event (id, namespace, namespace_uid, type, content_type, body, headers, ordering_key, traceparent, endpoint_ids)
    SELECT id, namespace, uid, type, content_type, body, headers, ordering_key, traceparent, coalesce(endpoint_ids, '{}')
    FROM winner
    -- Gathered at once: a subquery for each event would read the targets of the whole call for each.
    LEFT JOIN (SELECT n, array_agg(endpoint_id ORDER BY ord) AS endpoint_ids FROM target GROUP BY n) fanout USING (n)
    ORDER BY n
), fanned AS (
    INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, ordering_key)
    SELECT f.lane_id, f.endpoint_id, w.id,
           CASE WHEN f.ordered AND w.ordering_key IS NOT NULL THEN 'infinity' ELSE now() END, w.ordering_key
    FROM target f JOIN winner w USING (n)
    ORDER BY f.ord
)
SELECT i.fresh, w.n IS NOT NULL, (SELECT ms FROM moment) FROM incoming i LEFT JOIN winner w USING (n) ORDER BY i.n`

// rounds bounds how often a key whose holder vanished meanwhile is tried again.
const rounds = 5

// Accept stores events with their deliveries and commits before it returns: each event whole or not at all. It is meant
// for the events of many callers at once, 1,000 or so at most, and keeps their affairs apart: a key that another event
// has, a matching table that moved, and values that the database refuses are their event's alone. window is how long an
// idempotency key is kept. Afterwards call Touch for the targets of the events that were accepted.
//
// When the connection breaks before a commit is answered, Accept finds out what became of it before it repeats
// anything, for as long as the context allows; half of its time is kept for that.
//
// An error means that no event is known to be accepted, all for the same reason. Otherwise each has its own:
// Acceptance.Err.
func (s *Store) Accept(ctx context.Context, events []NewEvent, window time.Duration) ([]Acceptance, error) {
	g := &accepting{Store: s, events: events, window: window, ids: make([]uuid.UUID, len(events)), accepted: make([]Acceptance, len(events))}
	open := make([]int, len(events))
	for i := range open {
		open[i] = i
	}
	for range rounds {
		if open = g.storeOrSplit(ctx, open); len(open) == 0 {
			return g.accepted, g.common
		}
	}
	g.fail(open, fmt.Errorf("the holder of an idempotency key kept vanishing: %w", ErrConflict))
	return g.accepted, g.common
}

// accepting is one call of Accept.
type accepting struct {
	*Store
	events   []NewEvent
	window   time.Duration
	ids      []uuid.UUID
	time     int64 // of the ids, by Postgres' clock, in milliseconds
	accepted []Acceptance
	common   error // what failed all events
}

// fail gives an error to the events at some indices.
func (g *accepting) fail(at []int, err error) {
	err = fmt.Errorf("accept: %w", err)
	for _, i := range at {
		g.accepted[i] = Acceptance{Err: err}
	}
	if len(at) == len(g.events) {
		g.common = err
	}
}

// storeOrSplit settles the events at some indices and returns those to try again: the ones whose key was held by an
// event that is gone by now. Where the database refuses a value, each half is tried alone.
func (g *accepting) storeOrSplit(ctx context.Context, at []int) (again []int) {
	again, err := g.store(ctx, at)
	switch {
	case err == nil:
		return again
	case !badRow(err):
		g.fail(at, err)
		return nil
	case len(at) == 1:
		g.accepted[at[0]] = Acceptance{Err: fmt.Errorf("accept: %w: %w", ErrRefused, err)}
		return nil
	}
	half := len(at) / 2
	return append(g.storeOrSplit(ctx, at[:half]), g.storeOrSplit(ctx, at[half:])...)
}

// errClock means that the ids were made by another clock than the database has now. Nothing was stored.
var errClock = errors.New("the database's clock was set")

const (
	// clockTolerance is how far the time of new ids may be off at the first try. After it the clock is known, and what is
	// off is a statement that was long on its way: longTolerance.
	clockTolerance, longTolerance = time.Second, time.Minute
	// passingTries bounds how often what passes by itself is tried.
	passingTries = 4
)

// store settles the events at some indices in one transaction, or finds out that it was committed though its answer was
// lost. The losers of keys whose holders are gone it returns.
func (g *accepting) store(ctx context.Context, at []int) (again []int, err error) {
	tolerance := clockTolerance
	for range passingTries {
		if err := g.name(ctx, at); err != nil {
			return nil, err
		}
		first, cancel := firstHalf(ctx)
		again, err = g.try(first, at, tolerance)
		cancel()
		tolerance = longTolerance
		switch {
		case answerLost(err):
			return g.clearUp(ctx, at, err)
		case !errors.Is(err, errClock) && !isPassing(err):
			return again, err
		}
	}
	return nil, err
}

// firstHalf leaves as much time again.
func firstHalf(ctx context.Context) (context.Context, context.CancelFunc) {
	if deadline, ok := ctx.Deadline(); ok {
		return context.WithTimeout(ctx, time.Until(deadline)/2)
	}
	return context.WithCancel(ctx)
}

// name gives ids to events that were never stored under others.
func (g *accepting) name(ctx context.Context, at []int) (err error) {
	if g.time, err = g.clock.now(ctx, g.pool); err != nil {
		return err
	}
	for _, i := range at {
		g.ids[i] = newEventID(g.time)
	}
	return nil
}

// try runs the statement and reads the holders of the keys that were there already.
func (g *accepting) try(ctx context.Context, at []int, tolerance time.Duration) (again []int, err error) {
	var c acceptColumns
	for n, i := range at {
		if err := c.add(n+1, g.ids[i], &g.events[i]); err != nil {
			return nil, err
		}
	}
	lost, err := g.run(ctx, at, &c, tolerance)
	if err != nil || len(lost) == 0 {
		return nil, err
	}
	again, err = g.findOriginals(ctx, lost)
	if err != nil {
		g.fail(lost, err) // the others are committed
		return nil, nil
	}
	return again, nil
}

// run runs the statement alone, and returns the events whose key was there already.
func (g *accepting) run(ctx context.Context, at []int, c *acceptColumns, tolerance time.Duration) (lost []int, err error) {
	conn, err := g.pool.Acquire(ctx)
	if err != nil {
		return nil, &unsentError{err}
	}
	defer conn.Release()
	sent := time.Now()
	rows, err := conn.Query(ctx, acceptEvents, c.id, c.namespace, c.uid, c.version, c.eventType, c.contentType, c.body, c.headers,
		c.orderingKey, c.traceparent, c.key, c.n, c.endpoint, c.lane, c.ordered, g.window, g.time, tolerance.Milliseconds())
	if err != nil {
		return nil, err
	}
	results := make([]Acceptance, 0, len(at))
	var fresh, won bool
	var clock int64
	if _, err = pgx.ForEachRow(rows, []any{&fresh, &won, &clock}, func() error {
		i := at[len(results)]
		results = append(results, Acceptance{Stale: !fresh})
		switch {
		case !fresh:
		case won:
			results[len(results)-1] = Acceptance{EventID: g.ids[i], AcceptedAt: EventTime(g.ids[i])}
		default:
			lost = append(lost, i)
		}
		return nil
	}); err != nil {
		return nil, err
	}
	g.clock.set(clock, sent)
	if off := clock - g.time; max(off, -off) > tolerance.Milliseconds() {
		return nil, errClock
	}
	for n, i := range at {
		g.accepted[i] = results[n]
	}
	return lost, nil
}

// acceptColumns are the parameters of acceptEvents.
type acceptColumns struct {
	id                                     []uuid.UUID
	namespace, uid, eventType, contentType []string
	orderingKey, traceparent, key          []string
	version                                []int64
	body                                   [][]byte
	headers                                []*string

	n, endpoint, lane []int64
	ordered           []bool
}

func (c *acceptColumns) add(n int, id uuid.UUID, e *NewEvent) error {
	var headers *string
	if len(e.Headers) > 0 {
		text, err := json.Marshal(e.Headers)
		if err != nil {
			return fmt.Errorf("encode the headers: %w", err)
		}
		s := string(text)
		headers = &s
	}
	body := e.Body
	if body == nil {
		body = []byte{} // an empty body is not NULL
	}
	c.id = append(c.id, id)
	c.namespace, c.uid, c.version = append(c.namespace, e.Namespace), append(c.uid, e.NamespaceUID), append(c.version, e.Version)
	c.eventType, c.contentType = append(c.eventType, e.Type), append(c.contentType, e.ContentType)
	c.body, c.headers = append(c.body, body), append(c.headers, headers)
	c.orderingKey, c.traceparent, c.key = append(c.orderingKey, e.OrderingKey), append(c.traceparent, e.Traceparent), append(c.key, e.IdempotencyKey)
	for _, t := range e.Targets {
		c.n, c.endpoint = append(c.n, int64(n)), append(c.endpoint, t.EndpointID)
		c.lane, c.ordered = append(c.lane, t.LaneID), append(c.ordered, t.Ordered)
	}
	return nil
}

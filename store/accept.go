package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// One statement, its own transaction: events, deliveries and idempotency keys, or none of them. No lane and no ordering
// key is locked: concurrent accepts never wait for one another, nor for a claim. Rows with an ordering key enter an
// ordered lane as followers (infinity); the touch that follows the commit promotes the first of each key.
//
// fresh: the matching table that the targets came from is the one of this statement's snapshot. An endpoint that was
// Ready before the caller began is in it, and a cancelled lane is not.
//
// Keys are sorted, or two groups would deadlock, and deduplicated, since one statement may not touch a key twice. Only
// the winner of a key is stored; who holds it otherwise is read in a later statement: in this one it is invisible.
//
// $1…$10: one entry per event; $11 event number (1-based)[], $12 endpoint[], $13 lane[], $14 ordered[]: one per delivery;
// $15 how long a key is kept.
const acceptEvents = `
WITH incoming AS MATERIALIZED (
    SELECT t.n, postrider.uuid7() AS id, t.namespace, t.uid, t.type, t.content_type, t.body, t.headers,
           nullif(t.ordering_key, '') AS ordering_key, nullif(t.traceparent, '') AS traceparent, t.key,
           coalesce(v.version = t.version AND v.uid = t.uid, false) AS fresh
    FROM unnest($1::text[], $2::text[], $3::bigint[], $4::text[], $5::text[], $6::bytea[], $7::jsonb[], $8::text[], $9::text[], $10::text[])
         WITH ORDINALITY AS t(namespace, uid, version, type, content_type, body, headers, ordering_key, traceparent, key, n)
    LEFT JOIN postrider.namespace_version v ON v.namespace = t.namespace
), target AS MATERIALIZED (
    SELECT * FROM unnest($11::bigint[], $12::bigint[], $13::bigint[], $14::bool[]) WITH ORDINALITY AS f(n, endpoint_id, lane_id, ordered, ord)
), keyed AS (
    INSERT INTO postrider.idempotency AS k (namespace, namespace_uid, key, event_id, expires_at)
    SELECT namespace, uid, key, id, now() + $15::interval
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
SELECT i.id, i.fresh, w.n IS NOT NULL FROM incoming i LEFT JOIN winner w USING (n) ORDER BY i.n`

// $1 namespace[], $2 uid[], $3 key[]. The event of a key that is still kept; its columns are null where it is gone.
const originalEvents = `
SELECT k.namespace, k.namespace_uid, k.key, k.event_id, e.type, e.content_type, coalesce(e.ordering_key, ''), sha256(e.body),
       ARRAY(SELECT p.name FROM unnest(e.endpoint_ids) WITH ORDINALITY AS u(endpoint_id, ord)
             CROSS JOIN LATERAL (SELECT name FROM postrider.endpoint WHERE endpoint_id = u.endpoint_id LIMIT 1) p ORDER BY ord)
FROM unnest($1::text[], $2::text[], $3::text[]) AS r(namespace, uid, key)
JOIN postrider.idempotency k ON k.key = r.key AND k.namespace = r.namespace AND k.namespace_uid = r.uid
LEFT JOIN LATERAL (
    SELECT type, content_type, ordering_key, body, endpoint_ids FROM postrider.event WHERE id = k.event_id
    UNION ALL
    SELECT type, content_type, ordering_key, body, endpoint_ids FROM postrider.pinned_event WHERE id = k.event_id
    LIMIT 1) e ON true
WHERE k.expires_at >= now()`

// $1 namespace[], $2 uid[], $3 key[], $4 event[]: keys whose event was found gone, for the retention of events may be the
// shorter one. By the event too: a key that somebody took meanwhile is theirs.
const freeKeys = `
DELETE FROM postrider.idempotency k
USING unnest($1::text[], $2::text[], $3::text[], $4::uuid[]) AS r(namespace, uid, key, event_id)
WHERE k.key = r.key AND k.namespace = r.namespace AND k.namespace_uid = r.uid AND k.event_id = r.event_id`

// rounds bounds how often a key whose holder vanished meanwhile is tried again.
const rounds = 5

// Accept stores events with their deliveries and commits before it returns, all or none of the call. window is how long
// an idempotency key is kept. Afterwards call Touch for the targets of the events that were accepted.
func (s *Store) Accept(ctx context.Context, events []NewEvent, window time.Duration) ([]Acceptance, error) {
	accepted := make([]Acceptance, len(events))
	open := make([]int, len(events))
	for i := range open {
		open[i] = i
	}
	for range rounds {
		var err error
		if open, err = s.acceptRound(ctx, events, open, accepted, window); err != nil {
			return nil, err
		}
		if len(open) == 0 {
			return accepted, nil
		}
	}
	return nil, fmt.Errorf("accept: the holder of an idempotency key kept vanishing: %w", ErrConflict)
}

// acceptRound tries the events at some indices and returns those to try again: the ones whose key was held by an event
// that is gone by now.
func (s *Store) acceptRound(ctx context.Context, events []NewEvent, open []int, accepted []Acceptance, window time.Duration) ([]int, error) {
	var c acceptColumns
	for n, i := range open {
		if err := c.add(n+1, &events[i]); err != nil {
			return nil, err
		}
	}
	rows, err := s.pool.Query(ctx, acceptEvents, c.namespace, c.uid, c.version, c.eventType, c.contentType, c.body, c.headers,
		c.orderingKey, c.traceparent, c.key, c.n, c.endpoint, c.lane, c.ordered, window)
	if err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	var lost []int
	n := 0
	var id uuid.UUID
	var fresh, won bool
	if _, err = pgx.ForEachRow(rows, []any{&id, &fresh, &won}, func() error {
		i := open[n]
		n++
		switch {
		case !fresh:
			accepted[i] = Acceptance{Stale: true}
		case won:
			accepted[i] = Acceptance{EventID: id, AcceptedAt: EventTime(id)}
		default:
			lost = append(lost, i)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("accept: %w", err)
	}
	if len(lost) == 0 {
		return nil, nil
	}
	return s.findOriginals(ctx, events, lost, accepted)
}

type keyOf struct{ namespace, uid, key string }

// findOriginals fills in the events that hold the keys of the losers, and returns the losers without one.
func (s *Store) findOriginals(ctx context.Context, events []NewEvent, lost []int, accepted []Acceptance) (open []int, err error) {
	namespace, uid, key := make([]string, len(lost)), make([]string, len(lost)), make([]string, len(lost))
	for n, i := range lost {
		namespace[n], uid[n], key[n] = events[i].Namespace, events[i].NamespaceUID, events[i].IdempotencyKey
	}
	rows, err := s.pool.Query(ctx, originalEvents, namespace, uid, key)
	if err != nil {
		return nil, fmt.Errorf("read the original of an idempotency key: %w", err)
	}
	found := map[keyOf]Acceptance{}
	var orphans orphanedKeys
	var k keyOf
	var id uuid.UUID
	var eventType, contentType *string
	var orderingKey string
	var sum []byte
	var endpoints []string
	if _, err := pgx.ForEachRow(rows, []any{&k.namespace, &k.uid, &k.key, &id, &eventType, &contentType, &orderingKey, &sum, &endpoints}, func() error {
		if eventType == nil {
			orphans.add(k, id)
			return nil
		}
		o := Original{Type: *eventType, ContentType: *contentType, OrderingKey: orderingKey, Endpoints: endpoints}
		copy(o.BodySHA256[:], sum)
		found[k] = Acceptance{EventID: id, AcceptedAt: EventTime(id), Original: &o}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the original of an idempotency key: %w", err)
	}
	if err := orphans.free(ctx, s.pool); err != nil {
		return nil, err
	}
	for n, i := range lost {
		if a, ok := found[keyOf{namespace[n], uid[n], key[n]}]; ok {
			accepted[i] = a
		} else {
			open = append(open, i)
		}
	}
	return open, nil
}

// orphanedKeys are held by events that are gone.
type orphanedKeys struct {
	namespace, uid, key []string
	event               []uuid.UUID
}

func (o *orphanedKeys) add(k keyOf, event uuid.UUID) {
	o.namespace, o.uid, o.key = append(o.namespace, k.namespace), append(o.uid, k.uid), append(o.key, k.key)
	o.event = append(o.event, event)
}

func (o *orphanedKeys) free(ctx context.Context, pool *pgxpool.Pool) error {
	if len(o.key) == 0 {
		return nil
	}
	if _, err := pool.Exec(ctx, freeKeys, o.namespace, o.uid, o.key, o.event); err != nil {
		return fmt.Errorf("free the idempotency keys of events that are gone: %w", err)
	}
	return nil
}

type acceptColumns struct {
	namespace, uid, eventType, contentType []string
	orderingKey, traceparent, key          []string
	version                                []int64
	body                                   [][]byte
	headers                                []*string

	n, endpoint, lane []int64
	ordered           []bool
}

func (c *acceptColumns) add(n int, e *NewEvent) error {
	var headers *string
	if len(e.Headers) > 0 {
		text, err := json.Marshal(e.Headers)
		if err != nil {
			return fmt.Errorf("accept: encode the headers: %w", err)
		}
		s := string(text)
		headers = &s
	}
	body := e.Body
	if body == nil {
		body = []byte{} // an empty body is not NULL
	}
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

// One statement, so that table and version are of one snapshot. Endpoints of an earlier namespace of the same name are
// left out.
const matchingTable = `
SELECT v.uid, v.version, p.endpoint_id, p.lane_id, p.name, p.event_types, p.ordered
FROM postrider.namespace_version v
LEFT JOIN postrider.endpoint p ON p.namespace = v.namespace AND p.namespace_uid = v.uid
     AND p.tombstoned_at IS NULL AND p.lane_id IS NOT NULL
WHERE v.namespace = $1
ORDER BY p.name`

// NamespaceUID reads the uid of a namespace, "" while the controller has not told of it.
func (s *Store) NamespaceUID(ctx context.Context, namespace string) (string, error) {
	var uid string
	err := s.pool.QueryRow(ctx, `SELECT uid FROM postrider.namespace_version WHERE namespace = $1`, namespace).Scan(&uid)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("read the uid of a namespace: %w", err)
	}
	return uid, nil
}

// Matching loads a namespace's table of endpoints. A namespace that the controller has not told of gives an empty one of
// version 0, under which nothing is accepted.
func (s *Store) Matching(ctx context.Context, namespace string) (Matching, error) {
	m := Matching{Namespace: namespace}
	rows, err := s.pool.Query(ctx, matchingTable, namespace)
	if err != nil {
		return Matching{}, fmt.Errorf("load the endpoints of a namespace: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var endpoint, lane *int64
		var name *string
		var ordered *bool
		var e MatchedEndpoint
		if err := rows.Scan(&m.UID, &m.Version, &endpoint, &lane, &name, &e.EventTypes, &ordered); err != nil {
			return Matching{}, fmt.Errorf("load the endpoints of a namespace: %w", err)
		}
		if endpoint == nil {
			continue
		}
		e.EndpointID, e.LaneID, e.Name, e.Ordered = *endpoint, *lane, *name, *ordered
		m.Endpoints = append(m.Endpoints, e)
	}
	if err := rows.Err(); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Matching{}, fmt.Errorf("load the endpoints of a namespace: %w", err)
	}
	return m, nil
}

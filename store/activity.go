package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// endpoint_status is small, one row per endpoint, and read whole: an index on updated_at would
// cost each completion its HOT update.
const activities = `
SELECT p.endpoint_id, p.namespace, p.name, p.uid, s.last_success_at, s.last_failure_at, s.last_failure_event,
       coalesce(s.last_failure_status, 0), coalesce(s.last_failure_reason, ''), coalesce(s.last_failure_message, ''),
       coalesce(s.failures, 0), l.open_until, l.probe_token IS NOT NULL, l.gone_at IS NOT NULL
FROM postrider.endpoint p
LEFT JOIN postrider.endpoint_status s USING (endpoint_id)
LEFT JOIN LATERAL (SELECT open_until, probe_token, gone_at FROM postrider.lane WHERE lane_id = p.lane_id ORDER BY moved_at DESC LIMIT 1) l ON true
WHERE p.tombstoned_at IS NULL AND ($1::timestamptz IS NULL OR s.updated_at >= $1)
ORDER BY p.endpoint_id`

// Activities returns the endpoints whose activity moved at or after a time, all of them for the zero time, and the
// database's clock to ask with next. What commits late carries an earlier time: ask again from some seconds before.
func (s *Store) Activities(ctx context.Context, since time.Time) ([]Activity, time.Time, error) {
	var from *time.Time
	if !since.IsZero() {
		from = &since
	}
	var now time.Time
	var all []Activity
	b := &pgx.Batch{}
	b.Queue("SELECT now()").QueryRow(func(row pgx.Row) error { return row.Scan(&now) })
	b.Queue(activities, from).Query(func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, scanActivity)
		return err
	})
	if err := send(ctx, s.pool, b); err != nil {
		return nil, time.Time{}, fmt.Errorf("read the endpoints' activity: %w", err)
	}
	return all, now, nil
}

func scanActivity(row pgx.CollectableRow) (Activity, error) {
	var a Activity
	var success, failure, open *time.Time
	var event *uuid.UUID
	var probing, gone *bool
	err := row.Scan(&a.EndpointID, &a.Namespace, &a.Name, &a.UID, &success, &failure, &event,
		&a.LastFailure.Status, &a.LastFailure.Reason, &a.LastFailure.Message,
		&a.ConsecutiveFailures, &open, &probing, &gone)
	if err != nil {
		return Activity{}, err
	}
	a.LastSuccess, a.LastFailure.At, a.OpenUntil = orZero(success), orZero(failure), orZero(open)
	if event != nil {
		a.LastFailure.EventID = *event
	}
	a.Probing, a.Gone = probing != nil && *probing, gone != nil && *gone
	return a, nil
}

func orZero(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return *t
}

// Counted per endpoint and bounded, so that a backlog of millions costs what one of ten thousand does. All lanes of an
// endpoint: what a disabled one still has to cancel is pending until it is. The lane that is not cancelled is in endpoint.
const backlogs = `
SELECT r.endpoint_id, p.pending, p.oldest, d.dead
FROM unnest($1::bigint[]) AS r(endpoint_id)
CROSS JOIN LATERAL (
    SELECT count(*)::int AS pending, min(accepted_at) AS oldest
    FROM (SELECT q.accepted_at
          FROM (SELECT live.* FROM postrider.endpoint e CROSS JOIN LATERAL (
                    SELECT lane_id, first_at FROM postrider.lane WHERE lane_id = e.lane_id ORDER BY moved_at DESC LIMIT 1) live
                WHERE e.endpoint_id = r.endpoint_id
                UNION ALL
                SELECT lane_id, first_at FROM postrider.lane WHERE endpoint_id = r.endpoint_id AND cancelled_at IS NOT NULL) l
          CROSS JOIN LATERAL (
              SELECT accepted_at FROM postrider.delivery
              WHERE lane_id = l.lane_id AND available_at >= ` + searchFrom + ` ORDER BY available_at, id LIMIT $2) q
          LIMIT $2) AS bounded) p
CROSS JOIN LATERAL (
    SELECT count(*)::int AS dead FROM (SELECT FROM postrider.dead_letter WHERE endpoint_id = r.endpoint_id LIMIT $2) AS bounded) d
ORDER BY r.endpoint_id`

// Backlogs counts what waits for some endpoints and what was given up on. The oldest pending delivery is looked for among
// the CountLimit that fall due first.
func (s *Store) Backlogs(ctx context.Context, endpointIDs []int64) ([]Backlog, error) {
	rows, err := s.pool.Query(ctx, backlogs, endpointIDs, CountLimit)
	if err != nil {
		return nil, fmt.Errorf("count the backlogs: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (Backlog, error) {
		var b Backlog
		var oldest *time.Time
		err := row.Scan(&b.EndpointID, &b.Pending, &oldest, &b.DeadLetters)
		b.OldestPending = orZero(oldest)
		return b, err
	})
	if err != nil {
		return nil, fmt.Errorf("count the backlogs: %w", err)
	}
	return all, nil
}

// $1 deliveries counted of a lane at most, $2 of all. The lanes are looked up one by one: to read the table, or the ready ones
// by their index, is to read all that a held snapshot keeps of them.
const queueFigures = `
WITH live AS MATERIALIZED (
    SELECT l.lane_id, l.ready_at, l.first_at, l.inflight, l.open_until
    FROM postrider.endpoint e
    CROSS JOIN LATERAL (SELECT * FROM postrider.lane WHERE lane_id = e.lane_id ORDER BY moved_at DESC LIMIT 1) l
    WHERE e.lane_id IS NOT NULL
), ready AS MATERIALIZED (
    SELECT lane_id, first_at FROM live WHERE ready_at <= now() AND NOT ` + stopped + ` ORDER BY ready_at
)
SELECT (SELECT count(*) FROM (SELECT FROM ready l CROSS JOIN LATERAL (
            SELECT FROM postrider.delivery d
            WHERE d.lane_id = l.lane_id AND d.available_at >= ` + searchFrom + ` AND d.available_at <= now() AND d.claim_token IS NULL LIMIT $1) d LIMIT $2) AS bounded)::int,
       (SELECT min(first.available_at) FROM (SELECT * FROM ready LIMIT 1000) l
        CROSS JOIN LATERAL (
            SELECT available_at FROM postrider.delivery d
            WHERE d.lane_id = l.lane_id AND d.available_at >= ` + searchFrom + ` AND d.available_at <= now() AND d.claim_token IS NULL ORDER BY available_at, id LIMIT 1) first),
       ((SELECT coalesce(sum(inflight), 0) FROM live) +
        (SELECT coalesce(sum(inflight), 0) FROM postrider.lane WHERE cancelled_at IS NOT NULL))::int,
       (SELECT count(*) FROM live WHERE open_until IS NOT NULL)::int,
       (SELECT count(*) FROM (SELECT FROM postrider.dead_letter LIMIT $2) AS bounded)::int,
       (SELECT coalesce(min(n) FILTER (WHERE NOT there), 8) - 1
        FROM generate_series(1, 7) AS n CROSS JOIN LATERAL (
            SELECT to_regclass('postrider.event_' || suffix) IS NOT NULL AND to_regclass('postrider.attempt_' || suffix) IS NOT NULL AS there
            FROM to_char((now() AT TIME ZONE 'UTC')::date + n, 'YYYYMMDD') AS suffix) day)::int,
       ` + stopped + `, (SELECT count(*) FROM postrider.pause WHERE namespace <> '' AND paused_at IS NOT NULL)::int,
       now()`

// figureLimit bounds QueueFigures.Claimable and DeadLetters: counting must not become a transaction that is felt.
const figureLimit = 100_000

// QueueFigures measures the queue as a whole. It reads every lane once, about a millisecond for a thousand: ask every ten
// seconds or so.
func (s *Store) QueueFigures(ctx context.Context) (QueueFigures, error) {
	var f QueueFigures
	var oldest *time.Time
	if err := s.pool.QueryRow(ctx, queueFigures, CountLimit, figureLimit).
		Scan(&f.Claimable, &oldest, &f.InFlight, &f.OpenCircuits, &f.DeadLetters, &f.DaysAhead, &f.Paused, &f.PausedNamespaces, &f.At); err != nil {
		return QueueFigures{}, fmt.Errorf("measure the queue: %w", err)
	}
	f.OldestDue = orZero(oldest)
	return f, nil
}

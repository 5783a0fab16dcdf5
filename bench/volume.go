package main

import (
	"context"
	"fmt"
	"time"

	"github.com/postrider/postrider/bench/sink"
)

// What much waiting work, and a long history, do to the rate.

// perPendingLane is how many deliveries wait for each of the endpoints that they are spread over.
const perPendingLane = 100

// manyPending drains a queue beside deliveries that wait: half of them for a retry hours away, half at paused endpoints.
func manyPending(ctx context.Context, r *run) error {
	return r.inPlace(ctx, "pending", func(ctx context.Context, db *database) error {
		return db.addPending(ctx, r.plan.pending)
	}, "drain_many_pending_per_s")
}

// longHistory drains a queue whose tables of attempts and events are full of the day's history.
func longHistory(ctx context.Context, r *run) error {
	return r.inPlace(ctx, "history", func(ctx context.Context, db *database) error {
		return db.addHistory(ctx, r.plan.history)
	}, "drain_long_history_per_s")
}

// inPlace drains in a database that is filled once for all rounds: it is too large to be copied for each.
func (r *run) inPlace(ctx context.Context, name string, fill func(context.Context, *database) error, key string) error {
	began := time.Now()
	t, err := r.prepare(ctx, name, migrated(func(ctx context.Context, db *database) error {
		if err := db.apply(ctx, layout{name: name, groups: thousand.groups}); err != nil {
			return err
		}
		return fill(ctx, db)
	}))
	if err != nil {
		return err
	}
	if took := time.Since(began); took > time.Second {
		say(r.progress, "filled the database %q in %s", name, took.Round(time.Second))
	}
	db, err := r.connect(ctx, t)
	if err != nil {
		return err
	}
	defer func() { _ = db.conn.Close(context.WithoutCancel(ctx)) }()
	if err := db.exec(ctx, `CHECKPOINT`); err != nil {
		return err
	}
	d, err := r.drainAll(ctx, db, db.endpoints, sink.OK, r.plan.drain)
	if err != nil {
		return err
	}
	r.note(key, d.perSecond)
	return nil
}

// addPending adds endpoints that nobody sends to now, each with perPendingLane deliveries. They are rows that the
// controller would have written, for other names; their keys open for nobody, and need not.
func (db *database) addPending(ctx context.Context, n int) error {
	const copyEndpoints = `
		INSERT INTO postrider.endpoint (public_id, namespace, name, namespace_uid, uid, generation, state, url, event_types, timeout,
		    max_concurrency, ordered, payload, max_attempts, max_duration, backoff_base, backoff_factor, backoff_cap,
		    failure_threshold, cooldown, max_cooldown, key_sealed, key_fingerprint, key_expires_at)
		SELECT gen_random_uuid(), 'waiting', 'w' || n, namespace_uid, 'w' || n, 1, CASE WHEN n % 2 = 0 THEN 'Paused' ELSE state END, url,
		    event_types, timeout, max_concurrency, ordered, payload, max_attempts, max_duration, backoff_base, backoff_factor, backoff_cap,
		    failure_threshold, cooldown, max_cooldown, key_sealed, key_fingerprint, key_expires_at
		FROM (SELECT * FROM postrider.endpoint ORDER BY endpoint_id LIMIT 1) one, generate_series(1, $1) n`
	if _, err := db.conn.Exec(ctx, copyEndpoints, n/perPendingLane); err != nil {
		return fmt.Errorf("add endpoints: %w", err)
	}
	if err := db.addEvents(ctx, []int64{}); err != nil {
		return err
	}
	const waiting = `FROM postrider.endpoint WHERE namespace = 'waiting'`
	return db.exec(ctx,
		`INSERT INTO postrider.lane (endpoint_id, version, ordered, max_inflight, threshold, cooldown_min, cooldown_max, max_duration, paused, due_at)
			SELECT endpoint_id, version, ordered, max_concurrency, failure_threshold, cooldown, max_cooldown, max_duration, state = 'Paused',
			       now() + CASE WHEN state = 'Paused' THEN interval '0' ELSE interval '6 h' END `+waiting,
		`UPDATE postrider.endpoint e SET lane_id = l.lane_id FROM postrider.lane l WHERE l.endpoint_id = e.endpoint_id AND e.namespace = 'waiting'`,
		fmt.Sprintf(`WITH e AS MATERIALIZED (SELECT array_agg(id) AS ids FROM postrider.event)
			INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, attempt)
			SELECT l.lane_id, l.endpoint_id, e.ids[1 + n %% 1000], now() + CASE WHEN l.paused THEN interval '0' ELSE interval '6 h' END, 1
			FROM generate_series(1, %d) n, e, (SELECT lane_id, endpoint_id, paused FROM postrider.lane WHERE endpoint_id IN (SELECT endpoint_id %s)) l`,
			perPendingLane, waiting),
		`VACUUM ANALYZE`)
}

// addHistory adds n attempts of today and a tenth as many of their events, with short bodies so that the disk holds them.
// The index comes last, which is many times faster.
func (db *database) addHistory(ctx context.Context, n int) error {
	const events = 10
	partition, err := ask[string](ctx, db, `SELECT 'postrider.attempt_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')`)
	if err != nil {
		return err
	}
	bounds, err := ask[string](ctx, db, `SELECT pg_get_expr(relpartbound, oid) FROM pg_class WHERE oid = $1::regclass`, partition)
	if err != nil {
		return err
	}
	index, err := ask[string](ctx, db, `SELECT indexrelid::regclass::text FROM pg_index WHERE indrelid = $1::regclass`, partition)
	if err != nil {
		return err
	}
	return db.exec(ctx,
		`ALTER TABLE postrider.attempt DETACH PARTITION `+partition,
		`DROP INDEX `+index,
		// Ids ascend with time, as those of UUIDv7 do, and come before those of today's events.
		fmt.Sprintf(`INSERT INTO %s (at, event_id, endpoint_id, replay_no, number, outcome, status, duration_ms)
			SELECT date_trunc('day', now()) + n * interval '1 us', ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 1 + n %% 1000, 0, 1, 'delivered', 200, 12
			FROM generate_series(1, %d) n`, partition, n),
		`CREATE INDEX ON `+partition+` (event_id)`,
		`ALTER TABLE postrider.attempt ATTACH PARTITION `+partition+` `+bounds,
		fmt.Sprintf(`INSERT INTO postrider.event (id, namespace, namespace_uid, type, content_type, body, endpoint_ids)
			SELECT (left(postrider.uuid7_floor(date_trunc('day', now()) + n * interval '1 us')::text, 24) || lpad(to_hex(n), 12, '0'))::uuid,
			       'bench', '%s', 'load.bulk', 'application/json', '{}', '{1}'
			FROM generate_series(1, %d) n`, namespaceUID, n/events),
		`VACUUM ANALYZE`)
}

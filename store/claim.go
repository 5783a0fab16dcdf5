package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// All times are now(), the transaction's start: never later than the truth, so leases and tokens err on the safe side.

// reap frees ended leases of locked lanes ($1) and recounts what is in flight: afterwards they are ordinary unclaimed
// rows, and whoever held them is fenced. The scan ends once all the lane's claimed rows were seen.
// SKIP LOCKED: a completion may hold a row and wait for our lane; it will subtract the row itself.
const reap = `
WITH held AS MATERIALIZED (
    SELECT h.id, h.lane_id, h.lease_until
    FROM ` + latestLanes + `
    CROSS JOIN LATERAL (
        SELECT d.id, d.lane_id, d.lease_until FROM postrider.delivery d
        WHERE d.lane_id = l.lane_id AND d.available_at >= ` + searchFrom + ` AND d.available_at < 'infinity' AND d.claim_token IS NOT NULL
        ORDER BY d.available_at, d.id LIMIT l.inflight) h
), ended AS MATERIALIZED (
    SELECT id FROM postrider.delivery
    WHERE id = ANY(ARRAY(SELECT id FROM held WHERE lease_until <= now())) AND lease_until <= now()
    FOR UPDATE SKIP LOCKED
), freed AS (
    UPDATE postrider.delivery SET claim_token = NULL, lease_until = NULL
    WHERE id = ANY(ARRAY(SELECT id FROM ended)) RETURNING id, lane_id, available_at
), counted AS (
    SELECT l.tid, count(h.id) - count(f.id) AS inflight, count(f.id) AS freed,
           min(h.lease_until) FILTER (WHERE f.id IS NULL) AS lease_end
    FROM ` + latestLanes + `
    LEFT JOIN held h ON h.lane_id = l.lane_id
    LEFT JOIN freed f ON f.id = h.id
    GROUP BY l.tid
), recounted AS (
    UPDATE postrider.lane l
    SET inflight = c.inflight, lease_end = c.lease_end,
        due_at = CASE WHEN c.freed > 0 THEN least(l.due_at, now()) ELSE l.due_at END,
        ` + moved + `
    FROM counted c
    WHERE l.ctid = c.tid
)
SELECT coalesce(sum(freed), 0)::int FROM counted`

// take claims. $1 lanes (locked), $2 deliveries at most of a lane, $3 a random token for the batch, $4 lease,
// $5 lanes with a bound of their own, $6 these bounds.
const take = `
WITH turn AS MATERIALIZED (
    -- What each lane may have: its quantum, free concurrency, tokens there by now, one if it probes.
    SELECT l.tid, l.lane_id, l.version, l.resumed_at, l.open_until IS NOT NULL AS probe, full_at.token_at,
           ` + searchFrom + ` AS search_from,
           greatest(0, least($2::int, cap.bound, l.max_inflight - l.inflight,
               1 + floor(extract(epoch FROM now() - full_at.token_at) * l.rate)::int,
               CASE WHEN l.open_until IS NOT NULL THEN 1 END)) AS may
    FROM ` + latestLanes + `
    LEFT JOIN unnest($5::bigint[], $6::int[]) AS cap(lane_id, bound) ON cap.lane_id = l.lane_id
    -- A bucket never holds more than its burst: its first token is at most burst - 1 tokens old. Rounded up, and a
    -- microsecond more for the fractions of floats: of a burst of 6 a hair too little is 5.
    CROSS JOIN LATERAL (SELECT CASE WHEN l.rate IS NOT NULL THEN
        greatest(l.token_at, now() - (ceil((l.burst - 1) / l.rate * 1e6) + 1) * interval '1 us') END AS token_at) full_at
    WHERE l.ready_at <= now() AND NOT ` + stopped + ` -- by now: the locks may have been waited for
), taken AS (
    UPDATE postrider.delivery SET attempt = attempt + 1, claim_token = $3::uuid, lease_until = now() + $4::interval
    WHERE id = ANY(ARRAY(
        SELECT d.id FROM turn CROSS JOIN LATERAL (
            SELECT id FROM postrider.delivery
            WHERE lane_id = turn.lane_id AND available_at >= turn.search_from AND available_at <= now() AND claim_token IS NULL
            ORDER BY available_at, id LIMIT turn.may) d))
    RETURNING id, lane_id, endpoint_id, event_id, replay_no, attempt, ordering_key, accepted_at
), counted AS MATERIALIZED (
    SELECT t.*, count(k.id)::int AS got FROM turn t LEFT JOIN taken k USING (lane_id)
    GROUP BY t.tid, t.lane_id, t.version, t.resumed_at, t.probe, t.token_at, t.search_from, t.may
), turned AS (
    UPDATE postrider.lane l
    SET inflight = l.inflight + c.got,
        lease_end = CASE WHEN c.got > 0 THEN least(l.lease_end, now() + $4::interval) ELSE l.lease_end END,
        -- Rounded up: 1 / rate to the nearest microsecond adds up to a token too many.
        token_at = c.token_at + ceil(c.got / l.rate * 1e6) * interval '1 us',
        -- A probe holds its lane until its result, or until its lease ends without one.
        open_until = CASE WHEN c.probe AND c.got > 0 THEN now() + $4::interval ELSE l.open_until END,
        probe_token = CASE WHEN c.probe AND c.got > 0 THEN $3::uuid ELSE l.probe_token END,
        -- Took all it might: more is likely, to the back of the round robin. Else the next due row, if any.
        due_at = CASE WHEN c.got = c.may THEN now() ELSE coalesce((
            SELECT d.available_at FROM postrider.delivery d
            WHERE d.lane_id = l.lane_id AND d.available_at > now()
            ORDER BY d.available_at LIMIT 1), 'infinity') END,
        -- Now and then: what is in flight counts, since it may come back to where it was.
        first_at = CASE WHEN l.first_at < now() - interval '200 ms' THEN least(now() - ` + lateCommit + `, (
            SELECT d.available_at FROM postrider.delivery d
            WHERE d.lane_id = l.lane_id AND d.available_at >= c.search_from
            ORDER BY d.available_at LIMIT 1)) ELSE l.first_at END,
        ` + moved + `
    FROM counted c
    WHERE l.ctid = c.tid
    RETURNING l.ready_at
)
SELECT k.id, k.lane_id, k.endpoint_id, t.version, k.event_id, k.replay_no, k.attempt, coalesce(k.ordering_key, ''),
       k.accepted_at, greatest(k.accepted_at, t.resumed_at, ` + stoppedUntil + `), t.probe,
       b.type, b.content_type, coalesce(b.traceparent, ''), b.headers, b.body,
       (SELECT bool_or(ready_at <= now()) FROM turned)
FROM taken k
JOIN turn t USING (lane_id)
-- Row by row, pinned only where the event is gone: a join would read all of pinned_event for every claim.
LEFT JOIN LATERAL (
    SELECT type, content_type, traceparent, headers, body FROM postrider.event WHERE id = k.event_id
    UNION ALL
    SELECT type, content_type, traceparent, headers, body FROM postrider.pinned_event WHERE id = k.event_id
    LIMIT 1) b ON true`

// Claim takes due deliveries of ready lanes, in turn, and commits before it returns: two round trips.
//
// Two statements, because a statement's snapshot is older than the locks it takes: reading the deliveries in the
// statement that locks the lane misses what a completion or an accept committed just before, and the claim would then
// park the lane over it.
func (s *Store) Claim(ctx context.Context, r ClaimRequest) (batch Batch, err error) {
	lanes := min(r.Lanes, r.Budget)
	if lanes <= 0 {
		return Batch{}, nil
	}
	exclude := r.Exclude
	if exclude == nil {
		exclude = []int64{}
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return Batch{}, fmt.Errorf("claim: %w", err)
	}
	defer finish(ctx, conn, &err)
	if err = s.learnNotes(ctx, conn); err != nil {
		return Batch{}, fmt.Errorf("claim: %w", err)
	}

	ready, err := s.lockForClaim(ctx, conn, lanes, exclude)
	if err != nil {
		return Batch{}, fmt.Errorf("claim: lock ready lanes: %w", err)
	}
	if len(ready.ids) == 0 || ready.paused {
		if _, err = conn.Exec(ctx, "commit"); err != nil {
			return Batch{}, fmt.Errorf("claim: %w", err)
		}
		return Batch{At: ready.at, Paused: ready.paused}, nil
	}
	batch, err = s.take(ctx, conn, r, ready.ids, ready.expired)
	if err != nil {
		return Batch{}, fmt.Errorf("claim: take deliveries: %w", err)
	}
	batch.At = ready.at
	return batch, nil
}

func (s *Store) take(ctx context.Context, conn *pgxpool.Conn, r ClaimRequest, ids, expired []int64) (Batch, error) {
	batch := Batch{Lanes: len(ids), More: len(ids) == min(r.Lanes, r.Budget)}
	capped, bounds := make([]int64, 0, len(r.Caps)), make([]int32, 0, len(r.Caps))
	for lane, bound := range r.Caps {
		capped, bounds = append(capped, lane), append(bounds, int32(min(bound, r.Budget)))
	}
	token := uuid.New()
	quantum := max(1, r.Budget/len(ids))
	if r.PerLane > 0 {
		quantum = min(quantum, r.PerLane)
	}
	b := &pgx.Batch{}
	if len(expired) > 0 {
		b.Queue(reap, expired).QueryRow(func(row pgx.Row) error { return row.Scan(&batch.Reaped) })
	}
	b.Queue(take, ids, quantum, token, r.Lease, capped, bounds).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			c := Claim{Token: token}
			var eventType, contentType *string
			var more bool
			if err := rows.Scan(&c.DeliveryID, &c.LaneID, &c.EndpointID, &c.Version, &c.EventID, &c.ReplayNo, &c.Attempt,
				&c.OrderingKey, &c.AcceptedAt, &c.AgeFrom, &c.Probe,
				&eventType, &contentType, &c.Traceparent, &c.Headers, &c.Body, &more); err != nil {
				return err
			}
			if c.BodyLost = eventType == nil; !c.BodyLost {
				c.EventType, c.ContentType = *eventType, *contentType
			}
			batch.Claims = append(batch.Claims, c)
			batch.More = batch.More || more
		}
		return rows.Err()
	})
	s.commitBriefly(b)
	err := send(ctx, conn, b)
	s.heed(err)
	return batch, err
}

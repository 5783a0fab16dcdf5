package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// All times are now(), the transaction's start: never later than the truth, so leases and tokens err on the safe side.

// lockedLanes are those that this transaction has locked to claim of them, endedLanes those that may hold an ended lease: as
// latestLanes, but handed on by handOn within the database. A subquery, since the planner would take what a setting says
// for what it will always say.
const (
	lockedLanes = latestOf + `(SELECT current_setting('postrider.lanes')::bigint[])` + asLanes
	endedLanes  = latestOf + `(SELECT current_setting('postrider.ended')::bigint[])` + asLanes
)

// reapOf frees ended leases of locked lanes and recounts what is in flight: afterwards they are ordinary unclaimed
// rows, and whoever held them is fenced. The scan ends once all the lane's claimed rows were seen.
// SKIP LOCKED: a completion may hold a row and wait for our lane; it will subtract the row itself.
func reapOf(lanes string) string {
	return `
WITH held AS MATERIALIZED (
    SELECT h.id, h.lane_id, h.lease_until
    FROM ` + lanes + `
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
    FROM ` + lanes + `
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
}

var (
	reap      = reapOf(endedLanes)
	reapGiven = reapOf(latestLanes) // $1
)

// take claims of lockedLanes. $1 deliveries at most, $2 of a lane at most (null: no bound of its own), $3 a random token for
// the batch, $4 lease, $5 lanes with a bound of their own, $6 these bounds.
const take = `
WITH turn AS MATERIALIZED (
    -- What each lane may have: its quantum, free concurrency, tokens there by now, one if it probes.
    SELECT l.tid, l.lane_id, l.version, l.resumed_at, l.open_until IS NOT NULL AS probe, full_at.token_at,
           ` + searchFrom + ` AS search_from,
           greatest(0, least(greatest(1, $1::int / (SELECT cardinality(current_setting('postrider.lanes')::bigint[]))), $2::int, cap.bound, l.max_inflight - l.inflight,
               1 + floor(extract(epoch FROM now() - full_at.token_at) * l.rate)::int,
               CASE WHEN l.open_until IS NOT NULL THEN 1 END)) AS may
    FROM ` + lockedLanes + `
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
       (SELECT set_config('postrider.claimed', 'true', false)::bool AND bool_or(ready_at <= now()) FROM turned) -- once for all
FROM taken k
JOIN turn t USING (lane_id)
-- Row by row, pinned only where the event is gone: a join would read all of pinned_event for every claim.
LEFT JOIN LATERAL (
    SELECT type, content_type, traceparent, headers, body FROM postrider.event WHERE id = k.event_id
    UNION ALL
    SELECT type, content_type, traceparent, headers, body FROM postrider.pinned_event WHERE id = k.event_id
    LIMIT 1) b ON true`

// Claim takes due deliveries of ready lanes, in turn, and commits before it returns: in one round trip, so that no lane stays
// locked while this process waits for a CPU.
//
// In two statements, because a statement's snapshot is older than the locks it takes: reading the deliveries in the
// statement that locks the lane misses what a completion or an accept committed just before, and the claim would then
// park the lane over it. The database hands the lanes on from the one to the other.
func (s *Store) Claim(ctx context.Context, r ClaimRequest) (batch Batch, err error) {
	r.Lanes = min(r.Lanes, r.Budget)
	if r.Lanes <= 0 {
		return Batch{}, nil
	}
	if r.Exclude == nil {
		r.Exclude = []int64{}
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return Batch{}, fmt.Errorf("claim: %w", err)
	}
	defer finish(ctx, conn, &err)
	if err = s.learnNotes(ctx, conn); err != nil {
		return Batch{}, fmt.Errorf("claim: %w", err)
	}
	batch, err = s.claimReady(ctx, conn, &r)
	if err != nil {
		return Batch{}, fmt.Errorf("claim: %w", err)
	}
	return batch, nil
}

// queueTake queues what follows the lock on lanes.
func (s *Store) queueTake(b *pgx.Batch, r *ClaimRequest, reaps bool, batch *Batch) {
	capped, bounds := make([]int64, 0, len(r.Caps)), make([]int32, 0, len(r.Caps))
	for lane, bound := range r.Caps {
		capped, bounds = append(capped, lane), append(bounds, int32(min(bound, r.Budget)))
	}
	var perLane *int
	if r.PerLane > 0 {
		perLane = &r.PerLane
	}
	token := uuid.New()
	if reaps {
		b.Queue(reap).QueryRow(func(row pgx.Row) error { return row.Scan(&batch.Reaped) })
	}
	b.Queue(take, r.Budget, perLane, token, r.Lease, capped, bounds).Query(func(rows pgx.Rows) error {
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
	s.commitBriefly(b, ifClaimed)
}

// ifClaimed: what else a claim has written, the parking of lanes that had nothing, nobody is told of.
const ifClaimed = " WHERE current_setting('postrider.claimed')::bool"

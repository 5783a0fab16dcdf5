package store

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// $1 id[], $2 claim token[]. What does not come back is fenced. Matched by (id, token) and not by id alone: a batch may
// hold a late result beside the result of the claim that followed it. Sorted, as every lock on claimed deliveries is;
// row by row, since a plain join that was planned while the table was empty reads all of it.
const matchClaims = `
SELECT d.id, d.claim_token
FROM (SELECT id, token FROM unnest($1::bigint[], $2::uuid[]) AS t(id, token) ORDER BY id) r
CROSS JOIN LATERAL (SELECT id, claim_token FROM postrider.delivery WHERE id = r.id AND claim_token = r.token FOR UPDATE) d`

// $1 id[] of the delivered and the dead.
const removeDeliveries = `DELETE FROM postrider.delivery WHERE id = ANY($1::bigint[])`

// $1 id[], $2 delay in seconds[] (null: it keeps its place, for a release), $3 attempt numbers given back[].
const reschedule = `
UPDATE postrider.delivery d
SET claim_token = NULL, lease_until = NULL, attempt = d.attempt - r.back,
    available_at = coalesce(now() + r.delay * interval '1 s', d.available_at)
FROM unnest($1::bigint[], $2::float8[], $3::int[]) AS r(id, delay, back)
WHERE d.id = r.id AND d.id = ANY($1::bigint[])`

// One row per attempt made; a release made none.
const recordAttempts = `
INSERT INTO postrider.attempt (at, event_id, endpoint_id, replay_no, number, outcome, status, reason, duration_ms, retry_at, response)
SELECT now(), r.event_id, r.endpoint_id, r.replay_no, r.number, r.outcome, nullif(r.status, 0), nullif(r.reason, ''), r.duration_ms,
       now() + r.delay * interval '1 s', r.response
FROM unnest($1::uuid[], $2::bigint[], $3::int[], $4::int[], $5::text[], $6::int[], $7::text[], $8::int[], $9::float8[], $10::bytea[])
     AS r(event_id, endpoint_id, replay_no, number, outcome, status, reason, duration_ms, delay, response)`

// $1 event[] of the dead. Sorted: two completions pinning the same events must meet in one order.
const pinEvents = `
INSERT INTO postrider.pinned_event
SELECT * FROM postrider.event WHERE id = ANY($1::uuid[]) ORDER BY id
ON CONFLICT (id) DO NOTHING`

const buryDeliveries = `
INSERT INTO postrider.dead_letter (endpoint_id, event_id, replay_no, reason, status, attempts, accepted_at)
SELECT r.endpoint_id, r.event_id, r.replay_no, r.reason, nullif(r.status, 0), r.attempts, r.accepted_at
FROM unnest($1::bigint[], $2::uuid[], $3::int[], $4::text[], $5::int[], $6::int[], $7::timestamptz[])
     AS r(endpoint_id, event_id, replay_no, reason, status, attempts, accepted_at)`

// $1 endpoint[], $2 how old a success may be: the endpoints to which another success is no news. One of the future is of a
// clock that was set back since.
const noNews = `
SELECT wanted.endpoint_id FROM (SELECT unnest($1::bigint[]) AS endpoint_id) wanted
CROSS JOIN LATERAL (
    SELECT failures, last_success_at FROM postrider.endpoint_status WHERE endpoint_id = wanted.endpoint_id ORDER BY moved_at DESC LIMIT 1) l
WHERE l.failures = 0 AND l.last_success_at > now() - $2::interval AND l.last_success_at <= now() + $2`

// $1 endpoint[], of which a success was said to be no news. It was if a failure was recorded meanwhile. After lockLanes: what
// another completion said of them is committed by now, or comes after us.
const newsAfterAll = `
SELECT wanted.endpoint_id FROM (SELECT unnest($1::bigint[]) AS endpoint_id) wanted
CROSS JOIN LATERAL (
    SELECT failures FROM postrider.endpoint_status WHERE endpoint_id = wanted.endpoint_id ORDER BY moved_at DESC LIMIT 1) l
WHERE l.failures > 0`

// $1 endpoint[]. Sorted, as every lock on statuses is.
const lockStatuses = `
SELECT FROM (SELECT DISTINCT unnest($1::bigint[]) AS endpoint_id ORDER BY 1) wanted
CROSS JOIN LATERAL (
    SELECT FROM postrider.endpoint_status WHERE endpoint_id = wanted.endpoint_id ORDER BY moved_at DESC LIMIT 1 FOR NO KEY UPDATE) l`

// After lockStatuses. One row per endpoint of the batch; failures: those after its last success in the batch. Every endpoint
// has its status row from the start (migration 3), or the first news of two endpoints could be written in two orders.
const noteStatus = `
UPDATE postrider.endpoint_status l SET
    last_success_at = CASE WHEN r.ok THEN now() ELSE l.last_success_at END,
    failures = r.failures + CASE WHEN r.ok THEN 0 ELSE l.failures END,
    last_failure_at = CASE WHEN r.failed THEN now() ELSE l.last_failure_at END,
    last_failure_event = CASE WHEN r.failed THEN r.event_id ELSE l.last_failure_event END,
    last_failure_status = CASE WHEN r.failed THEN nullif(r.status, 0) ELSE l.last_failure_status END,
    last_failure_reason = CASE WHEN r.failed THEN r.reason ELSE l.last_failure_reason END,
    last_failure_message = CASE WHEN r.failed THEN r.message ELSE l.last_failure_message END,
    updated_at = now(),
    ` + moved + `
FROM unnest($1::bigint[], $2::bool[], $3::bool[], $4::int[], $5::uuid[], $6::int[], $7::text[], $8::text[])
     AS r(endpoint_id, ok, failed, failures, event_id, status, reason, message)
CROSS JOIN LATERAL (
    SELECT ctid AS tid FROM postrider.endpoint_status WHERE endpoint_id = r.endpoint_id ORDER BY moved_at DESC LIMIT 1) latest
WHERE l.ctid = latest.tid`

// After lockLanes. $1 lane[], $2 token[], $3 endpoint version[], $4 what it means to the circuit[], in order of arrival,
// $5 seconds until the lane must be looked at[] (the retry's delay; 0 for a release and for the removal of a keyed row;
// else null), $6 gone[]. Only results sent under the lane's present version move the circuit, and while it is open only
// the probe's does.
const settleLanes = `
WITH old AS MATERIALIZED (
    SELECT l.* FROM ` + latestLanes + `
), result AS (
    SELECT r.*, old.version = r.version AS current, r.token = old.probe_token AS probe
    FROM unnest($1::bigint[], $2::uuid[], $3::bigint[], $4::text[], $5::float8[], $6::bool[])
         WITH ORDINALITY AS r(lane_id, token, version, sign, delay, gone, n)
    JOIN old USING (lane_id)
), marked AS (
    SELECT *, coalesce(max(n) FILTER (WHERE current AND sign = 'answered') OVER (PARTITION BY lane_id), 0) AS last_ok
    FROM result
), change AS MATERIALIZED (
    SELECT lane_id, count(*)::int AS ended,
           now() + min(delay) * interval '1 s' AS due_at,
           max(last_ok) > 0 AS ok,
           count(*) FILTER (WHERE current AND sign = 'failed' AND n > last_ok)::int AS fails,
           max(sign) FILTER (WHERE probe) AS probe,
           bool_or(gone AND current) AS gone
    FROM marked GROUP BY lane_id
), next AS MATERIALIZED (
    SELECT c.*, old.tid, old.open_until IS NULL AS closed, CASE WHEN c.ok THEN c.fails ELSE old.fails + c.fails END AS run,
           least(old.cooldown_max, greatest(old.cooldown_min, old.cooldown * 2)) AS longer
    FROM change c JOIN old USING (lane_id)
)
UPDATE postrider.lane l
SET inflight = l.inflight - c.ended,
    lease_end = CASE WHEN l.inflight > c.ended THEN l.lease_end END,
    due_at = least(` + turnAfterHold + `, c.due_at),
    first_at = least(l.first_at, now()), -- what this transaction has rescheduled or promoted became available then or later
    gone_at = CASE WHEN c.gone THEN coalesce(l.gone_at, now()) ELSE l.gone_at END,
    fails = CASE WHEN c.closed THEN c.run WHEN c.probe = 'answered' THEN 0 ELSE l.fails END,
    open_until = CASE
        WHEN c.closed AND c.fails > 0 AND c.run >= l.threshold THEN now() + l.cooldown_min
        WHEN c.probe = 'answered' THEN NULL
        WHEN c.probe = 'failed' THEN now() + c.longer
        WHEN c.probe = 'none' THEN now()
        ELSE l.open_until END,
    cooldown = CASE
        WHEN c.closed AND c.fails > 0 AND c.run >= l.threshold THEN l.cooldown_min
        WHEN c.probe = 'answered' THEN interval '0'
        WHEN c.probe = 'failed' THEN c.longer
        ELSE l.cooldown END,
    probe_token = CASE WHEN c.probe IS NULL THEN l.probe_token END,
    ` + moved + `
FROM next c
WHERE l.ctid = c.tid
RETURNING l.lane_id, l.ready_at <= now()`

// Complete records results, 500 at most, in one transaction, and commits before it returns. Claimed rows are locked
// first and lanes last, so that a lane is held for a moment only.
//
// An error means that nothing is known to be recorded; repeating the same results is harmless, since their tokens no
// longer match once they are. A result whose values the database refuses fails alone: Recorded.Err.
func (s *Store) Complete(ctx context.Context, results []Result) ([]Recorded, error) {
	recorded := make([]Recorded, len(results))
	all := make([]int, len(results))
	for i := range all {
		all[i] = i
	}
	if err := s.completeOrSplit(ctx, results, all, recorded); err != nil {
		return nil, err
	}
	return recorded, nil
}

// completeOrSplit records the results at some indices; where the database refuses a value, each half is tried alone.
func (s *Store) completeOrSplit(ctx context.Context, results []Result, at []int, recorded []Recorded) error {
	if len(at) == 0 {
		return nil
	}
	err := s.completeTogether(ctx, results, at, recorded)
	switch {
	case err == nil:
		return nil
	case !badRow(err):
		return fmt.Errorf("record results: %w", err)
	case len(at) == 1:
		recorded[at[0]].Err = fmt.Errorf("record the result of delivery %d: %w", results[at[0]].Claim.DeliveryID, err)
		return nil
	}
	half := len(at) / 2
	if err := s.completeOrSplit(ctx, results, at[:half], recorded); err != nil {
		return err
	}
	return s.completeOrSplit(ctx, results, at[half:], recorded)
}

type claimKey struct {
	id    int64
	token uuid.UUID
}

func (s *Store) completeTogether(ctx context.Context, results []Result, at []int, recorded []Recorded) (err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer finish(ctx, conn, &err)
	if err = s.learnNotes(ctx, conn); err != nil {
		return err
	}
	for _, i := range at {
		recorded[i] = Recorded{Fenced: true}
	}
	known := successes(results, at)
	at, err = matchOwned(ctx, conn, results, at, known)
	if err != nil || len(at) == 0 {
		return err
	}
	var c completion
	for _, i := range at {
		recorded[i] = Recorded{}
		c.add(&results[i])
	}
	c.leaveOut(known)
	ready := map[int64]bool{}
	b := &pgx.Batch{}
	c.queue(b, ready)
	s.commitBriefly(b, "")
	if err = send(ctx, conn, b); err != nil {
		s.heed(err)
		return err
	}
	for _, i := range at {
		recorded[i].Ready = ready[results[i].Claim.LaneID]
	}
	return s.noteLate(ctx, conn, c.late)
}

// noteLate writes down the successes that were news after all, in a transaction of its own: statuses are locked before lanes.
// An error has the results recorded once more, to no effect, and the next success writes the same down.
func (s *Store) noteLate(ctx context.Context, conn *pgxpool.Conn, endpoints []int64) error {
	if len(endpoints) == 0 {
		return nil
	}
	news := completion{status: map[int64]*endpointNews{}}
	for _, id := range endpoints {
		news.status[id] = &endpointNews{ok: true}
	}
	b := &pgx.Batch{}
	beginBriefly(b)
	news.queueStatus(b)
	b.Queue("commit")
	return send(ctx, conn, b)
}

// matchOwned begins the transaction, locks the deliveries whose claims still stand, and returns the indices of their
// results, each once: a repeated result must not be counted against the lane twice. If there are none, there is no
// transaction.
//
// A row whose claim ended while we waited for it is not among them, and yet it stays locked. Whoever has its lane by now
// would wait for us, as we are about to wait for lanes: so all is let go and matched again without it.
//
// Which of the endpoints in known a success is no news to is filled in on the way.
func matchOwned(ctx context.Context, conn *pgxpool.Conn, results []Result, at []int, known map[int64]bool) ([]int, error) {
	for {
		owned, err := lockMatching(ctx, conn, results, at, known)
		if err != nil {
			return nil, err
		}
		all := len(owned)
		standing, fenced := make([]int, 0, len(at)), 0
		for _, i := range at {
			k := claimKey{results[i].Claim.DeliveryID, results[i].Claim.Token}
			if owned[k] {
				standing = append(standing, i)
				delete(owned, k)
			} else {
				fenced++
			}
		}
		if fenced == 0 {
			return standing, nil
		}
		if _, err := conn.Exec(ctx, "rollback"); err != nil || all == 0 {
			return nil, err
		}
		at = standing
	}
}

// lockMatching begins a transaction and locks the deliveries whose claims still stand.
func lockMatching(ctx context.Context, conn *pgxpool.Conn, results []Result, at []int, known map[int64]bool) (map[claimKey]bool, error) {
	ids, tokens := make([]int64, len(at)), make([]uuid.UUID, len(at))
	for n, i := range at {
		ids[n], tokens[n] = results[i].Claim.DeliveryID, results[i].Claim.Token
	}
	owned := make(map[claimKey]bool, len(at))
	for id := range known {
		known[id] = false // it was true in an earlier round, at most
	}
	b := &pgx.Batch{}
	beginBriefly(b)
	b.Queue(matchClaims, ids, tokens).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var k claimKey
			if err := rows.Scan(&k.id, &k.token); err != nil {
				return err
			}
			owned[k] = true
		}
		return rows.Err()
	})
	if len(known) > 0 {
		b.Queue(noNews, slices.Collect(maps.Keys(known)), SuccessStep).Query(func(rows pgx.Rows) error {
			var id int64
			_, err := pgx.ForEachRow(rows, []any{&id}, func() error { known[id] = true; return nil })
			return err
		})
	}
	return owned, send(ctx, conn, b)
}

// successes are the endpoints of some results that all succeeded.
func successes(results []Result, at []int) map[int64]bool {
	all, failed := map[int64]bool{}, map[int64]bool{}
	for _, i := range at {
		switch r := &results[i]; r.Verdict {
		case Delivered:
			all[r.Claim.EndpointID] = false
		case Released:
		default:
			failed[r.Claim.EndpointID] = true
		}
	}
	for id := range failed {
		delete(all, id)
	}
	return all
}

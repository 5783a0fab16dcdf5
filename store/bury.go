package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Reasons of dead letters that the chores write.
const (
	reasonCancelled = "Cancelled" // the endpoint was disabled or deleted
	reasonExpired   = "Expired"   // older than maxDuration while the circuit was open
)

// letsExpire tells of a lane l that its backlog dies of age. A max_duration of 0 means one attempt, which is still due.
const letsExpire = `l.open_until IS NOT NULL AND l.cancelled_at IS NULL AND l.gone_at IS NULL AND NOT l.paused AND NOT l.blocked
    AND l.max_duration > '0' AND coalesce(greatest(l.resumed_at, ` + stoppedUntil + `), '-infinity') <= now() - l.max_duration
    AND NOT ` + stopped

// Candidates are found without a lock, $1 rows at most; their events are pinned and their endpoints marked before any
// lane is locked, in the order that completions take them in. Then the lanes, then the rows that are still unclaimed.
// What is in flight must not take the place of what waits behind it.
const (
	cancelledRows = `
SELECT d.id, d.lane_id, d.endpoint_id, d.event_id, ''
FROM (SELECT lane_id FROM postrider.lane l WHERE cancelled_at IS NOT NULL
        AND (SELECT true FROM postrider.delivery WHERE lane_id = l.lane_id AND (claim_token IS NULL OR lease_until <= now()) LIMIT 1)
      ORDER BY lane_id LIMIT 16) l
CROSS JOIN LATERAL (
    SELECT * FROM postrider.delivery WHERE lane_id = l.lane_id AND (claim_token IS NULL OR lease_until <= now()) LIMIT $1) d
LIMIT $1`

	// The backlog of an open circuit dies of age; otherwise age is judged after a failed attempt. In an ordered lane the
	// visible rows, one a key, are looked through, and the $1 oldest followers; elsewhere a row that became available after
	// the deadline cannot have been accepted before it, but for retried ones: these are found once their retry is that old too.
	expiredRows = `
SELECT d.id, d.lane_id, d.endpoint_id, d.event_id, coalesce(d.ordering_key, '')
FROM (SELECT lane_id, ordered, max_duration FROM postrider.lane l WHERE ` + letsExpire + `) l
CROSS JOIN LATERAL (
    (SELECT id, lane_id, endpoint_id, event_id, ordering_key FROM postrider.delivery
     WHERE lane_id = l.lane_id AND claim_token IS NULL AND accepted_at <= now() - l.max_duration
       AND available_at <= CASE WHEN l.ordered THEN timestamptz '9999-01-01' ELSE now() - l.max_duration END
     ORDER BY available_at, id LIMIT $1)
    UNION ALL
    SELECT id, lane_id, endpoint_id, event_id, ordering_key FROM (
        SELECT * FROM postrider.delivery WHERE lane_id = l.lane_id AND available_at = 'infinity' ORDER BY id LIMIT $1) follower
    WHERE accepted_at <= now() - l.max_duration) d
LIMIT $1`
)

// After lockStatuses. $1 endpoint[]. Marks them dirty for the status feed.
const markStatuses = `
UPDATE postrider.endpoint_status l SET updated_at = now(), ` + moved + `
FROM (SELECT DISTINCT unnest($1::bigint[]) AS endpoint_id) wanted
CROSS JOIN LATERAL (
    SELECT ctid AS tid FROM postrider.endpoint_status WHERE endpoint_id = wanted.endpoint_id ORDER BY moved_at DESC LIMIT 1) latest
WHERE l.ctid = latest.tid`

// Only under the lanes' locks: an unclaimed row is theirs. What was claimed meanwhile is left, and of what was about to
// expire all whose lane was paused, changed or closed its circuit meanwhile. Cancelling is for ever.
const (
	buryCancelled = deleteUnclaimed + buryRemoved
	buryExpired   = deleteUnclaimed + `AND (SELECT ` + letsExpire + ` AND d.accepted_at <= now() - l.max_duration
        FROM postrider.lane l WHERE l.lane_id = d.lane_id)` + buryRemoved
)

// $1 id[], $2 reason.
const (
	deleteUnclaimed = `
WITH removed AS (
    DELETE FROM postrider.delivery d WHERE id = ANY($1::bigint[]) AND claim_token IS NULL
    `
	buryRemoved = `
    RETURNING endpoint_id, event_id, replay_no, attempt, accepted_at
), buried AS (
    INSERT INTO postrider.dead_letter (endpoint_id, event_id, replay_no, reason, attempts, accepted_at)
    SELECT endpoint_id, event_id, replay_no, $2, attempt, accepted_at FROM removed
)
SELECT count(*)::int FROM removed`
)

// A cancelled lane stays for as long as an accept that saw it alive may run, and then some.
const removeLanes = `
DELETE FROM postrider.lane WHERE lane_id = ANY(ARRAY(
    SELECT lane_id FROM postrider.lane l
    WHERE cancelled_at < now() - interval '1 h' AND NOT EXISTS (SELECT FROM postrider.delivery d WHERE d.lane_id = l.lane_id)
    LIMIT 100))`

// BuryCancelled turns what waits in cancelled lanes into dead letters, n at most. Claimed rows end with their claim.
func (s *Store) BuryCancelled(ctx context.Context, n int) (buried int, err error) {
	err = s.asChore(ctx, choreCancel, func(tx pgx.Tx) error {
		if buried, err = bury(ctx, tx, cancelledRows, buryCancelled, n, reasonCancelled); err != nil || buried > 0 {
			return err
		}
		_, err := tx.Exec(ctx, removeLanes)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("bury what was cancelled: %w", err)
	}
	return buried, nil
}

// ExpireBacklogs turns what outlived its maxDuration behind an open circuit into dead letters, n at most.
func (s *Store) ExpireBacklogs(ctx context.Context, n int) (buried int, err error) {
	err = s.asChore(ctx, choreExpire, func(tx pgx.Tx) error {
		buried, err = bury(ctx, tx, expiredRows, buryExpired, n, reasonExpired)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("bury what expired: %w", err)
	}
	return buried, nil
}

func bury(ctx context.Context, tx pgx.Tx, candidates, statement string, n int, reason string) (buried int, err error) {
	rows, err := tx.Query(ctx, candidates, n)
	if err != nil {
		return 0, err
	}
	var ids, lanes, endpoints []int64
	var events []uuid.UUID
	var keyed laneKeys
	var id, lane, endpoint int64
	var event uuid.UUID
	var key string
	if _, err := pgx.ForEachRow(rows, []any{&id, &lane, &endpoint, &event, &key}, func() error {
		ids, lanes, endpoints, events = append(ids, id), append(lanes, lane), append(endpoints, endpoint), append(events, event)
		if key != "" {
			keyed.lane, keyed.key = append(keyed.lane, lane), append(keyed.key, key)
		}
		return nil
	}); err != nil || len(ids) == 0 {
		return 0, err
	}
	b := &pgx.Batch{}
	b.Queue(pinEvents, events)
	b.Queue(lockStatuses, endpoints)
	b.Queue(markStatuses, endpoints)
	b.Queue(lockLanes, lanes)
	b.Queue(reap, lanes)
	b.Queue(statement, ids, reason).QueryRow(func(row pgx.Row) error { return row.Scan(&buried) })
	if len(keyed.key) > 0 {
		b.Queue(promoteKeys, keyed.lane, keyed.key)
		b.Queue(touchLanes, keyed.lane, time.Duration(0))
	}
	return buried, send(ctx, tx, b)
}

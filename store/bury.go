package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
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

// place is where a search for candidates goes on: after a row, in the order of delivery_due.
type place struct {
	lane int64
	at   pgtype.Timestamptz
	id   int64
}

var beginning = place{at: pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}}

// beyond tells of a delivery of a lane l that it comes after the place ($2, $3, $4).
const beyond = `(available_at, id) > (CASE WHEN l.lane_id = $2::bigint THEN $3::timestamptz ELSE '-infinity' END, CASE WHEN l.lane_id = $2 THEN $4::bigint ELSE 0 END)`

// Candidates are found without a lock, $1 rows at most; their events are pinned and their endpoints marked before any
// lane is locked, in the order that completions take them in. Then the lanes, then the rows that are still unclaimed.
// What is in flight must not take the place of what waits behind it.
//
// The search goes on after the last row that was found: from the front it would read again all that earlier chunks have
// deleted, as long as that has not been vacuumed. At the end it begins again, for what came to lie before it.
const (
	cancelledRows = `
SELECT d.id, d.lane_id, d.endpoint_id, d.event_id, '', d.available_at
FROM (SELECT lane_id FROM postrider.lane l WHERE cancelled_at IS NOT NULL AND lane_id >= $2
        AND (SELECT true FROM postrider.delivery WHERE lane_id = l.lane_id AND ` + beyond + ` AND (claim_token IS NULL OR lease_until <= now()) LIMIT 1)
      ORDER BY lane_id) l
CROSS JOIN LATERAL (
    SELECT * FROM postrider.delivery WHERE lane_id = l.lane_id AND ` + beyond + ` AND (claim_token IS NULL OR lease_until <= now())
    ORDER BY available_at, id LIMIT $1) d
LIMIT $1`

	// The backlog of an open circuit dies of age; otherwise age is judged after a failed attempt. In an ordered lane the
	// visible rows, one a key, are looked through, and the $1 oldest followers; elsewhere a row that became available after
	// the deadline cannot have been accepted before it, but for retried ones: these are found once their retry is that old too.
	expiredRows = `
SELECT d.id, d.lane_id, d.endpoint_id, d.event_id, coalesce(d.ordering_key, ''), d.available_at
FROM (SELECT lane_id, ordered, max_duration FROM postrider.lane l WHERE lane_id >= $2 AND ` + letsExpire + ` ORDER BY lane_id) l
CROSS JOIN LATERAL (
    (SELECT id, lane_id, endpoint_id, event_id, ordering_key, available_at FROM postrider.delivery
     WHERE lane_id = l.lane_id AND ` + beyond + ` AND claim_token IS NULL AND accepted_at <= now() - l.max_duration
       AND available_at <= CASE WHEN l.ordered THEN timestamptz '9999-01-01' ELSE now() - l.max_duration END
     ORDER BY available_at, id LIMIT $1)
    UNION ALL
    SELECT id, lane_id, endpoint_id, event_id, ordering_key, available_at FROM (
        SELECT * FROM postrider.delivery
        WHERE lane_id = l.lane_id AND available_at = 'infinity' AND id > CASE WHEN l.lane_id = $2 AND $3 = 'infinity' THEN $4 ELSE 0 END
        ORDER BY id LIMIT $1) follower
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
        FROM postrider.lane l WHERE l.lane_id = d.lane_id ORDER BY moved_at DESC LIMIT 1)` + buryRemoved
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
	buried, err = s.bury(ctx, choreCancel, burial{cancelledRows, buryCancelled, removeLanes, reasonCancelled}, n)
	if err != nil {
		return 0, fmt.Errorf("bury what was cancelled: %w", err)
	}
	return buried, nil
}

// ExpireBacklogs turns what outlived its maxDuration behind an open circuit into dead letters, n at most.
func (s *Store) ExpireBacklogs(ctx context.Context, n int) (buried int, err error) {
	buried, err = s.bury(ctx, choreExpire, burial{expiredRows, buryExpired, "", reasonExpired}, n)
	if err != nil {
		return 0, fmt.Errorf("bury what expired: %w", err)
	}
	return buried, nil
}

// burial is how one kind of rows is buried: the statements that find and bury them, and one for when nothing was.
type burial struct {
	find, bury, otherwise string
	reason                string
}

func (s *Store) bury(ctx context.Context, c chore, how burial, n int) (buried int, err error) {
	s.placesMu.Lock()
	after, known := s.places[c]
	s.placesMu.Unlock()
	if !known {
		after = beginning
	}
	err = s.asChore(ctx, c, func(tx pgx.Tx) error {
		found, err := how.candidates(ctx, tx, n, after)
		if err == nil && len(found.ids) == 0 && known {
			found, err = how.candidates(ctx, tx, n, beginning)
		}
		if known = len(found.ids) == n; known {
			after = found.last
		}
		if err == nil && len(found.ids) > 0 {
			buried, err = how.carryOut(ctx, tx, found)
		}
		if err == nil && buried == 0 && how.otherwise != "" {
			_, err = tx.Exec(ctx, how.otherwise)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	s.placesMu.Lock()
	defer s.placesMu.Unlock()
	if known {
		s.places[c] = after
	} else {
		delete(s.places, c)
	}
	return buried, nil
}

// candidates are rows that are about to be buried.
type candidates struct {
	ids, lanes, endpoints []int64
	events                []uuid.UUID
	keyed                 laneKeys
	last                  place
}

func (how *burial) candidates(ctx context.Context, tx pgx.Tx, n int, after place) (c candidates, err error) {
	rows, err := tx.Query(ctx, how.find, n, after.lane, after.at, after.id)
	if err != nil {
		return candidates{}, err
	}
	var endpoint int64
	var event uuid.UUID
	var key string
	_, err = pgx.ForEachRow(rows, []any{&c.last.id, &c.last.lane, &endpoint, &event, &key, &c.last.at}, func() error {
		c.ids, c.lanes = append(c.ids, c.last.id), append(c.lanes, c.last.lane)
		c.endpoints, c.events = append(c.endpoints, endpoint), append(c.events, event)
		if key != "" {
			c.keyed.lane, c.keyed.key = append(c.keyed.lane, c.last.lane), append(c.keyed.key, key)
		}
		return nil
	})
	return c, err
}

func (how *burial) carryOut(ctx context.Context, tx pgx.Tx, c candidates) (buried int, err error) {
	b := &pgx.Batch{}
	b.Queue(pinEvents, c.events)
	b.Queue(lockStatuses, c.endpoints)
	b.Queue(markStatuses, c.endpoints)
	b.Queue(lockLanes, c.lanes)
	b.Queue(reapGiven, c.lanes)
	b.Queue(how.bury, c.ids, how.reason).QueryRow(func(row pgx.Row) error { return row.Scan(&buried) })
	if len(c.keyed.key) > 0 {
		b.Queue(promoteKeys, c.keyed.lane, c.keyed.key)
		b.Queue(touchLanes, c.keyed.lane, time.Duration(0))
	}
	return buried, send(ctx, tx, b)
}

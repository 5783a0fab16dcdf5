package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// What a lost touch, a lost process or a changed ordering leaves behind is mended here. Reads find suspects without a
// lock, in chunks of lanes; the mending statements run under lockLanes and look again. In steady state nothing is found.

// Each chore has an advisory lock of its own, taken for the transaction with a try: another replica is at it already.
type chore int64

const choreBase = 0x706f7374_0000 // "post", so as not to meet another application's locks in a shared database

const (
	chorePartitions chore = choreBase + iota
	choreSweep
	choreCancel
	choreExpire
	chorePurge
	choreDrop
)

const tryChore = `SELECT pg_try_advisory_xact_lock($1)`

// asChore runs f in a transaction under the chore's lock; where another process has it, f is not run.
func (s *Store) asChore(ctx context.Context, c chore, f func(pgx.Tx) error) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		var ours bool
		if err := tx.QueryRow(ctx, tryChore, int64(c)).Scan(&ours); err != nil || !ours {
			return err
		}
		return f(tx)
	})
}

// $1 after this endpoint, $2 endpoints at most: those of the lanes that are not cancelled. Asked of endpoint and not of lane,
// which has a dead version for each of its writes while a snapshot is held.
const someLanes = `
SELECT endpoint_id, lane_id, ordered FROM postrider.endpoint
WHERE endpoint_id > $1 AND lane_id IS NOT NULL ORDER BY endpoint_id LIMIT $2`

// $1 lane[]. Lanes with deliveries that no claim will look at in time, and since when the first of these is due. What became
// due a moment ago is left: its touch is on its way. Mend: lockLanes, wakeLanes.
const unwokenLanes = `
SELECT l.lane_id, first.available_at
FROM ` + latestLanes + `
CROSS JOIN LATERAL (
    SELECT available_at FROM postrider.delivery d
    WHERE d.lane_id = l.lane_id AND d.available_at >= ` + searchFrom + ` AND d.claim_token IS NULL
    ORDER BY available_at, id LIMIT 1) first
WHERE l.due_at > greatest(first.available_at, now()) AND first.available_at NOT BETWEEN now() - ` + touchPatience + ` AND now()`

// touchPatience is how long a touch may take before the sweep does its work: every lane that it wakes is one locked.
const touchPatience = `interval '250 ms'`

// $1 lane[] (locked), $2 since when[] something in it is due; null: now. Has the next claim look at the lanes, from there on.
const wakeLanes = `
UPDATE postrider.lane l SET due_at = least(l.due_at, now()), first_at = least(l.first_at, woken.since, now()), ` + moved + `
FROM (SELECT l.tid, t.since FROM ` + latestLanes + `
      JOIN (SELECT lane_id, min(since) AS since FROM unnest($1::bigint[], $2::timestamptz[]) AS t(lane_id, since) GROUP BY lane_id) t
      ON t.lane_id = l.lane_id) woken
WHERE l.ctid = woken.tid`

// $1 lane[], $2 the key to go on after[] (” from the start), $3 keys at most of a lane. Walks the keys of ordered lanes, a
// probe or two each: headless ones have followers, of which the first did not come just now, and no visible row; many-headed
// ones have more than one visible row. The walk is bounded; the last key says where to go on.
const walkKeys = `
WITH RECURSIVE walk AS (
    SELECT l.lane_id, 1 AS step, (SELECT min(d.ordering_key) FROM postrider.delivery d
                       WHERE d.lane_id = l.lane_id AND d.ordering_key > r.after AND ` + byKey + `) AS key
    FROM unnest($1::bigint[], $2::text[]) AS r(lane_id, after)
    CROSS JOIN LATERAL (SELECT lane_id, ordered FROM postrider.lane WHERE lane_id = r.lane_id ORDER BY moved_at DESC LIMIT 1) l
    WHERE l.ordered
    UNION ALL
    SELECT w.lane_id, w.step + 1, (SELECT min(d.ordering_key) FROM postrider.delivery d
                       WHERE d.lane_id = w.lane_id AND d.ordering_key > w.key AND ` + byKey + `)
    FROM walk w WHERE w.key IS NOT NULL AND w.step < $3
)
SELECT w.lane_id, w.key, w.step = $3,
       (SELECT available_at = 'infinity' AND accepted_at <= now() - ` + touchPatience + ` FROM postrider.delivery d
        WHERE d.lane_id = w.lane_id AND d.ordering_key = w.key AND ` + byKey + `
        ORDER BY available_at, id LIMIT 1),
       coalesce((SELECT available_at < 'infinity' FROM postrider.delivery d
        WHERE d.lane_id = w.lane_id AND d.ordering_key = w.key AND ` + byKey + `
        ORDER BY available_at, id OFFSET 1 LIMIT 1), false)
FROM walk w WHERE w.key IS NOT NULL`

// $1 lane[] (locked), $2 key[], $3 rows at most. After None → Key: of a key's visible rows the claimed ones stay, else the
// oldest.
const parkKeys = `
UPDATE postrider.delivery SET available_at = 'infinity'
WHERE id = ANY(ARRAY(
    SELECT d.id FROM (SELECT DISTINCT * FROM unnest($1::bigint[], $2::text[]) AS t(lane_id, key)) k
    CROSS JOIN LATERAL (SELECT ordered FROM postrider.lane WHERE lane_id = k.lane_id ORDER BY moved_at DESC LIMIT 1) l
    CROSS JOIN LATERAL (
        SELECT id FROM postrider.delivery d
        WHERE d.lane_id = k.lane_id AND d.ordering_key = k.key AND d.available_at < 'infinity' AND d.claim_token IS NULL AND ` + byKey + `
          AND EXISTS (SELECT FROM postrider.delivery o
                      WHERE o.lane_id = d.lane_id AND o.ordering_key = d.ordering_key AND o.available_at < 'infinity' AND ` + byKey + `
                        AND o.id <> d.id AND (o.claim_token IS NOT NULL OR o.id < d.id))
        LIMIT $3) d
    WHERE l.ordered
    LIMIT $3))`

// $1 lane[]. Lanes without ordering that have followers: nothing promotes these any more. Mend: lockLanes, unparkRows,
// wakeLanes.
const parkedLanes = `
SELECT l.lane_id FROM ` + latestLanes + `
CROSS JOIN LATERAL (SELECT FROM postrider.delivery WHERE lane_id = l.lane_id AND available_at = 'infinity' AND NOT l.ordered LIMIT 1) d`

// $1 lane[] (locked), $2 rows at most of a lane.
const unparkRows = `
UPDATE postrider.delivery SET available_at = now()
WHERE id = ANY(ARRAY(
    SELECT d.id FROM ` + latestLanes + ` CROSS JOIN LATERAL (
        SELECT id FROM postrider.delivery WHERE lane_id = l.lane_id AND available_at = 'infinity' AND NOT l.ordered LIMIT $2) d))`

// Bounds of one sweep's work.
const (
	sweepKeysLeast = 100    // keys walked of an ordered lane, however many of these there are; the next sweep goes on from there
	sweepKeysMost  = 2_000  // and however few: some 30 ms
	sweepKeysAll   = 20_000 // keys that all lanes share in between
	sweepRows      = 5_000  // rows parked or unparked
)

// keysEach is how many keys are walked of each ordered lane, where there are so many of these.
func keysEach(ordered int) int {
	return max(sweepKeysLeast, min(sweepKeysMost, sweepKeysAll/max(1, ordered)))
}

// SweepLanes mends the lanes of n endpoints after one and returns the last of them, or 0 where the round is complete or
// another process sweeps.
func (s *Store) SweepLanes(ctx context.Context, after int64, n int) (next int64, mended int, err error) {
	err = s.asChore(ctx, choreSweep, func(tx pgx.Tx) error {
		chunk, err := lanesAfter(ctx, tx, after, n)
		if err != nil || len(chunk.lanes) == 0 {
			return err
		}
		next = chunk.next
		found, err := s.findSuspects(ctx, tx, chunk.lanes, keysEach(chunk.ordered))
		if err != nil {
			return err
		}
		overlooked, err := s.findOverlooked(ctx, tx, n)
		if err != nil {
			return err
		}
		found.unwoken = append(found.unwoken, overlooked...)
		mended = len(found.unwoken) + len(found.headless.key) + len(found.manyHeaded.key) + len(found.parked)
		return found.mend(ctx, tx)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("sweep the lanes of the endpoints after %d: %w", after, err)
	}
	return next, mended, nil
}

// laneChunk are the lanes of some endpoints.
type laneChunk struct {
	lanes   []int64
	ordered int   // how many of them are
	next    int64 // the last endpoint, after which to go on; 0: there are no more
}

func lanesAfter(ctx context.Context, tx pgx.Tx, after int64, n int) (c laneChunk, err error) {
	rows, err := tx.Query(ctx, someLanes, after, n)
	if err != nil {
		return laneChunk{}, err
	}
	var endpoint, lane int64
	var ordered bool
	if _, err := pgx.ForEachRow(rows, []any{&endpoint, &lane, &ordered}, func() error {
		if c.lanes = append(c.lanes, lane); ordered {
			c.ordered++
		}
		return nil
	}); err != nil {
		return laneChunk{}, err
	}
	if len(c.lanes) == n {
		c.next = endpoint
	}
	return c, nil
}

type laneKeys struct {
	lane []int64
	key  []string
}

// unwokenLane has something due that no claim will look at.
type unwokenLane struct {
	id    int64
	since time.Time // when the first became due
}

type suspects struct {
	unwoken              []unwokenLane
	parked               []int64
	headless, manyHeaded laneKeys
}

// findSuspects walks so many keys of each ordered lane.
func (s *Store) findSuspects(ctx context.Context, tx pgx.Tx, lanes []int64, keys int) (suspects, error) {
	var w suspects
	after := s.keysAfter(lanes)
	reached := map[int64]string{}
	b := &pgx.Batch{}
	b.Queue(unwokenLanes, lanes).Query(func(rows pgx.Rows) (err error) {
		w.unwoken, err = pgx.CollectRows(rows, scanUnwoken)
		return err
	})
	b.Queue(parkedLanes, lanes).Query(func(rows pgx.Rows) (err error) {
		w.parked, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		return err
	})
	b.Queue(walkKeys, lanes, after, keys).Query(func(rows pgx.Rows) error {
		var lane int64
		var key string
		var last, headless, many bool
		_, err := pgx.ForEachRow(rows, []any{&lane, &key, &last, &headless, &many}, func() error {
			if headless {
				w.headless.lane, w.headless.key = append(w.headless.lane, lane), append(w.headless.key, key)
			}
			if many {
				w.manyHeaded.lane, w.manyHeaded.key = append(w.manyHeaded.lane, lane), append(w.manyHeaded.key, key)
			}
			if last {
				reached[lane] = key
			}
			return nil
		})
		return err
	})
	err := send(ctx, tx, b)
	if err == nil {
		s.keepKeys(lanes, reached)
	}
	return w, err
}

func scanUnwoken(row pgx.CollectableRow) (l unwokenLane, err error) {
	return l, row.Scan(&l.id, &l.since)
}

// mend locks the suspects' lanes in one sorted go and looks again.
func (w *suspects) mend(ctx context.Context, tx pgx.Tx) error {
	lanes := append(append(append([]int64{}, w.parked...), w.headless.lane...), w.manyHeaded.lane...)
	known := len(lanes)
	for i := range w.unwoken {
		lanes = append(lanes, w.unwoken[i].id)
	}
	since := make([]*time.Time, len(lanes))
	for i := range w.unwoken {
		since[known+i] = &w.unwoken[i].since
	}
	if len(lanes) == 0 {
		return nil
	}
	b := &pgx.Batch{}
	b.Queue(lockLanes, lanes)
	if len(w.headless.key) > 0 {
		b.Queue(promoteKeys, w.headless.lane, w.headless.key)
	}
	if len(w.manyHeaded.key) > 0 {
		b.Queue(parkKeys, w.manyHeaded.lane, w.manyHeaded.key, sweepRows)
	}
	if len(w.parked) > 0 {
		b.Queue(unparkRows, w.parked, sweepRows)
	}
	b.Queue(wakeLanes, lanes, since)
	return send(ctx, tx, b)
}

// keysAfter returns for each lane the key where its walk goes on. keepKeys notes where a bounded walk stopped; one that
// ended starts over.
func (s *Store) keysAfter(lanes []int64) []string {
	s.keysMu.Lock()
	defer s.keysMu.Unlock()
	after := make([]string, len(lanes))
	for i, lane := range lanes {
		after[i] = s.keys[lane]
	}
	return after
}

func (s *Store) keepKeys(lanes []int64, reached map[int64]string) {
	s.keysMu.Lock()
	defer s.keysMu.Unlock()
	for _, lane := range lanes {
		if key, ok := reached[lane]; ok {
			s.keys[lane] = key
		} else {
			delete(s.keys, lane)
		}
	}
}

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// handOn begins a statement that locks lanes; $1: their ended leases are freed next. It passes the lanes on to the statements
// that come after it in the same transaction: endedLanes are those that may hold an ended lease, lockedLanes all, or without
// $1 the others. It tells how many were locked, the first one's ready_at, and whether some of them are endedLanes. None is
// locked while all is paused.
const (
	handOn = `
SELECT count(*)::int, min(ready_at), count(*) FILTER (WHERE lease_end <= now()) > 0,
       set_config('postrider.lanes', coalesce(array_agg(lane_id) FILTER (WHERE $1::bool OR lease_end IS NULL OR lease_end > now()), '{}')::text, true) ||
       set_config('postrider.ended', coalesce(array_agg(lane_id) FILTER (WHERE lease_end <= now()), '{}')::text, true)
FROM (`
	open = `(SELECT current_setting('postrider.open')::bool)`
)

// $2 lanes to leave to others, $3 from where to search, $4 lanes at most.
const lockReady = handOn + `
    SELECT lane_id, lease_end, ready_at
    FROM postrider.lane
    WHERE ready_at <= now() AND ready_at >= $3 AND lane_id <> ALL($2::bigint[]) AND ` + open + `
    ORDER BY ready_at LIMIT $4
    FOR NO KEY UPDATE SKIP LOCKED) l`

// When lockReady got nothing: skipped is not empty. A lane under back-to-back completions is always locked, so wait for
// the oldest ready one, holding nothing else. The subquery picks one row before any lock: with WHERE ready_at … LIMIT 1
// FOR NO KEY UPDATE, a lane that is no longer ready once its lock is got stays locked while the statement goes on to wait
// for the next one, which deadlocks. take tests again whether the lane is ready.
// $2 lanes to leave to others, $3 from where to search.
const lockOldest = handOn + `
    SELECT l.lane_id, l.lease_end, l.ready_at
    FROM (SELECT lane_id FROM postrider.lane
          WHERE ready_at <= now() AND ready_at >= $3 AND lane_id <> ALL($2::bigint[]) AND ` + open + `
          ORDER BY ready_at LIMIT 1) oldest
    CROSS JOIN LATERAL (
        SELECT * FROM postrider.lane WHERE lane_id = oldest.lane_id ORDER BY moved_at DESC LIMIT 1 FOR NO KEY UPDATE) l) l`

// skipPatience bounds the waits of lockReady. SKIP LOCKED does wait, holding what it has, where an update of the row commits
// in the very moment in which it is looked at, and somebody else has locked the new version: it follows the versions
// (heap_lock_updated_tuple). Whoever has that one may want a lane of ours next.
const skipPatience = "100ms"

// $1 from where to search. Since when the oldest of the ready lanes is, whoever may have it locked. In a statement after the
// lock: it sees what has become ready until then.
const oldestReady = `
SELECT (SELECT ready_at FROM postrider.lane WHERE ready_at <= now() AND ready_at >= $1 ORDER BY ready_at LIMIT 1), clock_timestamp()`

// $1 the barrier, $2 how long to wait for a lock. Nothing is to be claimed where the barrier cannot be joined: somebody who
// pauses all is waiting for claims.
const openClaim = `
SELECT now(), clock_timestamp(), open,
       set_config('postrider.open', open::text, true) || set_config('postrider.claimed', 'false', false) ||
       set_config('synchronous_commit', 'off', true) || set_config('lock_timeout', $2, true)
FROM (SELECT ` + joinBarrier + `($1) AND NOT ` + stopped + ` AS open) pause`

// found is what came of a search for ready lanes.
type found struct {
	at            time.Time          // of the transaction
	began, ended  time.Time          // the search itself
	lanes         int                // that were locked
	leasesEnded   bool               // one of these may hold an ended lease
	first, oldest pgtype.Timestamptz // ready_at of the first of these, and of all, whoever may have them locked; null: there is none
}

// claimReady claims of the lanes that are ready. To free ended leases costs as much as a claim of little, and is seldom called
// for: a claim leaves the lanes that may hold one to the next claim, which comes at once where this one got nothing.
func (s *Store) claimReady(ctx context.Context, conn *pgxpool.Conn, r *ClaimRequest) (Batch, error) {
	reaps := s.leasesEnded.Swap(false)
	found, batch, err := s.search(ctx, conn, r, reaps)
	if err != nil || reaps || !found.leasesEnded {
		return batch, err
	}
	if len(batch.Claims) > 0 {
		s.leasesEnded.Store(true)
		batch.More = true
		return batch, nil
	}
	_, batch, err = s.search(ctx, conn, r, true)
	return batch, err
}

// search claims of the lanes that it finds ready, and of the oldest that is if somebody else has all of them locked.
func (s *Store) search(ctx context.Context, conn *pgxpool.Conn, r *ClaimRequest, reaps bool) (found, Batch, error) {
	from, err := s.readyFrom(ctx, conn)
	if err != nil {
		return found{}, Batch{}, err
	}
	f, batch, err := s.claimFrom(ctx, conn, r, skipPatience, reaps, func(b *pgx.Batch, f *found) {
		b.Queue(lockReady, reaps, r.Exclude, from, r.Lanes).QueryRow(f.scanLocked)
		b.Queue(oldestReady, from).QueryRow(f.scanOldest)
	})
	switch {
	case lockTimedOut(err):
		if _, err = conn.Exec(ctx, "rollback"); err != nil {
			return f, Batch{}, err
		}
	case err != nil || batch.Paused:
		return f, batch, err
	default:
		s.ready.searched(from, f)
		if f.lanes > 0 || !f.oldest.Valid {
			return f, batch, nil
		}
		from = f.oldest
	}
	return s.claimFrom(ctx, conn, r, "0", reaps, func(b *pgx.Batch, f *found) {
		b.Queue(lockOldest, reaps, r.Exclude, from).QueryRow(f.scanLocked)
	})
}

// claimFrom is a claim's transaction. lock queues what locks lanes, and waits for each as long as patience says; "0": for
// ever. It stays behind the barrier until it commits: whoever pauses the installation waits for claims that do not know of it,
// and take, which comes later, looks again.
func (s *Store) claimFrom(ctx context.Context, conn *pgxpool.Conn, r *ClaimRequest, patience string, reaps bool, lock func(*pgx.Batch, *found)) (f found, batch Batch, err error) {
	b := &pgx.Batch{}
	b.Queue("begin")
	b.Queue(openClaim, int64(claimBarrier), patience).QueryRow(func(row pgx.Row) error {
		var open bool
		err := row.Scan(&f.at, &f.began, &open, nil)
		batch.Paused = !open
		return err
	})
	lock(b, &f)
	b.Queue("SET LOCAL lock_timeout TO DEFAULT") // what follows waits for nobody who waits for us
	s.queueTake(b, r, reaps, &batch)
	err = send(ctx, conn, b)
	s.heed(err)
	batch.At, batch.Lanes = f.at, f.lanes
	batch.More = batch.More || f.lanes == r.Lanes
	return f, batch, err
}

func (f *found) scanLocked(row pgx.Row) error {
	return row.Scan(&f.lanes, &f.first, &f.leasesEnded, nil)
}

func (f *found) scanOldest(row pgx.Row) error { return row.Scan(&f.oldest, &f.ended) }

// readyFrom is where the search for ready lanes begins. Where it is time to, that is found out by looking at all that lies
// before, which holds no lock.
func (s *Store) readyFrom(ctx context.Context, conn *pgxpool.Conn) (pgtype.Timestamptz, error) {
	from, overdue := s.ready.begin()
	if !overdue {
		return from, nil
	}
	began := time.Now()
	var all found
	if err := all.scanOldest(conn.QueryRow(ctx, oldestReady, from)); err != nil {
		return from, fmt.Errorf("search all lanes: %w", err)
	}
	return s.ready.searchedAll(time.Since(began), all.oldest), nil
}

func lockTimedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03"
}

// turnAfterHold is the due_at of a lane l that is given back, or whose hold ends: one that was not ready takes its turn behind
// those that are, as if it had become due just now. A bounded search would not find it where it was.
const turnAfterHold = `CASE WHEN l.ready_at > now() THEN greatest(l.due_at, now()) ELSE l.due_at END`

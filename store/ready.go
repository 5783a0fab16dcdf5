package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
)

// $1 lanes at most, $2 lanes to leave to others, $3 from where to search.
const lockReady = `
SELECT lane_id, coalesce(lease_end <= now(), false), ready_at
FROM postrider.lane
WHERE ready_at <= now() AND ready_at >= $3 AND lane_id <> ALL($2::bigint[]) AND NOT ` + stopped + `
ORDER BY ready_at LIMIT $1
FOR NO KEY UPDATE SKIP LOCKED`

// When lockReady got nothing: skipped is not empty. A lane under back-to-back completions is always locked, so wait for
// the oldest ready one, holding nothing else. The subquery picks one row before any lock: with WHERE ready_at … LIMIT 1
// FOR NO KEY UPDATE, a lane that is no longer ready once its lock is got stays locked while the statement goes on to wait
// for the next one, which deadlocks. take tests again whether the lane is ready.
// $1 lanes to leave to others, $2 from where to search.
const lockOldest = `
SELECT l.lane_id, coalesce(l.lease_end <= now(), false), l.ready_at
FROM (SELECT lane_id FROM postrider.lane
      WHERE ready_at <= now() AND ready_at >= $2 AND lane_id <> ALL($1::bigint[]) AND NOT ` + stopped + `
      ORDER BY ready_at LIMIT 1) oldest
CROSS JOIN LATERAL (
    SELECT * FROM postrider.lane WHERE lane_id = oldest.lane_id ORDER BY moved_at DESC LIMIT 1 FOR NO KEY UPDATE) l`

// readyLanes are lanes that a claim has locked.
type readyLanes struct {
	ids     []int64
	expired []int64            // of these: may hold an ended lease
	first   time.Time          // ready_at of the first; zero: there is none, or it is no longer ready
	oldest  pgtype.Timestamptz // ready_at of the first of all, those included that somebody else has locked; null: there is none
	at      time.Time          // the database's clock
	paused  bool               // the whole installation is: there is nothing to claim
}

// skipPatience bounds the waits of lockReady. SKIP LOCKED does wait, holding what it has, where an update of the row commits
// in the very moment in which it is looked at, and somebody else has locked the new version: it follows the versions
// (heap_lock_updated_tuple). Whoever has that one may want a lane of ours next.
const skipPatience = "100ms"

// $1 from where to search. Since when the oldest of the ready lanes is, whoever may have it locked. In a statement after the
// lock: it sees what has become ready until then.
const oldestReady = `SELECT ready_at FROM postrider.lane WHERE ready_at <= now() AND ready_at >= $1 ORDER BY ready_at LIMIT 1`

// lockForClaim begins a transaction and locks ready lanes.
func (s *Store) lockForClaim(ctx context.Context, conn *pgxpool.Conn, lanes int, exclude []int64) (readyLanes, error) {
	from, err := s.readyFrom(ctx, conn)
	if err != nil {
		return readyLanes{}, err
	}
	began := time.Now()
	ready, err := lockLanesFor(ctx, conn, skipPatience, func(b *pgx.Batch, r *readyLanes) {
		b.Queue(lockReady, lanes, exclude, from).Query(r.collect)
		b.Queue(oldestReady, from).Query(r.collectOldest)
	})
	end := "commit"
	switch {
	case lockTimedOut(err):
		end = "rollback"
	case err != nil || ready.paused:
		return ready, err
	default:
		s.ready.searched(from, time.Since(began), ready)
		if len(ready.ids) > 0 || !ready.oldest.Valid {
			return ready, nil
		}
		from = ready.oldest
	}
	if _, err = conn.Exec(ctx, end); err != nil {
		return ready, err
	}
	return lockLanesFor(ctx, conn, "0", func(b *pgx.Batch, r *readyLanes) {
		b.Queue(lockOldest, exclude, from).Query(r.collect)
	})
}

// readyFrom is where the search for ready lanes begins. Where it is time to, that is found out by looking at all that lies
// before, which holds no lock.
func (s *Store) readyFrom(ctx context.Context, conn *pgxpool.Conn) (pgtype.Timestamptz, error) {
	from, overdue := s.ready.begin()
	if !overdue {
		return from, nil
	}
	began := time.Now()
	rows, err := conn.Query(ctx, oldestReady, from)
	if err != nil {
		return from, fmt.Errorf("search all lanes: %w", err)
	}
	var all readyLanes
	if err := all.collectOldest(rows); err != nil {
		return from, fmt.Errorf("search all lanes: %w", err)
	}
	return s.ready.searchedAll(time.Since(began), all.oldest), nil
}

func lockTimedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03"
}

// lockLanesFor begins a transaction and locks lanes, waiting for each lock as long as patience says; "0": for ever. It stays
// behind the barrier until the claim commits: whoever pauses the installation waits for claims that do not know of it, and
// take, which comes later, looks again.
func lockLanesFor(ctx context.Context, conn *pgxpool.Conn, patience string, lock func(*pgx.Batch, *readyLanes)) (ready readyLanes, err error) {
	b := &pgx.Batch{}
	beginBriefly(b)
	b.Queue("SELECT now(), "+joinBarrier+"($1), "+stopped+", set_config('lock_timeout', $2, true)", int64(claimBarrier), patience).QueryRow(func(row pgx.Row) error {
		var joined bool
		err := row.Scan(&ready.at, &joined, &ready.paused, nil)
		ready.paused = ready.paused || !joined // somebody who pauses it is waiting for claims
		return err
	})
	lock(b, &ready)
	b.Queue("SET LOCAL lock_timeout TO DEFAULT") // what follows waits for nobody who waits for us
	err = send(ctx, conn, b)
	return ready, err
}

// collect takes in the lanes that were locked.
func (r *readyLanes) collect(rows pgx.Rows) error {
	var id int64
	var ended bool
	var at pgtype.Timestamptz
	_, err := pgx.ForEachRow(rows, []any{&id, &ended, &at}, func() error {
		if len(r.ids) == 0 && at.InfinityModifier == pgtype.Finite {
			r.first = at.Time
		}
		r.ids = append(r.ids, id)
		if ended {
			r.expired = append(r.expired, id)
		}
		return nil
	})
	return err
}

func (r *readyLanes) collectOldest(rows pgx.Rows) error {
	var at pgtype.Timestamptz
	_, err := pgx.ForEachRow(rows, []any{&at}, func() error { r.oldest = at; return nil })
	return err
}

// turnAfterHold is the due_at of a lane l that is given back, or whose hold ends: one that was not ready takes its turn behind
// those that are, as if it had become due just now. A bounded search would not find it where it was.
const turnAfterHold = `CASE WHEN l.ready_at > now() THEN greatest(l.due_at, now()) ELSE l.due_at END`

// readyCursor bounds the search for ready lanes, in the order of ready_at, by where the last search found the oldest of
// them. What is before the cursor nevertheless is a lane whose change committed late: so all is searched as long as that is
// quick, and else as often as takes up a hundredth of the time.
type readyCursor struct {
	mu   sync.Mutex
	from time.Time // of the database's clock
	next time.Time // when all is searched again; zero: by each claim
}

const (
	// readyMargin is how long a change of a lane may take to commit and still be found by the bounded search.
	readyMargin = 200 * time.Millisecond
	// slowSearch is what a search of all may take before the next ones are bounded, and those are bounded for searchPause
	// times what it took.
	slowSearch  = 5 * time.Millisecond
	searchPause = 100
)

// searchAll is before all of them.
var searchAll = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}

// begin returns from where to search. Overdue: claims' searches are bounded, and it is time to look at what they leave out.
func (c *readyCursor) begin() (from pgtype.Timestamptz, overdue bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.next.IsZero():
		return searchAll, false
	case time.Now().Before(c.next):
		return pgtype.Timestamptz{Time: c.from, Valid: true}, false
	}
	return searchAll, true
}

// searched takes in what a claim's search found.
func (c *readyCursor) searched(from pgtype.Timestamptz, took time.Duration, found readyLanes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest := found.oldest
	switch slow := took > slowSearch; {
	case slow && from == searchAll:
		c.next = time.Now().Add(searchPause * took)
	case slow && !found.first.IsZero():
		// A lane that somebody has locked for long must not have everybody search from where it is.
		oldest = pgtype.Timestamptz{Time: found.first, Valid: true}
	}
	c.from = found.at.Add(-readyMargin)
	c.lower(oldest)
}

// searchedAll takes in the oldest of all ready lanes, and returns from where to search now.
func (c *readyCursor) searchedAll(took time.Duration, oldest pgtype.Timestamptz) pgtype.Timestamptz {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lower(oldest)
	if took <= slowSearch {
		c.next = time.Time{}
		return searchAll
	}
	c.next = time.Now().Add(searchPause * took)
	return pgtype.Timestamptz{Time: c.from, Valid: true}
}

func (c *readyCursor) lower(oldest pgtype.Timestamptz) {
	if oldest.Valid && oldest.InfinityModifier == pgtype.Finite && oldest.Time.Before(c.from) {
		c.from = oldest.Time
	}
}

package store

import (
	"context"
	"errors"
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
	expired []int64   // of these: may hold an ended lease
	first   time.Time // ready_at of the first; zero: there is none, or it is no longer ready
	at      time.Time // the database's clock
	paused  bool      // the whole installation is: there is nothing to claim
}

// skipPatience bounds the waits of lockReady. SKIP LOCKED does wait, holding what it has, where an update of the row commits
// in the very moment in which it is looked at, and somebody else has locked the new version: it follows the versions
// (heap_lock_updated_tuple). Whoever has that one may want a lane of ours next.
const skipPatience = "100ms"

// lockForClaim begins a transaction and locks ready lanes.
func (s *Store) lockForClaim(ctx context.Context, conn *pgxpool.Conn, lanes int, exclude []int64) (readyLanes, error) {
	from, began := s.ready.begin()
	ready, err := lockLanesFor(ctx, conn, skipPatience, lockReady, lanes, exclude, from)
	end := "commit"
	switch {
	case lockTimedOut(err):
		end = "rollback"
	case err != nil || ready.paused:
		return ready, err
	default:
		s.ready.end(from, began, ready.first, ready.at)
		if len(ready.ids) > 0 {
			return ready, nil
		}
	}
	if _, err = conn.Exec(ctx, end); err != nil {
		return ready, err
	}
	return lockLanesFor(ctx, conn, "0", lockOldest, exclude, from)
}

func lockTimedOut(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "55P03"
}

// lockLanesFor begins a transaction and locks lanes, waiting for each lock as long as patience says; "0": for ever. It stays behind the barrier until the claim commits: whoever pauses
// the installation waits for claims that do not know of it, and take, which comes later, looks again.
func lockLanesFor(ctx context.Context, conn *pgxpool.Conn, patience, lock string, args ...any) (ready readyLanes, err error) {
	b := &pgx.Batch{}
	beginBriefly(b)
	b.Queue("SELECT now(), "+joinBarrier+"($1), "+stopped+", set_config('lock_timeout', $2, true)", int64(claimBarrier), patience).QueryRow(func(row pgx.Row) error {
		var joined bool
		err := row.Scan(&ready.at, &joined, &ready.paused, nil)
		ready.paused = ready.paused || !joined // somebody who pauses it is waiting for claims
		return err
	})
	b.Queue(lock, args...).Query(func(rows pgx.Rows) error {
		var id int64
		var ended bool
		var at pgtype.Timestamptz
		_, err := pgx.ForEachRow(rows, []any{&id, &ended, &at}, func() error {
			if len(ready.ids) == 0 && at.InfinityModifier == pgtype.Finite {
				ready.first = at.Time
			}
			ready.ids = append(ready.ids, id)
			if ended {
				ready.expired = append(ready.expired, id)
			}
			return nil
		})
		return err
	})
	b.Queue("SET LOCAL lock_timeout TO DEFAULT") // what follows waits for nobody who waits for us
	err = send(ctx, conn, b)
	return ready, err
}

// readyCursor bounds the search for ready lanes, in the order of ready_at, by where the last search found the first of
// them. What is before the cursor nevertheless is a lane that was locked then, or one whose change committed late: so all
// is searched as long as that is quick, and else as often as takes up a tenth of the time.
type readyCursor struct {
	mu   sync.Mutex
	from time.Time // of the database's clock
	next time.Time // when all is searched again
}

const (
	// readyMargin is how long a change of a lane may take to commit and still be found by the bounded search.
	readyMargin = 200 * time.Millisecond
	// slowSearch is what a search of all may take before the next ones are bounded, and those are bounded for searchPause
	// times what it took.
	slowSearch  = 5 * time.Millisecond
	searchPause = 10
)

// begin returns from where to search.
func (c *readyCursor) begin() (from pgtype.Timestamptz, began time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	began = time.Now()
	if began.Before(c.next) {
		return pgtype.Timestamptz{Time: c.from, Valid: true}, began
	}
	return pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}, began
}

// end takes in what a search found: the ready_at of the first lane, or the database's time where there was none.
func (c *readyCursor) end(from pgtype.Timestamptz, began, first, at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if from.InfinityModifier != pgtype.Finite {
		c.next = time.Time{}
		ended := time.Now()
		if took := ended.Sub(began); took > slowSearch {
			c.next = ended.Add(searchPause * took)
		}
	}
	c.from = at.Add(-readyMargin)
	if !first.IsZero() && first.Before(c.from) {
		c.from = first
	}
}

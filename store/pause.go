package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// WholeInstallation is the namespace of a pause that holds all namespaces.
const WholeInstallation = ""

// Pause is an operator's hold on all sending of the installation, or of a namespace. Events are accepted meanwhile, nothing
// expires, and ages count from its end.
type Pause struct {
	Namespace string // WholeInstallation, or the one it holds
	Since     time.Time
	Reason    string // the operator's words; may be empty
}

// The pause of the installation is one row, which each claim looks at: it is in force at once, whatever the number of
// lanes. The pause of a namespace is a hold of its own in each of its lanes, which leave the order of the ready ones; the
// trigger hold_lane has new lanes follow.

// stopped tells that the whole installation is paused, stoppedUntil when the last such pause ended.
const (
	stopped      = `EXISTS (SELECT FROM postrider.pause WHERE namespace = '' AND paused_at IS NOT NULL)`
	stoppedUntil = `(SELECT resumed_at FROM postrider.pause WHERE namespace = '')`
)

// A barrier is an advisory lock that is held shared by transactions that look at postrider.pause before they act, and taken
// for a moment by who has changed it: afterwards all that act on what it said before have ended.
type barrier int64

const (
	claimBarrier barrier = choreBase + 0x100 + iota // claims
	laneBarrier                                     // new lanes; the migration of pause names it too
)

const (
	joinBarrier  = `pg_try_advisory_xact_lock_shared`
	crossBarrier = `SELECT pg_advisory_xact_lock($1)`
)

// $1 namespace, $2 reason. Pausing what is paused changes its reason at most.
const setPaused = `
INSERT INTO postrider.pause AS p (namespace, paused_at, reason) VALUES ($1, now(), $2)
ON CONFLICT (namespace) DO UPDATE SET
    paused_at = coalesce(p.paused_at, now()),
    reason = CASE WHEN p.paused_at IS NULL OR $2 <> '' THEN $2 ELSE p.reason END,
    change = p.change + CASE WHEN p.paused_at IS NULL THEN 1 ELSE 0 END,
    settled = p.namespace = ''
RETURNING namespace, paused_at, reason, change`

// Pause holds all sending of a namespace, or of the whole installation: once it returns, no claim of what is held commits
// any more, at any dispatcher. What is in flight ends normally and is recorded.
//
// ErrConflict: it was resumed meanwhile. After any other error the pause may be in force, and that of a namespace in a
// part of its lanes: pause again, or SettlePauses does what is left.
func (s *Store) Pause(ctx context.Context, namespace, reason string) (Pause, error) {
	var p Pause
	var change int64
	err := s.pool.QueryRow(ctx, setPaused, namespace, reason).Scan(&p.Namespace, &p.Since, &p.Reason, &change)
	if err == nil && namespace == WholeInstallation {
		err = s.cross(ctx, claimBarrier)
	} else if err == nil {
		err = s.settle(ctx, namespace, change)
	}
	if err != nil {
		return Pause{}, fmt.Errorf("pause %s: %w", scopeOf(namespace), err)
	}
	return p, nil
}

// $1 namespace. What is not paused keeps when its last pause ended.
const setResumed = `
UPDATE postrider.pause SET
    resumed_at = CASE WHEN paused_at IS NULL THEN resumed_at ELSE now() END,
    change = change + CASE WHEN paused_at IS NULL THEN 0 ELSE 1 END,
    paused_at = NULL, reason = '', settled = namespace = ''
WHERE namespace = $1
RETURNING change`

// Resume ends a pause and wakes the dispatchers. False: it was not paused. What else holds an endpoint goes on holding it.
// Its errors are those of Pause.
func (s *Store) Resume(ctx context.Context, namespace string) (was bool, err error) {
	var change int64
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		if err := tx.QueryRow(ctx, `SELECT paused_at IS NOT NULL FROM postrider.pause WHERE namespace = $1 FOR UPDATE`, namespace).Scan(&was); err != nil {
			return err
		}
		return tx.QueryRow(ctx, setResumed, namespace).Scan(&change)
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, nil
	case err == nil && namespace == WholeInstallation:
		err = s.Notify(ctx)
	case err == nil:
		err = s.settle(ctx, namespace, change) // also where nothing was paused: an earlier resume may have been cut short
	}
	if err != nil {
		return false, fmt.Errorf("resume %s: %w", scopeOf(namespace), err)
	}
	return was, nil
}

// Pauses lists the pauses in force, that of the installation first.
func (s *Store) Pauses(ctx context.Context) ([]Pause, error) {
	rows, err := s.pool.Query(ctx, `SELECT namespace, paused_at, reason FROM postrider.pause WHERE paused_at IS NOT NULL ORDER BY namespace`)
	if err != nil {
		return nil, fmt.Errorf("list the pauses: %w", err)
	}
	pauses, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Pause])
	if err != nil {
		return nil, fmt.Errorf("list the pauses: %w", err)
	}
	return pauses, nil
}

// StartPaused pauses the whole installation once for each token: the first who comes with one pauses, and for everybody
// who comes later, or waited for the first, there is nothing to do, also after a resume. An earlier pause stays as it is.
func (s *Store) StartPaused(ctx context.Context, token, reason string) (first bool, err error) {
	err = s.inTx(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `INSERT INTO postrider.start_paused (token) VALUES ($1) ON CONFLICT DO NOTHING`, token)
		if first = tag.RowsAffected() > 0; err != nil || !first {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE postrider.pause SET paused_at = now(), reason = $1, change = change + 1
			WHERE namespace = '' AND paused_at IS NULL`, reason)
		return err
	})
	if err == nil && first {
		err = s.cross(ctx, claimBarrier)
	}
	if err != nil {
		return false, fmt.Errorf("start paused: %w", err)
	}
	return first, nil
}

// cross waits until the transactions behind a barrier have ended.
func (s *Store) cross(ctx context.Context, b barrier) error {
	if _, err := s.pool.Exec(ctx, crossBarrier, int64(b)); err != nil {
		return fmt.Errorf("wait for what is under way: %w", err)
	}
	return nil
}

// settleAge is how long a change is left to the command that made it.
const settleAge = 15 * time.Second

// SettlePauses finishes what commands that were cut short have left: lanes that are not yet as the pause or resume of their
// namespace wants them. It returns how many namespaces these were.
func (s *Store) SettlePauses(ctx context.Context) (settled int, err error) {
	rows, err := s.pool.Query(ctx, `SELECT namespace, change FROM postrider.pause
		WHERE NOT settled AND greatest(paused_at, resumed_at) < now() - $1::interval ORDER BY namespace`, settleAge)
	if err != nil {
		return 0, fmt.Errorf("find unsettled pauses: %w", err)
	}
	type unsettled struct {
		Namespace string
		Change    int64
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[unsettled])
	if err != nil {
		return 0, fmt.Errorf("find unsettled pauses: %w", err)
	}
	for _, u := range found {
		switch err := s.settle(ctx, u.Namespace, u.Change); {
		case err == nil:
			settled++
		case !errors.Is(err, ErrConflict): // another command is at it
			return settled, fmt.Errorf("settle the pause of %s: %w", scopeOf(u.Namespace), err)
		}
	}
	return settled, nil
}

// settleChunk bounds the lanes that are locked at once.
const settleChunk = 500

// settle makes the lanes of a namespace as its row wants them, in chunks. ErrConflict: the row has changed again.
func (s *Store) settle(ctx context.Context, namespace string, change int64) error {
	if err := s.cross(ctx, laneBarrier); err != nil {
		return err
	}
	for after, more := "", true; more; {
		err := s.inTx(ctx, func(tx pgx.Tx) (err error) {
			after, more, err = settleSome(ctx, tx, namespace, change, after)
			return err
		})
		if err != nil {
			return err
		}
		if err := s.Notify(ctx); err != nil {
			return err
		}
	}
	if _, err := s.pool.Exec(ctx, `UPDATE postrider.pause SET settled = true WHERE namespace = $1 AND change = $2 AND NOT settled`, namespace, change); err != nil {
		return fmt.Errorf("note that its lanes are settled: %w", err)
	}
	return nil
}

// $1 lane[] (locked). Lifting the hold brings back what the endpoint itself wants: whoever changes that changes the lane
// after the endpoint, so that under the lane's lock either is read or comes later.
const (
	holdLanes = `UPDATE postrider.lane SET namespace_paused = true WHERE lane_id = ANY($1::bigint[]) AND NOT namespace_paused`

	unholdLanes = `
UPDATE postrider.lane l SET namespace_paused = false, resumed_at = now(), due_at = ` + turnAfterHold + `,
    paused = EXISTS (SELECT FROM postrider.endpoint e WHERE e.endpoint_id = l.endpoint_id AND e.state = 'Paused')
WHERE lane_id = ANY($1::bigint[]) AND namespace_paused`
)

func settleSome(ctx context.Context, tx pgx.Tx, namespace string, change int64, after string) (last string, more bool, err error) {
	var paused bool
	var at int64
	// Whoever changes the row waits for this chunk, and then begins with the first one.
	err = tx.QueryRow(ctx, `SELECT paused_at IS NOT NULL, change FROM postrider.pause WHERE namespace = $1 FOR SHARE`, namespace).Scan(&paused, &at)
	if err != nil {
		return "", false, err
	}
	if at != change {
		return "", false, ErrConflict
	}
	rows, err := tx.Query(ctx, `SELECT name, lane_id FROM postrider.endpoint
		WHERE namespace = $1 AND name > $2 AND tombstoned_at IS NULL ORDER BY name LIMIT $3`, namespace, after, settleChunk)
	if err != nil {
		return "", false, err
	}
	var lane *int64
	var lanes []int64
	tag, err := pgx.ForEachRow(rows, []any{&last, &lane}, func() error {
		if lane != nil {
			lanes = append(lanes, *lane)
		}
		return nil
	})
	if err != nil {
		return "", false, err
	}
	b := &pgx.Batch{}
	b.Queue(lockLanes, lanes)
	if paused {
		b.Queue(holdLanes, lanes)
	} else {
		b.Queue(unholdLanes, lanes)
	}
	return last, tag.RowsAffected() == settleChunk, send(ctx, tx, b)
}

func scopeOf(namespace string) string {
	if namespace == WholeInstallation {
		return "the installation"
	}
	return "namespace " + namespace
}

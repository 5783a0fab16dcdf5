package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// anyTime accepts ids of any age.
const anyTime = 100 * 365 * 24 * time.Hour

const clearUpPause, clearUpPauseMax = 10 * time.Millisecond, 500 * time.Millisecond

// $1 id[].
const storedEvents = `SELECT id FROM postrider.event WHERE id = ANY($1::uuid[])`

// clearUp finds out whether the statement was committed whose answer was lost, and repeats it if not, under the same
// ids. That is safe although the first may still be running, or yet to arrive: whichever is the second waits for the
// first at its ids and keys, and then fails as a whole or finds its keys taken by itself.
func (g *accepting) clearUp(ctx context.Context, at []int, cause error) (again []int, err error) {
	for pause := clearUpPause; ; pause = min(2*pause, clearUpPauseMax) {
		stored, err := g.stored(ctx, at)
		if err == nil && len(stored) > 0 {
			return g.resume(ctx, at, stored)
		}
		if err == nil {
			again, err = g.try(ctx, at, anyTime)
			switch {
			case err == nil:
				for _, i := range at {
					g.accepted[i].Recovered = g.accepted[i].EventID == g.ids[i]
				}
				return again, nil
			case isUnique(err):
				continue // the first one was committed meanwhile
			case badRow(err):
				return nil, err // it would have been refused too
			}
		}
		if !answerLost(err) && !IsUnavailable(err) {
			return nil, fmt.Errorf("%w, while looking for a commit without an answer: %w", err, cause)
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("a commit was not answered, and what became of it is not known: %w", cause)
		case <-time.After(pause):
		}
	}
}

// resume goes on after a commit that stored some events. The others lost their key, or their matching table had moved:
// they are tried anew.
func (g *accepting) resume(ctx context.Context, at []int, stored map[uuid.UUID]bool) (again []int, err error) {
	var rest []int
	for _, i := range at {
		if stored[g.ids[i]] {
			g.accepted[i] = Acceptance{EventID: g.ids[i], AcceptedAt: EventTime(g.ids[i]), Recovered: true}
		} else {
			rest = append(rest, i)
		}
	}
	if len(rest) == 0 {
		return nil, nil
	}
	return g.storeOrSplit(ctx, rest), nil
}

// stored returns those ids of the events at some indices that are there.
func (g *accepting) stored(ctx context.Context, at []int) (map[uuid.UUID]bool, error) {
	ids := make([]uuid.UUID, len(at))
	for n, i := range at {
		ids[n] = g.ids[i]
	}
	rows, err := g.pool.Query(ctx, storedEvents, ids)
	if err != nil {
		return nil, fmt.Errorf("look for a commit: %w", err)
	}
	stored := map[uuid.UUID]bool{}
	var id uuid.UUID
	if _, err := pgx.ForEachRow(rows, []any{&id}, func() error { stored[id] = true; return nil }); err != nil {
		return nil, fmt.Errorf("look for a commit: %w", err)
	}
	return stored, nil
}

// unsentError is one that came before anything was sent.
type unsentError struct{ error }

func (e *unsentError) Unwrap() error { return e.error }

// answerLost tells that what was sent may be committed in spite of an error. It is not, if nothing was sent, or the
// server says that the statement failed. When it ends the connection it may do so after the commit.
func answerLost(err error) bool {
	if err == nil || errors.Is(err, errClock) || pgconn.SafeToRetry(err) {
		return false
	}
	var unsent *unsentError
	var connect *pgconn.ConnectError
	if errors.As(err, &unsent) || errors.As(err, &connect) {
		return false
	}
	var pg *pgconn.PgError
	return !errors.As(err, &pg) || pg.SeverityUnlocalized != "ERROR"
}

// isPassing tells of a conflict with another transaction that has undone this one.
func isPassing(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

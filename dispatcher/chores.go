package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/store"
)

// Chores are the store's own work. Each of its methods that changes anything lets one process of all do it at a time.
type Chores interface {
	MakeDays(ctx context.Context) (made int, err error)
	DropDays(ctx context.Context, events, attempts time.Duration) (dropped int, err error)
	SweepLanes(ctx context.Context, after int64, n int) (next int64, mended int, err error)
	BuryCancelled(ctx context.Context, n int) (buried int, err error)
	ExpireBacklogs(ctx context.Context, n int) (buried int, err error)
	SettlePauses(ctx context.Context) (settled int, err error)
	PurgeDeadLetters(ctx context.Context, older time.Duration, n int) (int, error)
	PurgeIdempotency(ctx context.Context, n int) (int, error)
	PurgePinned(ctx context.Context, n int) (int, error)
	PurgeEndpoints(ctx context.Context, older time.Duration, n int) (int, error)
	QueueFigures(ctx context.Context) (store.QueueFigures, error)
}

const (
	choreChunk  = 500 // rows of one transaction
	choreRounds = 20  // chunks of one turn: a backlog is worked off without holding anything for long
)

// chore is one of them, done again and again in its own goroutine: one that fails or hangs keeps no other.
type chore struct {
	name    string
	every   time.Duration // between the end of a turn and the next, jittered
	timeout time.Duration // of a turn
	turn    func(ctx context.Context) (done int, err error)
}

// newChores makes them. The retention is asked for at each turn, since it may change.
func newChores(kept *atomic.Pointer[Config], d Dependencies, m *metrics) []chore {
	s := d.Store
	var lane int64 // where the sweep goes on; only its own goroutine touches it
	return []chore{
		{"make_days", time.Hour, 5 * time.Minute, s.MakeDays},
		{"drop_days", time.Hour, 10 * time.Minute, func(ctx context.Context) (int, error) {
			c := kept.Load()
			return s.DropDays(ctx, c.EventRetention, c.AttemptRetention)
		}},
		{"sweep_lanes", time.Second, time.Minute, func(ctx context.Context) (mended int, err error) {
			for range choreRounds {
				var more int
				lane, more, err = s.SweepLanes(ctx, lane, choreChunk)
				mended += more
				if err != nil || lane == 0 {
					break
				}
			}
			return mended, err
		}},
		{"bury_cancelled", time.Second, time.Minute, rounds(s.BuryCancelled)},
		{"expire_backlogs", 5 * time.Second, time.Minute, rounds(s.ExpireBacklogs)},
		{"settle_pauses", 10 * time.Second, time.Minute, s.SettlePauses},
		{"purge_dead_letters", time.Minute, 5 * time.Minute, rounds(func(ctx context.Context, n int) (int, error) {
			return s.PurgeDeadLetters(ctx, kept.Load().DeadLetterRetention, n)
		})},
		{"purge_idempotency", time.Minute, 5 * time.Minute, rounds(s.PurgeIdempotency)},
		{"purge_pinned", time.Hour, 5 * time.Minute, rounds(s.PurgePinned)},
		{"purge_endpoints", time.Hour, 5 * time.Minute, rounds(func(ctx context.Context, n int) (int, error) {
			return s.PurgeEndpoints(ctx, kept.Load().EndpointRetention, n)
		})},
		{"queue_figures", 15 * time.Second, time.Minute, func(ctx context.Context) (int, error) {
			figures, err := s.QueueFigures(ctx)
			if err == nil {
				m.queue.Store(&figures)
			}
			return 0, err
		}},
	}
}

// rounds repeats a chore while it is given full chunks.
func rounds(chunk func(ctx context.Context, n int) (int, error)) func(context.Context) (int, error) {
	return func(ctx context.Context) (done int, err error) {
		for range choreRounds {
			n, err := chunk(ctx, choreChunk)
			done += n
			if err != nil || n < choreChunk {
				return done, err
			}
		}
		return done, nil
	}
}

// run takes turns until the context ends, the first one at once.
func (c *chore) run(ctx context.Context, logger *slog.Logger, m *metrics) {
	label := prometheus.Labels{"chore": c.name}
	failed := m.choreErrors.With(label)
	for ctx.Err() == nil {
		began := now()
		done, err := c.once(ctx, logger)
		if err != nil && ctx.Err() == nil {
			failed.Inc()
			logger.Warn("a chore failed and will be tried again", "event", "chore_failed", "chore", c.name, "error", err)
			// Those of the hour do not wait for an hour: a missing partition stops everything.
			if !sleep(ctx, jitter(min(c.every, 10*time.Second))) {
				return
			}
			continue
		}
		m.chores.done(c.name)
		// A search that finds nothing takes up a tenth of the time at most: under a held snapshot it may take long.
		pause := c.every
		if done == 0 {
			pause = max(pause, 9*since(began))
		}
		if !sleep(ctx, pause-pause/10+scale(pause/5, random())) {
			return
		}
	}
}

func (c *chore) once(ctx context.Context, logger *slog.Logger) (done int, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	done, err = c.turn(ctx)
	if done > 0 {
		logger.Debug("chore", "event", "chore", "chore", c.name, "done", done)
	}
	if err != nil {
		return done, fmt.Errorf("%s: %w", c.name, err)
	}
	return done, nil
}

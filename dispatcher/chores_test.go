package dispatcher

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestEveryChoreHasItsTurnsAndAFailingOneBlocksNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &hangingChore{memory: newMemory()}
		m.failing = map[string]error{"make_days": errors.New("no"), "sweep_lanes": errors.New("no")}
		d := start(t, Config{Senders: 1}, testDependencies(t, m), outside{transport: receiver(ok)})
		synctest.Wait()
		for _, name := range []string{"make_days", "sweep_lanes", "bury_cancelled", "expire_backlogs", "settle_pauses", "purge_dead_letters", "purge_idempotency", "purge_pinned", "purge_endpoints", "queue_figures"} {
			if got := m.turnsOf(name); got != 1 {
				t.Errorf("turns of %s at the start: got %d, want 1", name, got)
			}
		}
		time.Sleep(time.Hour - time.Second)
		for name, want := range map[string][2]int{
			"make_days":          {200, 800},   // failing: every ten seconds or so
			"sweep_lanes":        {2500, 8000}, // failing: every second or so
			"bury_cancelled":     {3200, 4000},
			"expire_backlogs":    {650, 800},
			"settle_pauses":      {320, 400},
			"purge_dead_letters": {54, 68},
			"purge_idempotency":  {54, 68},
			"purge_pinned":       {1, 2},
			"purge_endpoints":    {1, 2},
			"queue_figures":      {216, 268},
		} {
			if got := m.turnsOf(name); got < want[0] || got > want[1] {
				t.Errorf("turns of %s in an hour: got %d, want %d to %d", name, got, want[0], want[1])
			}
		}
		if got := m.hung.Load(); got < 4 || got > 8 {
			t.Errorf("turns of the hanging chore in an hour: got %d, want each ended by its timeout", got)
		}
		if got := testutil.ToFloat64(d.metrics.choreErrors.WithLabelValues("make_days")); got < 200 {
			t.Errorf("counted failures of make_days: got %v, want 200 and more", got)
		}
		d.end()
	})
}

// hangingChore drops no days: it hangs until its context ends.
type hangingChore struct {
	*memory
	hung atomic.Int64
}

func (h *hangingChore) DropDays(ctx context.Context, _, _ time.Duration) (int, error) {
	h.hung.Add(1)
	<-ctx.Done()
	return 0, ctx.Err()
}

// A chore's backlog is worked off in chunks, and a turn is bounded.
func TestChoreRepeatsFullChunksToABound(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ rows, want int }{
		{0, 0},
		{choreChunk - 1, choreChunk - 1},
		{3*choreChunk + 7, 3*choreChunk + 7},
		{1_000_000, choreRounds * choreChunk},
	} {
		rows := test.rows
		done, err := rounds(func(_ context.Context, n int) (int, error) {
			n = min(n, rows)
			rows -= n
			return n, nil
		})(t.Context())
		if done != test.want || err != nil {
			t.Errorf("one turn over %d rows: got %d, %v, want %d", test.rows, done, err, test.want)
		}
	}
}

// The sweep goes round all lanes: each turn begins where the last one ended.
func TestSweepGoesRound(t *testing.T) {
	t.Parallel()
	s := &lanes{memory: newMemory(), last: 30_000}
	var sweep chore
	for _, c := range newChores(&atomic.Pointer[Config]{}, testDependencies(t, s), nil) {
		if c.name == "sweep_lanes" {
			sweep = c
		}
	}
	for range 4 {
		if _, err := sweep.turn(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// 20 calls a turn at most, of 500 lanes each: the third turn ends the first round.
	if len(s.after) != 80 || s.after[0] != 0 || s.after[19] != 9500 || s.after[20] != 10_000 || s.after[60] != 0 {
		t.Errorf("swept after: got %v, want rounds of 60 calls over four turns", s.after)
	}
}

type lanes struct {
	*memory
	last  int64
	after []int64
}

func (l *lanes) SweepLanes(_ context.Context, after int64, n int) (int64, int, error) {
	l.after = append(l.after, after)
	if next := after + int64(n); next < l.last {
		return next, 0, nil
	}
	return 0, 0, nil
}

// slowSweep finds nothing, and takes its time for that.
type slowSweep struct {
	*memory
	took time.Duration
}

func (s *slowSweep) SweepLanes(ctx context.Context, after int64, n int) (int64, int, error) {
	sleep(ctx, s.took)
	return s.memory.SweepLanes(ctx, after, n)
}

func TestASlowSearchThatFindsNothingTakesATenthOfTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &slowSweep{newMemory(), 10 * time.Second}
		d := start(t, Config{Senders: 1}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(1000 * time.Second)
		if got := m.turnsOf("sweep_lanes"); got < 8 || got > 12 {
			t.Errorf("got %d sweeps of 10 s in 1,000 s, want about 10", got)
		}
		d.end()
	})
}

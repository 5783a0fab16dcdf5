package ingest

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/postrider/postrider/store"
)

// notifier wakes the dispatchers after events were committed: one transaction touches the lanes of many accepts and
// notifies. What is touched while it is at work or waits for its turn is gathered. Turns come every wakeEvery, and unused
// ones are saved up to wakeBurst: a lone event waits for nobody, a busy ingest writes each lane once per turn.
//
// It may lose a touch: one beyond its bound, one that the store refuses, one of a process that is killed. The store's
// sweep finds the delivery within a second or so; what is lost is that second.
type notifier struct {
	store   Store
	timeout time.Duration
	metrics *metrics
	log     *slog.Logger

	mu     sync.Mutex
	lanes  map[store.Touched]struct{}
	oldest time.Time // when the first of lanes came
	began  time.Time // when the earliest of their accepts began
	wake   chan struct{}
}

const (
	wakeEvery = 10 * time.Millisecond
	wakeBurst = 10
	// maxTouched bounds what is gathered, maxTouch what one transaction does: it holds the lanes' locks.
	maxTouched = 20_000
	maxTouch   = 1000
	// A failed touch is tried again after touchRetry, later after up to touchRetryMax. One that fails for another
	// reason than an absent Postgres is dropped after touchTries.
	touchRetry    = 20 * time.Millisecond
	touchRetryMax = time.Second
	touchTries    = 3
)

func newNotifier(s Store, timeout time.Duration, m *metrics, log *slog.Logger) *notifier {
	return &notifier{
		store: s, timeout: timeout, metrics: m, log: log,
		lanes: map[store.Touched]struct{}{}, wake: make(chan struct{}, 1),
	}
}

// touched takes over the lanes of committed deliveries. It never waits.
func (n *notifier) touched(lanes []store.Touched, began time.Time) {
	n.mu.Lock()
	if len(n.lanes) == 0 {
		n.oldest, n.began = time.Now(), began
	}
	if began.Before(n.began) {
		n.began = began
	}
	dropped := 0
	for _, lane := range lanes {
		if _, there := n.lanes[lane]; !there && len(n.lanes) >= maxTouched {
			dropped++
			continue
		}
		n.lanes[lane] = struct{}{}
	}
	n.mu.Unlock()
	n.metrics.touchesDropped.Add(float64(dropped))
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// run works until the context ends, and then once more for what is left. Calls under way are not broken off.
func (n *notifier) run(ctx context.Context) {
	turns := rate.NewLimiter(rate.Every(wakeEvery), wakeBurst)
	for more := false; ; {
		if !more {
			select {
			case <-n.wake:
			case <-ctx.Done():
			}
		}
		if turns.Wait(ctx) != nil {
			n.flush(ctx)
			return
		}
		var lanes []store.Touched
		var since time.Time
		if lanes, since, more = n.take(); len(lanes) > 0 {
			n.touch(ctx, lanes, since)
		}
	}
}

// touch touches some lanes. It tries again while Postgres is away, until the context ends.
func (n *notifier) touch(ctx context.Context, lanes []store.Touched, since time.Time) {
	delay := touchRetry
	for try := 1; ; try++ {
		err := n.call(ctx, func(ctx context.Context) error { return n.store.Touch(ctx, lanes) })
		if err == nil {
			n.metrics.touchSeconds.Observe(time.Since(since).Seconds())
			return
		}
		n.metrics.touchFailures.Inc()
		if try == 1 {
			n.log.Warn("cannot wake the dispatchers; their sweep finds the deliveries by itself", "reason", err.Error())
		}
		if !unavailableStore(err) && try >= touchTries {
			n.metrics.touchesDropped.Add(float64(len(lanes)))
			return
		}
		select {
		case <-ctx.Done():
			began := lanes[0].Since
			for i := range lanes {
				lanes[i].Since = time.Time{}
			}
			n.touched(lanes, began) // for the flush
			return
		case <-time.After(delay):
			delay = min(2*delay, touchRetryMax)
		}
	}
}

// flush touches what is left, trying each part once.
func (n *notifier) flush(ctx context.Context) {
	for more := true; more; {
		var lanes []store.Touched
		if lanes, _, more = n.take(); len(lanes) == 0 {
			return
		}
		if err := n.call(ctx, func(ctx context.Context) error { return n.store.Touch(ctx, lanes) }); err != nil {
			n.metrics.touchFailures.Inc()
			n.metrics.touchesDropped.Add(float64(len(lanes)))
			return
		}
	}
}

func (n *notifier) call(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), n.timeout)
	defer cancel()
	return do(ctx)
}

// take removes up to maxTouch lanes and tells when the first of them came and whether more are left.
func (n *notifier) take() (lanes []store.Touched, since time.Time, more bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for lane := range n.lanes {
		if len(lanes) == maxTouch {
			break
		}
		delete(n.lanes, lane)
		lane.Since = n.began
		lanes = append(lanes, lane)
	}
	return lanes, n.oldest, len(n.lanes) > 0
}

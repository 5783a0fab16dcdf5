package ingest

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/store"
)

// double is a store for tests that are about time or about faults no Postgres makes on demand.
type double struct {
	mu       sync.Mutex
	touches  []int           // sizes
	at       []time.Duration // of the touches, since began
	lanes    map[int64]int
	since    []time.Time // of each touch's first lane
	began    time.Time
	stopping time.Duration // how long the stop took
	took     time.Duration // by a touch
	fault    error         // of a touch
	pings    func() error
	accepts  func([]store.NewEvent) ([]store.Acceptance, error)
	matching func() (store.Matching, error)
	event    func() (store.EventDetail, error)
}

func (d *double) Ping(context.Context) error {
	if d.pings != nil {
		return d.pings()
	}
	return nil
}

func (d *double) Matching(_ context.Context, namespace string) (store.Matching, error) {
	if d.matching != nil {
		return d.matching()
	}
	return store.Matching{Namespace: namespace, UID: "uid-" + namespace, Version: 1}, nil
}

func (d *double) NamespaceUID(ctx context.Context, namespace string) (string, error) {
	matching, err := d.Matching(ctx, namespace)
	return matching.UID, err
}

func (d *double) Accept(ctx context.Context, events []store.NewEvent, _ time.Duration) ([]store.Acceptance, error) {
	if d.accepts != nil {
		results, err := d.accepts(events)
		return results, errors.Join(err, ctx.Err())
	}
	results := make([]store.Acceptance, len(events))
	for i := range results {
		results[i] = store.Acceptance{EventID: uuid.New(), AcceptedAt: time.Now()}
	}
	return results, nil
}

func (d *double) Event(context.Context, string, string, uuid.UUID) (store.EventDetail, error) {
	if d.event != nil {
		return d.event()
	}
	return store.EventDetail{}, store.ErrNotFound
}

func (d *double) Touch(ctx context.Context, lanes []store.Touched) error {
	d.mu.Lock()
	took, fault := d.took, d.fault
	d.mu.Unlock()
	select {
	case <-time.After(took):
	case <-ctx.Done():
		return ctx.Err()
	}
	if fault != nil {
		return fault
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.touches, d.since = append(d.touches, len(lanes)), append(d.since, lanes[0].Since)
	d.at = append(d.at, time.Since(d.began))
	for _, lane := range lanes {
		if d.lanes == nil {
			d.lanes = map[int64]int{}
		}
		d.lanes[lane.LaneID]++
	}
	return nil
}

func (d *double) set(change func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	change()
}

// withNotifier runs a notifier in a bubble of fake time, and stops it after the test's work.
func withNotifier(t *testing.T, d *double, work func(*notifier)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d.began = time.Now()
		n := newNotifier(d, time.Second, newMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { n.run(ctx) })
		work(n)
		asked := time.Now()
		stop()
		running.Wait()
		d.stopping = time.Since(asked)
	})
}

func lane(id int64) []store.Touched { return []store.Touched{{LaneID: id}} }

func TestALoneEventWakesTheDispatchersAtOnce(t *testing.T) {
	t.Parallel()
	d := &double{}
	withNotifier(t, d, func(n *notifier) {
		for i := range 30 {
			n.touched(lane(int64(i)), time.Now())
			time.Sleep(wakeEvery)
		}
	})
	for i, at := range d.at {
		if want := time.Duration(i) * wakeEvery; at != want {
			t.Errorf("event %d of a hundred a second was told of after %v, want %v", i, at, want)
		}
	}
	if len(d.at) != 30 {
		t.Errorf("%d touches, want 30", len(d.at))
	}
}

func TestWakingIsBoundedAndTheLastIsTold(t *testing.T) {
	t.Parallel()
	const events = 200 // one a millisecond
	d := &double{}
	withNotifier(t, d, func(n *notifier) {
		for i := range events {
			n.touched(lane(int64(i)), time.Now())
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second)
	})
	last := d.at[len(d.at)-1]
	if most := wakeBurst + int(last/wakeEvery); len(d.at) > most {
		t.Errorf("%d touches in %v, want at most %d", len(d.at), last, most)
	}
	if most := events*time.Millisecond + wakeEvery; last > most {
		t.Errorf("the last touch came after %v, want %v at most", last, most)
	}
	if len(d.lanes) != events {
		t.Errorf("%d lanes were touched, want %d", len(d.lanes), events)
	}
}

func TestAcceptsShareATouch(t *testing.T) {
	t.Parallel()
	d := &double{took: 100 * time.Millisecond}
	withNotifier(t, d, func(n *notifier) {
		var lanes []store.Touched // at once: the notifier may begin with the first that it sees
		for i := range 500 {
			lanes = append(lanes, lane(int64(i))...)
		}
		for range 3 {
			n.touched(lanes, time.Now())
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(time.Second)
	})
	if len(d.touches) != 2 || d.lanes[7] != 2 {
		t.Errorf("touches of %v lanes, lane 7 %d times; want two touches with each lane once", d.touches, d.lanes[7])
	}
}

func TestATouchIsBounded(t *testing.T) {
	t.Parallel()
	d := &double{}
	withNotifier(t, d, func(n *notifier) {
		var many []store.Touched
		for i := range 2*maxTouch + 1 {
			many = append(many, store.Touched{LaneID: int64(i)})
		}
		n.touched(many, time.Now())
		time.Sleep(time.Second)
	})
	if diff := cmp.Diff([]int{maxTouch, maxTouch, 1}, d.touches); diff != "" {
		t.Errorf("touches (-want +got):\n%s", diff)
	}
}

func TestAFailedTouchIsTriedAgainUntilPostgresIsBack(t *testing.T) {
	t.Parallel()
	d := &double{fault: context.DeadlineExceeded}
	withNotifier(t, d, func(n *notifier) {
		n.touched(lane(1), time.Now())
		time.Sleep(time.Minute)
		d.set(func() { d.fault = nil })
		time.Sleep(2 * touchRetryMax)
	})
	if d.lanes[1] != 1 {
		t.Errorf("touched %d times, want once", d.lanes[1])
	}
}

func TestATouchThatIsRefusedIsLeftToTheSweep(t *testing.T) {
	t.Parallel()
	d := &double{fault: errors.New("a statement that Postgres does not like")}
	withNotifier(t, d, func(n *notifier) {
		n.touched(lane(1), time.Now())
		time.Sleep(time.Minute)
		if got := testutil.ToFloat64(n.metrics.touchesDropped); got != 1 {
			t.Errorf("%v lanes were counted as dropped, want 1", got)
		}
		d.set(func() { d.fault = nil })
		n.touched(lane(2), time.Now())
		time.Sleep(time.Second)
	})
	if d.lanes[1] != 0 || d.lanes[2] != 1 {
		t.Errorf("lanes touched: %v, want 2 alone", d.lanes)
	}
}

func TestWhatIsGatheredIsBounded(t *testing.T) {
	t.Parallel()
	d := &double{fault: context.DeadlineExceeded}
	withNotifier(t, d, func(n *notifier) {
		for i := range 2 * maxTouched {
			n.touched(lane(int64(i)), time.Now())
		}
		n.mu.Lock()
		got := len(n.lanes)
		n.mu.Unlock()
		if got > maxTouched {
			t.Errorf("%d lanes are held, want at most %d", got, maxTouched)
		}
		if got := testutil.ToFloat64(n.metrics.touchesDropped); got < maxTouched-maxTouch {
			t.Errorf("%v lanes were counted as dropped", got)
		}
		d.set(func() { d.fault = nil })
	})
}

func TestStopFlushes(t *testing.T) {
	t.Parallel()
	d := &double{took: 50 * time.Millisecond}
	withNotifier(t, d, func(n *notifier) {
		n.touched(lane(1), time.Now())
		synctest.Wait() // it is at work on lane 1
		n.touched(lane(2), time.Now())
	})
	if d.lanes[1] != 1 || d.lanes[2] != 1 {
		t.Errorf("lanes touched: %v, want both", d.lanes)
	}
}

func TestStopDoesNotWaitForAPostgresThatIsAway(t *testing.T) {
	t.Parallel()
	d := &double{took: time.Hour}
	withNotifier(t, d, func(n *notifier) {
		n.touched(lane(1), time.Now())
		time.Sleep(500 * time.Millisecond)
	})
	if d.stopping > 2*time.Second || len(d.touches) > 0 {
		t.Errorf("the stop took %v, with %d touches", d.stopping, len(d.touches))
	}
}

// A touch says when the earliest of its accepts began, also when it is repeated: the store looks for what committed late.
func TestATouchSaysWhenItsAcceptsBegan(t *testing.T) {
	t.Parallel()
	d := &double{took: time.Second, fault: errors.New("refused")}
	withNotifier(t, d, func(n *notifier) {
		began := time.Now()
		n.touched(lane(1), began.Add(-time.Second))
		synctest.Wait() // the first is being tried
		n.touched(lane(2), began.Add(-time.Minute))
		n.touched(lane(3), began)
		d.set(func() { d.fault = nil })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		d.set(func() {
			if len(d.since) != 2 || !d.since[0].Equal(began.Add(-time.Second)) || !d.since[1].Equal(began.Add(-time.Minute)) {
				t.Errorf("touched for accepts of %v, want one of a second ago, then one of a minute ago", d.since)
			}
		})
	})
}

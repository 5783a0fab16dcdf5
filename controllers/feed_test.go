package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
)

// quietStore tells what a test lets it. Its clock is the bubble's. It has no other methods.
type quietStore struct {
	Store
	mutex    sync.Mutex
	moved    map[int64]store.Activity
	backlogs map[int64]store.Backlog
	pauses   []store.Pause
	away     bool
	counted  []int // how many endpoints each query for backlogs asked for
}

func (s *quietStore) Activities(_ context.Context, since time.Time) ([]store.Activity, time.Time, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.away {
		return nil, time.Time{}, errors.New("away")
	}
	var told []store.Activity
	for _, a := range s.moved {
		if since.IsZero() || !later(a.LastSuccess, a.LastFailure.At).Before(since) {
			told = append(told, a)
		}
	}
	return told, time.Now(), nil
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (s *quietStore) Pauses(context.Context) ([]store.Pause, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.pauses, nil
}

func (s *quietStore) Backlogs(_ context.Context, ids []int64) ([]store.Backlog, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.counted = append(s.counted, len(ids))
	var told []store.Backlog
	for _, id := range ids {
		if b, ok := s.backlogs[id]; ok {
			b.EndpointID = id
			told = append(told, b)
		}
	}
	return told, nil
}

// tell replaces what the store says of an endpoint.
func (s *quietStore) tell(a store.Activity, dead int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.moved[a.EndpointID] = a
	s.backlogs[a.EndpointID] = store.Backlog{EndpointID: a.EndpointID, DeadLetters: dead}
}

// desk is a feed with n endpoints, whose statuses are written the moment they are enqueued, and a record of that.
type desk struct {
	store   *quietStore
	feed    *feed
	writes  map[int64][]time.Time
	writing bool // false: nobody reconciles
}

// newDesk runs inside a bubble. Its endpoints have ids from 1 and nothing to tell.
func newDesk(ctx context.Context, t *testing.T, n int) *desk {
	t.Helper()
	d := &desk{store: &quietStore{moved: map[int64]store.Activity{}, backlogs: map[int64]store.Backlog{}}, writes: map[int64][]time.Time{}, writing: true}
	o := newOwnership()
	close(o.granted)
	d.feed = &feed{
		store: d.store, facts: newFacts(budgets{}, time.Now), ownership: o,
		metrics: newMetrics(prometheus.NewRegistry()), review: newReview(&atomic.Pointer[settings]{}), log: slog.New(slog.DiscardHandler),
	}
	if err := d.feed.source().Start(ctx, deskQueue{desk: d}); err != nil {
		t.Fatal(err)
	}
	for id := int64(1); id <= int64(n); id++ {
		d.feed.facts.track(deskName(id), id, true)
	}
	return d
}

func deskName(id int64) types.NamespacedName {
	return types.NamespacedName{Namespace: "n", Name: fmt.Sprint(id)}
}

// show has all statuses show what is known, as the reconciles after a start do.
func (d *desk) show(n int) {
	for id := int64(1); id <= int64(n); id++ {
		d.feed.facts.show(id, d.feed.facts.figures(id), false)
	}
}

// deskQueue is a workqueue whose items are done at once.
type deskQueue struct {
	workqueue.TypedRateLimitingInterface[reconcile.Request]
	desk *desk
}

func (q deskQueue) Add(request reconcile.Request) {
	var id int64
	if _, err := fmt.Sscan(request.Name, &id); err != nil {
		panic(err)
	}
	q.desk.writes[id] = append(q.desk.writes[id], time.Now())
	if q.desk.writing {
		q.desk.feed.facts.show(id, q.desk.feed.facts.figures(id), true)
	}
}

// run lets the feed work for a while of the bubble's time.
func (d *desk) run(t *testing.T, length time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), length)
	defer cancel()
	if err := d.feed.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

func (d *desk) written() (n int) {
	for _, times := range d.writes {
		n += len(times)
	}
	return n
}

func success(id int64) store.Activity {
	return store.Activity{EndpointID: id, LastSuccess: time.Now()}
}

func failing(id int64, failures int) store.Activity {
	return store.Activity{EndpointID: id, ConsecutiveFailures: failures, LastFailure: store.Failure{At: time.Now(), Reason: "ServerError", Status: 500}}
}

func TestAnIdleSystemEnqueuesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 3_000
		d := newDesk(t.Context(), t, n)
		for id := int64(1); id <= n; id++ {
			d.store.tell(store.Activity{EndpointID: id, LastSuccess: time.Now().Add(-time.Hour), OpenUntil: time.Now().Add(-time.Hour)}, int(id%3))
		}
		d.run(t, 70*time.Second) // all are known and counted
		d.show(n)
		d.store.counted = nil
		d.run(t, 3*time.Minute)
		if d.written() != 0 {
			t.Errorf("%d statuses were enqueued, want none", d.written())
		}
		counted := 0
		for _, c := range d.store.counted {
			counted += c
			if c > countAtOnce {
				t.Fatalf("one query counted %d backlogs, want at most %d", c, countAtOnce)
			}
		}
		if rounds := float64(counted) / n; rounds < 2.5 || rounds > 3.5 {
			t.Errorf("in 3 minutes all backlogs were counted %.1f times, want about once a minute", rounds)
		}
	})
}

// Of successes in a row the store writes down one in a while: what they leave of the backlog is seen all the same.
func TestABacklogIsCountedAgainAfterTheSuccessesThatAreNotWrittenDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 12_000 // so many that this one's regular turn is far off
		d := newDesk(t.Context(), t, n)
		d.run(t, 70*time.Second)
		d.show(n)
		pending := func(waiting int) {
			d.store.mutex.Lock()
			defer d.store.mutex.Unlock()
			d.store.backlogs[1] = store.Backlog{EndpointID: 1, Pending: waiting}
		}
		d.store.tell(success(1), 0)
		pending(5)
		time.AfterFunc(store.SuccessStep-time.Millisecond, func() { pending(0) })
		d.run(t, 5*time.Second)
		if got := d.feed.facts.figures(1).Pending; got != 0 {
			t.Errorf("5 s after the first success %d deliveries are said to be pending, want none", got)
		}
		d.store.counted = nil
		d.run(t, 3*time.Second)
		for _, counted := range d.store.counted {
			if regular := n / countRound; counted > regular {
				t.Errorf("%d backlogs were counted later on, want the regular %d", counted, regular)
			}
		}
	})
}

func TestMaterialChangesAreEnqueuedWithinSeconds(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*desk){
		"the first success": func(d *desk) { d.store.tell(success(1), 0) },
		"the first failure": func(d *desk) { d.store.tell(failing(1, 1), 0) },
		"a dead letter":     func(d *desk) { d.store.tell(failing(1, 1), 1) },
		"a circuit that opens": func(d *desk) {
			a := failing(1, 10)
			a.OpenUntil = time.Now().Add(time.Hour)
			d.store.tell(a, 0)
		},
		"a receiver that is gone": func(d *desk) {
			a := failing(1, 1)
			a.Gone = true
			d.store.tell(a, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(t.Context(), t, 5)
				d.run(t, 10*time.Second)
				d.show(5)
				at := time.Now().Add(100 * time.Millisecond)
				time.AfterFunc(100*time.Millisecond, func() { change(d) })
				d.run(t, 10*time.Second)
				if len(d.writes) != 1 || len(d.writes[1]) != 1 {
					t.Fatalf("enqueued: %v, want endpoint 1 once", d.writes)
				}
				if took := d.writes[1][0].Sub(at); took > 3*time.Second {
					t.Errorf("took %s, which leaves too little of the 5 s for the write", took)
				}
			})
		})
	}
}

func TestDeadLettersInARowShareWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t.Context(), t, 1)
		d.run(t, 5*time.Second)
		d.show(1)
		for i := range 600 {
			time.AfterFunc(time.Duration(i)*100*time.Millisecond, func() { d.store.tell(failing(1, i+1), i+1) })
		}
		d.run(t, 70*time.Second)
		times := d.writes[1]
		if len(times) < 60/4 || len(times) > 60/2+2 {
			t.Errorf("a minute of dead letters: %d writes, want one in 2 to 4 s", len(times))
		}
		for i := 1; i < len(times); i++ {
			if gap := times[i].Sub(times[i-1]); gap < 2*time.Second {
				t.Errorf("two writes %s apart", gap)
			}
		}
		if got := d.feed.facts.figures(1).DeadLetters; got != 600 || d.feed.facts.endpoints[1].shown.DeadLetters != 600 {
			t.Errorf("the last write shows %d dead letters of %d, want all 600", d.feed.facts.endpoints[1].shown.DeadLetters, got)
		}
	})
}

func TestTwoHundredMaterialChangesASecondOldestFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		d := newDesk(t.Context(), t, n)
		d.run(t, 10*time.Second)
		d.show(n)
		for id := int64(1); id <= n; id++ {
			if id <= n/2 {
				d.store.tell(failing(id, 1), 0) // at once
				continue
			}
			time.AfterFunc(1500*time.Millisecond, func() { d.store.tell(failing(id, 1), 0) })
		}
		worst := 0.0
		for range 4 {
			d.run(t, 1500*time.Millisecond)
			worst = max(worst, testutil.ToFloat64(d.feed.metrics.statusLag))
		}
		d.run(t, 4*time.Second)

		perSecond, last := map[int64]int{}, [2]time.Time{}
		for id, times := range d.writes {
			if len(times) != 1 {
				t.Fatalf("endpoint %d was enqueued %d times, want once", id, len(times))
			}
			perSecond[times[0].Unix()]++
			half := 0
			if id > n/2 {
				half = 1
			}
			last[half] = later(last[half], times[0])
		}
		if len(d.writes) != n {
			t.Fatalf("%d endpoints were enqueued, want all %d", len(d.writes), n)
		}
		for second, count := range perSecond {
			if count > 2*200 { // runs of the test begin and end within a second
				t.Errorf("second %d: %d were enqueued, want at most 200 a tick", second, count)
			}
		}
		if !last[0].Before(last[1]) {
			t.Errorf("the older half was done at %s, the younger at %s", last[0], last[1])
		}
		if worst < 1 {
			t.Errorf("the lag metric never showed more than %.1f s", worst)
		}
		if lag := testutil.ToFloat64(d.feed.metrics.statusLag); lag != 0 {
			t.Errorf("lag when all is done: %v", lag)
		}
	})
}

func TestMovingFiguresHaveTheirOwnBudget(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		endpoints int
		interval  time.Duration
	}{{10, time.Minute}, {2000, 100 * time.Second}} {
		t.Run(fmt.Sprint(test.endpoints), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(t.Context(), t, test.endpoints)
				busy := func() {
					for id := int64(1); id <= int64(test.endpoints); id++ {
						d.store.tell(success(id), 0)
					}
				}
				busy()
				d.run(t, 20*time.Second)
				d.show(test.endpoints)
				// Each endpoint succeeds all the time.
				const rounds = 3
				length := rounds * test.interval
				for at := time.Duration(0); at < length; at += 5 * time.Second {
					time.AfterFunc(at, busy)
				}
				d.run(t, length)
				for id, times := range d.writes {
					for i := 1; i < len(times); i++ {
						if gap := times[i].Sub(times[i-1]); gap < test.interval*3/4 || gap > test.interval+15*time.Second {
							t.Fatalf("endpoint %d: two writes %s apart, want about %s", id, gap, test.interval)
						}
					}
				}
				perEndpoint := float64(d.written()) / float64(test.endpoints)
				if perEndpoint < rounds-1 || perEndpoint > rounds*1.3+1 {
					t.Errorf("in %s: %.1f writes an endpoint, want about %d", length, perEndpoint, rounds)
				}
				distinct := map[int64]bool{}
				for _, times := range d.writes {
					distinct[times[0].Unix()] = true
				}
				if len(distinct) < 5 {
					t.Errorf("the first writes fall into %d seconds: no jitter", len(distinct))
				}
			})
		})
	}
}

func TestACircuitBecomesHalfOpenByItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t.Context(), t, 1)
		a := failing(1, 10)
		a.OpenUntil = time.Now().Add(30 * time.Second)
		d.store.tell(a, 0)
		d.run(t, 2*time.Second)
		d.show(1)
		if got := d.feed.facts.figures(1).Circuit; got != v1alpha1.CircuitOpen {
			t.Fatalf("circuit: got %s, want Open", got)
		}
		until := time.Now().Add(28 * time.Second)
		d.run(t, 27*time.Second)
		if d.written() != 0 {
			t.Fatalf("%d writes while the circuit stays open", d.written())
		}
		d.run(t, 7*time.Second)
		if d.written() != 1 {
			t.Fatalf("%d writes after the cooldown, want one", d.written())
		}
		if took := d.writes[1][0].Sub(until); took < 0 || took > 5*time.Second {
			t.Errorf("half open is shown %s after the cooldown, want within 5 s", took)
		}
	})
}

// TestAProbeThatIsSoonOverIsNotShown keeps a dead endpoint from costing two writes for each of its probes.
func TestAProbeThatIsSoonOverIsNotShown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t.Context(), t, 1)
		open := func() {
			a := failing(1, 10)
			a.OpenUntil = time.Now().Add(30 * time.Second)
			d.store.tell(a, 0)
		}
		open()
		d.run(t, 2*time.Second)
		d.show(1)
		for probe := range 5 {
			time.AfterFunc(time.Duration(probe+1)*30*time.Second, open) // 2 s after the cooldown: the probe failed
		}
		d.run(t, 170*time.Second)
		if d.written() > 3 { // the moving figures of three minutes
			t.Errorf("five failed probes cost %d writes", d.written())
		}
	})
}

func TestAnEndpointEnqueuedInVainIsEnqueuedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t.Context(), t, 1)
		d.run(t, 2*time.Second)
		d.show(1)
		d.writing = false
		d.store.tell(failing(1, 1), 0)
		d.run(t, 35*time.Second)
		if got := len(d.writes[1]); got < 3 || got > 4 {
			t.Errorf("enqueued %d times in 35 s, want every 10 s", got)
		}
		if lag := testutil.ToFloat64(d.feed.metrics.statusLag); lag < 30 {
			t.Errorf("lag: got %v s, want what has passed", lag)
		}
	})
}

func TestNothingIsEnqueuedBeforeItsFirstReconcile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t.Context(), t, 3)
		d.store.tell(failing(1, 5), 2)
		d.run(t, time.Minute)
		if d.written() != 0 {
			t.Errorf("%d were enqueued; the reconciles after the start do that", d.written())
		}
	})
}

func TestTheFeedOutlivesAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t.Context(), t, 1)
		d.run(t, 2*time.Second)
		d.show(1)
		d.store.away = true
		time.AfterFunc(20*time.Second, func() { d.store.tell(failing(1, 1), 1) })
		time.AfterFunc(60*time.Second, func() {
			d.store.mutex.Lock()
			defer d.store.mutex.Unlock()
			d.store.away = false
		})
		start := time.Now()
		d.run(t, 70*time.Second)
		if len(d.writes[1]) != 1 || d.writes[1][0].Sub(start) < 60*time.Second {
			t.Errorf("enqueued at %v of %s, want once, when the store is back", d.writes[1], start)
		}
	})
}

func TestAForgottenEndpointIsNotEnqueued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t.Context(), t, 2)
		d.run(t, 2*time.Second)
		d.show(2)
		d.feed.facts.forget(deskName(1))
		d.store.tell(failing(1, 1), 1)
		d.store.tell(failing(2, 1), 1)
		d.run(t, 5*time.Second)
		if len(d.writes[1]) != 0 || len(d.writes[2]) != 1 {
			t.Errorf("enqueued: %v, want endpoint 2 alone", d.writes)
		}
	})
}

func TestAWriteOfTheRowIsForeseen(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(t.Context(), t, 1)
		a := failing(1, 10)
		a.OpenUntil, a.Gone = time.Now().Add(time.Hour), true
		d.store.tell(a, 0)
		d.run(t, 2*time.Second)
		d.feed.facts.applied(1, false)
		if f := d.feed.facts.figures(1); f.Circuit != v1alpha1.CircuitHalfOpen || !f.Gone {
			t.Errorf("after a rotated key: %+v, want half open and still gone", f)
		}
		d.feed.facts.applied(1, true)
		if f := d.feed.facts.figures(1); f.Gone {
			t.Error("after another spec: still gone")
		}
	})
}

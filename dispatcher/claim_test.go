package dispatcher

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/store"
)

func ok(*http.Request) (*http.Response, error) { return answers(200) }

// failsOnce answers 503 to the first request and 200 to the others.
func failsOnce() receiver {
	var calls atomic.Int64
	return func(*http.Request) (*http.Response, error) {
		if calls.Add(1) == 1 {
			return answers(503)
		}
		return answers(200)
	}
}

// slowly answers after a time.
func slowly(d time.Duration) receiver {
	return func(r *http.Request) (*http.Response, error) {
		select {
		case <-time.After(d):
			return answers(200)
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
}

func TestClaimAsksForNoMoreThanThereAreFreeSenders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const senders, deliveries = 8, 200
		m := newMemory()
		for lane := int64(1); lane <= 4; lane++ {
			endpoint := m.apply(testEndpoint(t, lane))
			for range deliveries / 4 {
				m.add(endpoint)
			}
		}
		var flying, most atomic.Int64
		var calls atomic.Int64
		m.onClaim = func(asked store.ClaimRequest) {
			if busy := int(flying.Load()); asked.Budget+busy > senders {
				t.Errorf("claim: asked for %d while %d of %d senders are busy", asked.Budget, busy, senders)
			}
		}
		d := startWithoutChores(t, Config{Senders: senders}, testDependencies(t, m), outside{transport: receiver(func(r *http.Request) (*http.Response, error) {
			most.Store(max(most.Load(), flying.Add(1)))
			defer flying.Add(-1)
			return slowly(time.Duration(calls.Add(1)%7+1) * 100 * time.Millisecond)(r)
		})})
		for m.pending() > 0 {
			time.Sleep(time.Second)
		}
		d.end()
		if got := most.Load(); got != senders {
			t.Errorf("requests at once: got %d, want %d", got, senders)
		}
		for _, asked := range m.asked() {
			if asked.Budget < 1 || asked.Budget > senders || asked.Lanes > asked.Budget || asked.PerLane > senders/2 {
				t.Errorf("claim: got %+v, want a budget from 1 to %d", asked, senders)
			}
		}
		if got := len(m.recorded()); got != deliveries {
			t.Errorf("attempts: got %d, want %d", got, deliveries)
		}
	})
}

// Under load one claim serves many senders.
func TestBusyClaimsAreFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const deliveries = 2000
		m := newMemory()
		for lane := int64(1); lane <= 4; lane++ {
			endpoint := m.apply(testEndpoint(t, lane))
			for range deliveries / 4 {
				m.add(endpoint)
			}
		}
		var calls atomic.Int64
		// If claims took no time there could be one for each sender that becomes free in an instant, as the scheduler has it.
		slow := &slowClaims{memory: m, wait: time.Millisecond}
		d := startWithoutChores(t, Config{Senders: 256}, testDependencies(t, slow), outside{transport: receiver(func(r *http.Request) (*http.Response, error) {
			return slowly(time.Duration(1+calls.Add(1)%10) * time.Millisecond)(r)
		})})
		for m.pending() > 0 {
			time.Sleep(10 * time.Millisecond)
		}
		d.end()
		if claims := len(m.asked()); claims > deliveries/80 {
			t.Errorf("claims for %d deliveries: got %d, want %d at most", deliveries, claims, deliveries/80)
		}
	})
}

// An idle replica looks every second or so, and answers a notification at once.
func TestIdlePollingBacksOffAndANotificationWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		endpoint := m.apply(testEndpoint(t, 1))
		d := startWithoutChores(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(time.Minute)
		before := len(m.asked())
		if before < 55 || before > 75 {
			t.Errorf("claims in an idle minute: got %d, want one a second and a few more at the start", before)
		}
		time.Sleep(time.Minute)
		if got := len(m.asked()) - before; got < 55 || got > 62 {
			t.Errorf("claims in the second idle minute: got %d, want about 60", got)
		}
		m.add(endpoint)
		m.notify()
		synctest.Wait()
		if m.pending() != 0 {
			t.Error("a notified delivery waited although all senders were free")
		}
		// Without a notification it is found all the same.
		m.add(endpoint)
		time.Sleep(1100 * time.Millisecond)
		if m.pending() != 0 {
			t.Error("a delivery without a notification was not found by polling")
		}
		d.end()
	})
}

// A retry is looked for when it is due and not when polling happens to come by.
func TestRetryIsClaimedWhenItFallsDue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		endpoint := testEndpoint(t, 1)
		endpoint.Spec.Schedule = []time.Duration{5 * time.Second}
		m.add(m.apply(endpoint))
		d := startWithoutChores(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: failsOnce()})
		time.Sleep(10 * time.Second)
		d.end()
		attempts := m.recorded()
		if len(attempts) != 2 {
			t.Fatalf("attempts: got %d, want 2", len(attempts))
		}
		if late := intervals(attempts)[0] - attempts[0].result.Delay; late < 0 || late > time.Millisecond {
			t.Errorf("the retry came %v late, want at once", late)
		}
	})
}

// Free senders are not kept waiting while others hang.
func TestHangingReceiverDelaysNoHealthyOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		hanging, healthy := testEndpoint(t, 1), testEndpoint(t, 2)
		hanging.Spec.URL = "http://127.0.0.1:1/hang"
		hanging, healthy = m.apply(hanging), m.apply(healthy)
		for range 1000 {
			m.add(hanging)
		}
		var flying, most atomic.Int64
		d := startWithoutChores(t, Config{Senders: 16}, testDependencies(t, m), outside{transport: receiver(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path != "/hang" {
				return answers(200)
			}
			most.Store(max(most.Load(), flying.Add(1)))
			defer flying.Add(-1)
			return hang(r)
		})})
		synctest.Wait()
		for range 50 {
			id := m.add(healthy)
			m.notify()
			time.Sleep(time.Millisecond)
			if !slices.ContainsFunc(m.recorded(), func(a memoryAttempt) bool { return a.result.Claim.DeliveryID == id }) {
				t.Fatal("a delivery of the healthy endpoint waited behind the hanging one")
			}
			time.Sleep(777 * time.Millisecond)
		}
		if got := most.Load(); got != 8 {
			t.Errorf("senders held by the hanging endpoint: got %d, want half of 16", got)
		}
		d.end()
	})
}

// A lost listening connection is made again, ever more slowly, and meanwhile polling serves.
func TestLostListeningConnectionIsMadeAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &deaf{memory: newMemory()}
		endpoint := m.apply(testEndpoint(t, 1))
		d := startWithoutChores(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: receiver(ok)})
		for range 10 {
			time.Sleep(time.Minute)
			m.add(endpoint)
			time.Sleep(1100 * time.Millisecond)
			if m.pending() != 0 {
				t.Fatal("a delivery was not found while nobody listened")
			}
		}
		if got := m.tries.Load(); got < 40 || got > 150 {
			t.Errorf("tries to listen in ten minutes: got %d, want some at first and then one in ten seconds or so", got)
		}
		if got := testutil.ToFloat64(d.metrics.reconnects); int64(got) < m.tries.Load()-2 {
			t.Errorf("counted reconnects: got %v of %d", got, m.tries.Load())
		}
		d.end()
	})
}

// deaf cannot listen.
type deaf struct {
	*memory
	tries atomic.Int64
}

func (d *deaf) Listen(context.Context, func()) error {
	d.tries.Add(1)
	return errDown
}

func TestClaimerWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.breakDown(errDown)
		endpoint := m.apply(testEndpoint(t, 1))
		d := start(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(time.Minute)
		if d.Ready() == nil {
			t.Error("Ready before the database was there: got nil, want an error")
		}
		m.breakDown(nil)
		m.add(endpoint)
		time.Sleep(10 * time.Second)
		if m.pending() != 0 {
			t.Error("nothing was delivered after the database came")
		}
		if err := d.Ready(); err != nil {
			t.Errorf("Ready: got %v, want nil", err)
		}
		m.breakDown(errDown)
		time.Sleep(time.Second)
		if err := d.Ready(); err != nil {
			t.Errorf("Ready a second after the database went: got %v, want nil", err)
		}
		time.Sleep(time.Minute)
		if d.Ready() == nil {
			t.Error("Ready a minute after the database went: got nil, want an error")
		}
		m.breakDown(nil)
		time.Sleep(20 * time.Second)
		if err := d.Ready(); err != nil {
			t.Errorf("Ready after the database was back: got %v, want nil", err)
		}
		if m.turnsOf("listen") != 1 {
			t.Errorf("listening connections made: got %d, want 1", m.turnsOf("listen"))
		}
		d.end()
		if d.Ready() == nil {
			t.Error("Ready after the stop: got nil, want an error")
		}
	})
}

// loadFails cannot read endpoints until it is told otherwise.
type loadFails struct {
	*memory
	fail atomic.Bool
}

func (l *loadFails) Endpoints(ctx context.Context, ids []int64) ([]store.Endpoint, error) {
	if l.fail.Load() {
		return nil, errDown
	}
	return l.memory.Endpoints(ctx, ids)
}

func TestClaimsAreReleasedWhereTheirEndpointsCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &loadFails{memory: newMemory()}
		m.fail.Store(true)
		m.add(m.apply(testEndpoint(t, 1)))
		d := startWithoutChores(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(20 * time.Second)
		if claims := len(m.asked()); claims > 20 {
			t.Errorf("claims in 20 s: got %d, want a pause between them", claims)
		}
		m.fail.Store(false)
		time.Sleep(10 * time.Second)
		d.end()
		if attempts := m.recorded(); len(attempts) != 1 || attempts[0].result.Claim.Attempt != 1 || attempts[0].result.Verdict != store.Delivered {
			t.Errorf("attempts: got %+v, want the first one, delivered", attempts)
		}
	})
}

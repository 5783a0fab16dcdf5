package dispatcher

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
)

// 500 deliveries, 4 dispatchers × 8 senders, one Postgres: each delivered exactly once, and meanwhile no transaction is
// open longer than a claim or a record takes, least of all while a request hangs.
func TestFiveHundredDeliveriesAreEachMadeOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var endpoints []store.Endpoint
	for i := range 5 {
		endpoints = append(endpoints, f.endpoint("e"+strconv.Itoa(i), func(s *store.EndpointSpec) { s.MaxConcurrency = 100 }))
	}
	hanging := f.endpoint("hanging", func(s *store.EndpointSpec) { s.MaxConcurrency = 8; s.MaxAttempts = 1 })
	f.receiver.answer("hanging", hangs)
	var ids []uuid.UUID
	for _, e := range endpoints {
		ids = append(ids, f.post(100, "", e)...)
	}
	hung := f.post(8, "", hanging)

	sampling := sampleTransactions(f)
	for range 4 {
		f.dispatch(quickConfig(8))
	}
	f.waitFor(store.StateDelivered, ids...)
	longest, samples := sampling()
	if longest > time.Second || samples < 20 {
		t.Errorf("longest transaction of the dispatchers in %d samples: got %v, want a second at most, while requests hung for two", samples, longest)
	}
	for _, e := range endpoints {
		counts := f.receiver.counts(e.Name)
		if len(counts) != 100 {
			t.Errorf("%s: got %d events, want 100", e.Name, len(counts))
		}
		for id, n := range counts {
			if n != 1 {
				t.Errorf("%s: event %s came %d times, want once", e.Name, id, n)
			}
		}
	}
	for _, id := range ids {
		if attempts := f.delivery(id).Attempts; len(attempts) != 1 || attempts[0].Number != 1 {
			t.Errorf("event %s: attempts %+v, want number 1 alone", id, attempts)
		}
	}
	for _, id := range hung {
		if d := f.delivery(id); d.State != store.StateDead || d.Reason != string(AttemptsExhausted) || d.Attempts[0].Reason != string(Timeout) {
			t.Errorf("hanging event %s: got %+v, want dead, %s after %s", id, d, AttemptsExhausted, Timeout)
		}
	}
}

// sampleTransactions watches pg_stat_activity until the returned function is called.
func sampleTransactions(f *fixture) (stop func() (longest time.Duration, samples int)) {
	ctx, cancel := context.WithCancel(context.Background())
	var (
		sampling sync.WaitGroup
		seconds  float64
		count    int
	)
	sampling.Go(func() {
		conn, err := pgx.Connect(ctx, f.dsn)
		if err != nil {
			f.t.Errorf("sample transactions: %v", err)
			return
		}
		defer func() { _ = conn.Close(context.Background()) }()
		for ctx.Err() == nil {
			var age float64
			err := conn.QueryRow(ctx, `SELECT coalesce(max(extract(epoch FROM clock_timestamp() - xact_start)), 0)::float8
				FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`, applicationName).Scan(&age)
			if err == nil {
				seconds, count = max(seconds, age), count+1
			}
			time.Sleep(10 * time.Millisecond) // a sampling rate
		}
	})
	return func() (time.Duration, int) {
		cancel()
		sampling.Wait()
		return time.Duration(seconds * float64(time.Second)), count
	}
}

// killable is a database connection that can be cut as kill -9 cuts it: what was not answered by then never is.
type killable struct {
	*store.Store
	killed atomic.Bool
}

var errKilled = errors.New("the process is gone")

func (k *killable) Claim(ctx context.Context, r store.ClaimRequest) (store.Batch, error) {
	if k.killed.Load() {
		return store.Batch{}, errKilled
	}
	return k.Store.Claim(ctx, r)
}

func (k *killable) Complete(ctx context.Context, results []store.Result) ([]store.Recorded, error) {
	if k.killed.Load() {
		return nil, errKilled
	}
	return k.Store.Complete(ctx, results)
}

func (k *killable) Extend(ctx context.Context, leases []store.Lease, lease time.Duration) (map[int64]bool, time.Time, error) {
	if k.killed.Load() {
		return nil, time.Time{}, errKilled
	}
	return k.Store.Extend(ctx, leases, lease)
}

// One dispatcher killed midway: the rest finish its rows after the lease, and nothing is lost.
func TestKilledDispatcherLosesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("target", func(s *store.EndpointSpec) { s.MaxConcurrency, s.Timeout = 100, 8*time.Second })
	killed := make(chan struct{})
	var ofVictim atomic.Int64
	f.receiver.answer("target", func(_ http.ResponseWriter, q *http.Request) {
		// The victim's requests are answered for a while, then not before it is killed.
		if q.UserAgent() == "Postrider/victim" && ofVictim.Add(1) > 20 {
			<-killed
		}
	})
	ids := f.post(500, "", e)
	c := quickConfig(8)
	c.Version, c.Lease, c.MaxTimeout = "victim", 10*time.Second, 8*time.Second
	victim := &killable{Store: f.open(applicationName)}
	d := f.dispatch(c, func(d *Dependencies) { d.Store = victim })
	waitFor(t, "requests of the victim in flight", func() bool { return ofVictim.Load() > 20 })
	for range 3 {
		f.dispatch(quickConfig(8))
	}
	waitFor(t, "the others to deliver", func() bool { return len(f.receiver.of("target")) > 200 })
	victim.killed.Store(true)
	close(killed)
	f.waitFor(store.StateDelivered, ids...)
	counts := f.receiver.counts("target")
	again := 0
	for _, n := range counts {
		again += n - 1
	}
	if len(counts) != 500 {
		t.Errorf("events received: got %d, want all 500", len(counts))
	}
	// What the killed one had sent without recording it comes again: at least once, and no more than it held.
	if again == 0 || again > recordBuffer {
		t.Errorf("received again: got %d, want those that the killed dispatcher held", again)
	}
	second := 0
	for _, id := range ids {
		attempts := f.delivery(id).Attempts
		if len(attempts) != 1 || attempts[0].Number > 2 {
			t.Errorf("event %s: attempts %+v, want one recorded, number 1 or 2", id, attempts)
		}
		if attempts[0].Number == 2 {
			second++
		}
	}
	if second == 0 {
		t.Error("second attempts: got none, want those that the killed dispatcher held")
	}
	d.stop()
}

// A stop in the middle gives deliveries to the others at once, not after the lease.
func TestStoppedDispatcherHandsOverAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("stuck", func(s *store.EndpointSpec) { s.MaxConcurrency = 100 })
	f.receiver.answer("stuck", hangs)
	ids := f.post(8, "", e)
	c := quickConfig(16)
	c.Lease, c.Grace = time.Minute, -1
	first := f.dispatch(c)
	waitFor(t, "requests in flight", func() bool { return len(f.receiver.of("stuck")) == 8 })
	f.receiver.answer("stuck", nil)
	began := time.Now()
	first.end()
	f.dispatch(c)
	f.waitFor(store.StateDelivered, ids...)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("handing over took %v, want it at once and not after the lease of a minute", took)
	}
	for _, id := range ids {
		if attempts := f.delivery(id).Attempts; len(attempts) != 1 || attempts[0].Number != 1 {
			t.Errorf("event %s: attempts %+v, want number 1 given back and used", id, attempts)
		}
	}
}

// A dead endpoint with many rows due does not delay the healthy ones beside it.
func TestDeadEndpointDelaysNoHealthyOne(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	dead := f.endpoint("dead", func(s *store.EndpointSpec) {
		s.URL, s.MaxConcurrency = "http://"+closedPort(t)+"/dead", 1000
		s.FailureThreshold = 1000 // its circuit alone would be an easy way out
	})
	for range 10 {
		f.post(1000, "", dead)
	}
	var ids []uuid.UUID
	for i := range 50 {
		ids = append(ids, f.post(10, "", f.endpoint("healthy"+strconv.Itoa(i)))...)
	}
	f.dispatch(quickConfig(32))
	waitFor(t, "the healthy endpoints", func() bool {
		return ask[int](f, "SELECT count(*) FROM postrider.attempt WHERE outcome = 'delivered'") == len(ids)
	})
	// By turns the dead one gets no more than its share while the others have work.
	if failed := ask[int](f, "SELECT count(*) FROM postrider.attempt WHERE outcome <> 'delivered'"); failed > 2*len(ids) {
		t.Errorf("attempts at the dead endpoint before the healthy ones were served: got %d, want %d at most", failed, 2*len(ids))
	}
}

// Restart mid-backoff, with the real store: the retry still happens.
func TestRetryOutlivesItsDispatcher(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("flaky", func(s *store.EndpointSpec) { s.Schedule = []time.Duration{time.Second} })
	f.receiver.answer("flaky", failFirst(1, 503))
	ids := f.post(3, "", e)
	first := f.dispatch(quickConfig(8))
	waitFor(t, "the first attempts", func() bool { return len(f.receiver.of("flaky")) == 3 })
	first.end()
	if n := ask[int](f, "SELECT count(*) FROM postrider.delivery WHERE available_at > now() AND claim_token IS NULL"); n != 3 {
		t.Errorf("waiting for their retry: got %d, want 3", n)
	}
	f.dispatch(quickConfig(8))
	f.waitFor(store.StateDelivered, ids...)
}

// D7: one event to two endpoints that both fail once: both are retried. D6: the last scheduled retry is picked up.
func TestEachEndpointOfAnEventIsRetriedToItsLastAttempt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	schedule := func(s *store.EndpointSpec) {
		s.Schedule, s.MaxAttempts = []time.Duration{100 * time.Millisecond, 200 * time.Millisecond}, 3
	}
	a, b, never := f.endpoint("a", schedule), f.endpoint("b", schedule), f.endpoint("never", schedule)
	f.receiver.answer("a", failFirst(1, 500))
	f.receiver.answer("b", failFirst(2, 502)) // delivered by its last attempt
	f.receiver.answer("never", status(503))
	f.dispatch(quickConfig(8))
	id := f.post(1, "", a, b, never)[0]
	f.waitForPending(func(pending int) bool { return pending == 0 })
	want := map[string]struct {
		state    store.DeliveryState
		attempts int
		reason   Reason
	}{"a": {store.StateDelivered, 2, ""}, "b": {store.StateDelivered, 3, ""}, "never": {store.StateDead, 3, AttemptsExhausted}}
	for _, d := range f.event(id).Deliveries {
		w := want[d.Endpoint]
		if d.State != w.state || len(d.Attempts) != w.attempts || d.Reason != string(w.reason) {
			t.Errorf("%s: got %s %s after %d attempts, want %s %s after %d", d.Endpoint, d.State, d.Reason, len(d.Attempts), w.state, w.reason, w.attempts)
		}
	}
}

// D4, D5, with the real store: 403 dies at once, 40 attempts are 40, and each death says why.
func TestAttemptsAreCountedToTheEnd(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	quick := func(attempts int) func(*store.EndpointSpec) {
		return func(s *store.EndpointSpec) {
			s.MaxAttempts, s.Schedule = attempts, []time.Duration{time.Millisecond}
		}
	}
	f.receiver.answer("forbidden", status(403))
	f.receiver.answer("broken", status(500))
	f.receiver.answer("forty", status(500))
	f.dispatch(quickConfig(8))
	for _, test := range []struct {
		endpoint store.Endpoint
		attempts int
		reason   Reason
		last     Reason
	}{
		{f.endpoint("forbidden", quick(3)), 1, Rejected, Rejected},
		{f.endpoint("broken", quick(3)), 3, AttemptsExhausted, ServerError},
		{f.endpoint("forty", quick(40)), 40, AttemptsExhausted, ServerError},
		{f.endpoint("once", func(s *store.EndpointSpec) { s.MaxDuration, s.URL = 0, "http://"+closedPort(t) }), 1, Expired, ConnectionRefused},
	} {
		id := f.post(1, "", test.endpoint)[0]
		f.waitForPending(func(pending int) bool { return pending == 0 })
		d := f.delivery(id)
		if d.State != store.StateDead || d.Reason != string(test.reason) || len(d.Attempts) != test.attempts {
			t.Fatalf("%s: got %s %s after %d attempts, want dead, %s after %d", test.endpoint.Name, d.State, d.Reason, len(d.Attempts), test.reason, test.attempts)
		}
		for i, a := range d.Attempts {
			if a.Number != i+1 || a.Reason != string(test.last) {
				t.Errorf("%s: attempt %d is number %d with %s, want %s", test.endpoint.Name, i+1, a.Number, a.Reason, test.last)
			}
		}
	}
}

// D1, over HTTP and with the real store: each status that asks for another try gets one.
func TestEachRetryableStatusIsRetried(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var endpoints []store.Endpoint
	for _, code := range []int{500, 502, 503, 504, 408, 425, 429} {
		name := strconv.Itoa(code)
		f.receiver.answer(name, failFirst(1, code))
		endpoints = append(endpoints, f.endpoint(name, func(s *store.EndpointSpec) { s.Schedule = []time.Duration{time.Millisecond} }))
	}
	f.dispatch(quickConfig(8))
	id := f.post(1, "", endpoints...)[0]
	f.waitForPending(func(pending int) bool { return pending == 0 })
	for _, d := range f.event(id).Deliveries {
		if d.State != store.StateDelivered || len(d.Attempts) != 2 || strconv.Itoa(d.Attempts[0].Status) != d.Endpoint || d.Attempts[0].Outcome != store.Retry {
			t.Errorf("%s: got %s after %+v, want delivered by the second attempt", d.Endpoint, d.State, d.Attempts)
		}
	}
}

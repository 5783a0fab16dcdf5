package dispatcher

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/store"
)

// The claimer looks again at the moment when an endpoint's next token is there, be that in an hour or in 100 µs, and not
// when polling happens to come by.
func TestTheClaimerLooksWhenTheNextTokenIsThere(t *testing.T) {
	t.Parallel()
	for _, rate := range []store.Rate{
		{Requests: 1, Per: time.Hour, Burst: 1},
		{Requests: 7, Per: time.Hour, Burst: 3},
		{Requests: 6, Per: time.Minute, Burst: 6},
		{Requests: 3, Per: time.Second, Burst: 1},
		{Requests: 1000, Per: time.Second, Burst: 1000},
		{Requests: 10_000, Per: time.Second, Burst: 1},
	} {
		t.Run(fmt.Sprintf("%d per %v", rate.Requests, rate.Per), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				var looks []time.Time
				m.onClaim = func(store.ClaimRequest) { looks = append(looks, m.now()) }
				endpoint := testEndpoint(t, 1)
				endpoint.Spec.Rate = &rate
				m.add(m.apply(endpoint))
				// Polling is out of step with every token.
				c := Config{Senders: 4, PollMin: 47 * time.Second, PollMax: 47 * time.Second}
				d := startWithoutChores(t, c, testDependencies(t, m), outside{transport: receiver(ok)})
				synctest.Wait()
				sent := m.now() // within the bubble no time has passed
				token := rate.Per / time.Duration(rate.Requests)
				time.Sleep(token + time.Second)
				d.end()
				m.mu.Lock()
				defer m.mu.Unlock()
				due := sent.Add(token)
				if i := slices.IndexFunc(looks, func(at time.Time) bool { return !at.Before(due) }); i < 0 || looks[i].Sub(due) > time.Millisecond {
					t.Errorf("looked at %v, want it at %v", looks, due)
				}
			})
		})
	}
}

// watched notes of each request how many were in flight when it came, itself included, and keeps it until it is let go.
type watched struct {
	mu     sync.Mutex
	flying int
	seen   []int
	letGo  chan chan<- struct{} // closed: all are
}

func (s *watched) answer(w http.ResponseWriter, q *http.Request) {
	s.mu.Lock()
	s.flying++
	s.seen = append(s.seen, s.flying)
	s.mu.Unlock()
	var told chan<- struct{}
	select {
	case told = <-s.letGo:
	case <-q.Context().Done():
	}
	s.mu.Lock()
	s.flying--
	s.mu.Unlock()
	if told != nil {
		close(told)
	}
	w.WriteHeader(http.StatusNoContent)
}

// endOne lets one request go, which is no longer counted when it returns.
func (s *watched) endOne(t testing.TB) {
	t.Helper()
	gone := make(chan struct{})
	select {
	case s.letGo <- gone:
		<-gone
	case <-time.After(time.Minute):
		t.Fatal("waited a minute for a request in flight")
	}
}

func (s *watched) inFlight() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.flying
}

// since are the numbers in flight at each request after the first n.
func (s *watched) since(n int) []int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen[n:])
}

// maxConcurrency is lowered below what is in flight and raised again, under load at two dispatchers: from each change on no
// request comes above it, and all of it is used.
func TestMaxConcurrencyChangesUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("narrow", func(s *store.EndpointSpec) { s.MaxConcurrency, s.Timeout = 6, 20*time.Second })
	requests := &watched{letGo: make(chan chan<- struct{})}
	f.receiver.answer("narrow", requests.answer)
	c := quickConfig(8)
	c.Lease, c.MaxTimeout = 30*time.Second, 20*time.Second
	for range 2 {
		f.dispatch(c)
	}
	ids := f.post(60, "", e)
	was := 6
	for _, limit := range []int{2, 5, 1, 6, 3} {
		// None of those that were claimed before the change are on their way.
		waitFor(t, fmt.Sprintf("%d in flight", was), func() bool { return requests.inFlight() == was })
		was = limit
		before := len(requests.since(0))
		e = f.apply(e, setSpec(func(s *store.EndpointSpec) { s.MaxConcurrency = limit }))
		for range 8 { // one after the other ends
			waitFor(t, fmt.Sprintf("%d in flight or more", limit), func() bool { return requests.inFlight() >= limit })
			requests.endOne(t)
		}
		waitFor(t, fmt.Sprintf("%d in flight", limit), func() bool { return requests.inFlight() == limit })
		for i, n := range requests.since(before) {
			if n > limit {
				t.Errorf("limit %d: request %d was one of %d in flight", limit, i, n)
			}
		}
	}
	close(requests.letGo)
	f.waitFor(store.StateDelivered, ids...)
}

// A rate is raised, lowered and removed under load at two dispatchers. From each change on no more requests come than
// the new rate and one burst allow.
func TestARateChangesUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("paced", func(s *store.EndpointSpec) { s.Rate = &store.Rate{Requests: 30, Per: time.Second, Burst: 3} })
	for range 2 {
		f.dispatch(quickConfig(8))
	}
	ids := f.post(200, "", e)
	wasBurst := 3
	for _, rate := range []*store.Rate{
		{Requests: 100, Per: time.Second, Burst: 10},
		{Requests: 10, Per: time.Second, Burst: 2},
		{Requests: 10, Per: time.Second, Burst: 1},
	} {
		e = f.apply(e, setSpec(func(s *store.EndpointSpec) { s.Rate = rate }))
		changed, before := time.Now(), len(f.receiver.of("paced"))
		waitFor(t, "requests at the new rate", func() bool { return len(f.receiver.of("paced")) >= before+rate.Burst+20 })
		// What one claim got may be on its way from before the change.
		early := wasBurst + 2
		wasBurst = rate.Burst
		after := f.receiver.of("paced")[before:]
		for i, q := range after {
			if most := float64(early+rate.Burst) + q.at.Sub(changed).Seconds()*float64(rate.Requests) + 1; float64(i+1) > most {
				t.Fatalf("%d per second: %d requests within %v of the change, want %.0f at most", rate.Requests, i+1, q.at.Sub(changed), most)
			}
		}
	}
	f.apply(e, setSpec(func(s *store.EndpointSpec) { s.Rate = nil }))
	f.waitFor(store.StateDelivered, ids...)
	for id, n := range f.receiver.counts("paced") {
		if n != 1 {
			t.Errorf("event %s came %d times", id, n)
		}
	}
}

// The receiver asks for a retry later than the cooldown. The probe is another delivery, which closes the circuit; what was
// asked to wait waits on, and nothing is sent in between.
func TestRetryAfterOutlastsAnOpenCircuit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const cooldown = 500 * time.Millisecond
	e := f.endpoint("down", func(s *store.EndpointSpec) {
		s.FailureThreshold, s.Cooldown, s.MaxCooldown, s.MaxConcurrency = 1, cooldown, cooldown, 1
	})
	var once sync.Once
	f.receiver.answer("down", func(w http.ResponseWriter, _ *http.Request) {
		once.Do(func() {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusServiceUnavailable)
		})
	})
	f.post(10, "", e)
	f.dispatch(quickConfig(8))
	f.waitForPending(func(pending int) bool { return pending == 1 })
	requests := f.receiver.of("down")
	if len(requests) != 10 || !f.activity(e).OpenUntil.IsZero() {
		t.Fatalf("got %d requests and a circuit open until %v, want ten and closed", len(requests), f.activity(e).OpenUntil)
	}
	if waited := requests[1].at.Sub(requests[0].at); waited < cooldown-50*time.Millisecond {
		t.Errorf("the probe came after %v, want the cooldown of %v", waited, cooldown)
	}
	for id, n := range f.receiver.counts("down") {
		if n != 1 {
			t.Errorf("event %s came %d times", id, n)
		}
	}
}

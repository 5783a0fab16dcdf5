package dispatcher

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/store"
)

// A stop finishes what is in flight within the grace period and gives back the rest, attempt numbers included.
func TestStopFinishesWhatItCanAndReleasesTheRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		quick, hanging := testEndpoint(t, 1), testEndpoint(t, 2)
		quick.Spec.URL = "http://127.0.0.1:1/quick"
		quick.Spec.Timeout, hanging.Spec.Timeout = 30*time.Second, 30*time.Second
		quick, hanging = m.apply(quick), m.apply(hanging)
		for range 10 {
			m.add(quick)
			m.add(hanging)
		}
		d := start(t, Config{Senders: 8, Grace: 20 * time.Second}, testDependencies(t, m), outside{transport: receiver(func(r *http.Request) (*http.Response, error) {
			if r.URL.Path == "/quick" {
				return slowly(15 * time.Second)(r)
			}
			return hang(r)
		})})
		time.Sleep(time.Second) // four of each are in flight
		began := time.Now()
		d.end()
		if took := time.Since(began); took != 20*time.Second {
			t.Errorf("the stop took %v, want the grace period of 20s", took)
		}
		attempts := m.recorded()
		if len(attempts) != 4 {
			t.Errorf("attempts: got %d, want the 4 of the quick endpoint", len(attempts))
		}
		for _, a := range attempts {
			if a.result.Verdict != store.Delivered || a.result.Claim.EndpointID != quick.ID {
				t.Errorf("attempt: got %s of endpoint %d, want delivered of %d", a.result.Verdict, a.result.Claim.EndpointID, quick.ID)
			}
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.rows) != 16 {
			t.Errorf("pending: got %d, want 16", len(m.rows))
		}
		for id, row := range m.rows {
			if row.held || row.claim.Attempt != 0 {
				t.Errorf("delivery %d: held %v after %d attempts, want it free for others and unattempted", id, row.held, row.claim.Attempt)
			}
		}
	})
}

func TestStopWithoutGraceReleasesAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		endpoint := m.apply(testEndpoint(t, 1))
		m.add(endpoint)
		d := start(t, Config{Senders: 8, Grace: -1}, testDependencies(t, m), outside{transport: receiver(hang)})
		time.Sleep(time.Second)
		began := time.Now()
		d.end()
		if took := time.Since(began); took != 0 {
			t.Errorf("the stop took %v, want nothing", took)
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.rows) != 1 || m.rows[1].held {
			t.Errorf("pending: got %+v, want the one, free", m.rows)
		}
	})
}

// A stop while the database is away ends all the same: the leases will.
func TestStopDoesNotWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.add(m.apply(testEndpoint(t, 1)))
		d := start(t, Config{Senders: 8, Grace: time.Second}, testDependencies(t, m), outside{transport: slowly(2 * time.Second)})
		time.Sleep(time.Second)
		m.breakDown(errDown)
		time.Sleep(5 * time.Second)
		began := time.Now()
		d.end()
		if took := time.Since(began); took > flushTime+recordTimeout {
			t.Errorf("the stop took %v, want %v at most", took, flushTime+recordTimeout)
		}
	})
}

// A stop ends also while outcomes cannot be recorded, so many that the senders wait with theirs in hand.
func TestStopEndsWithTheRecorderFull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &commits{memory: newMemory(), failing: func([]store.Result) error { return errDown }}
		for lane := int64(1); lane <= 4; lane++ {
			endpoint := m.apply(testEndpoint(t, lane))
			for range 600 {
				m.add(endpoint)
			}
		}
		d := startWithoutChores(t, Config{Senders: 100, Lease: time.Hour}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(time.Minute)
		if free := d.recorder.claimer.seats.free(); free != 0 {
			t.Fatalf("free senders: got %d, want all to wait for the recorder", free)
		}
		began := time.Now()
		d.end()
		if took, most := time.Since(began), 35*time.Second+flushTime+recordTimeout; took > most {
			t.Errorf("the stop took %v, want %v at most", took, most)
		}
		if got := testutil.ToFloat64(d.metrics.unrecorded); got < recordBuffer {
			t.Errorf("lost outcomes: got %v, want those that could not be recorded counted", got)
		}
	})
}

func TestRunsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := start(t, Config{}, testDependencies(t, newMemory()), outside{})
		d.end()
		if err := d.Run(t.Context()); err == nil {
			t.Error("a second Run: got nil, want an error")
		}
	})
}

// A lease close to its end is extended by its owner.
func TestLateRequestGetsALongerLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &slowClaims{memory: newMemory(), wait: 15 * time.Second}
		endpoint := testEndpoint(t, 1)
		endpoint.Spec.Timeout = 30 * time.Second
		m.add(m.apply(endpoint))
		d := startWithoutChores(t, Config{Senders: 8, Lease: 36 * time.Second}, testDependencies(t, m), outside{transport: slowly(29 * time.Second)})
		time.Sleep(time.Minute)
		d.end()
		attempts := m.recorded()
		if len(attempts) != 1 || attempts[0].result.Verdict != store.Delivered || m.fenced != 0 {
			t.Errorf("attempts: got %+v (%d fenced), want one, delivered", attempts, m.fenced)
		}
		if m.extended.Load() == 0 {
			t.Error("leases extended: got none, want one")
		}
	})
}

// Where the lease is lost, or cannot be extended, the request is abandoned before the lease ends.
func TestRequestIsAbandonedBeforeItsLeaseEnds(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		deny bool // by the database's answer, or by no answer
		want Reason
	}{{"the claim is lost", true, LeaseEnding}, {"the database is away", false, LeaseEnding}} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &slowClaims{memory: newMemory(), wait: 15 * time.Second, deny: test.deny, fail: !test.deny}
				endpoint := testEndpoint(t, 1)
				endpoint.Spec.Timeout = 30 * time.Second
				m.add(m.apply(endpoint))
				began := time.Now()
				var ended atomic.Int64
				d := startWithoutChores(t, Config{Senders: 8, Lease: 36 * time.Second}, testDependencies(t, m), outside{transport: receiver(func(r *http.Request) (*http.Response, error) {
					defer func() { ended.Store(int64(time.Since(began))) }()
					return hang(r)
				})})
				time.Sleep(40 * time.Second)
				d.stop()
				if got, most := time.Duration(ended.Load()), 36*time.Second-2500*time.Millisecond+time.Second; got > most || got < 15*time.Second {
					t.Errorf("the request ended after %v, want it abandoned by %v", got, most)
				}
				attempts := m.recorded()
				if len(attempts) != 1 || attempts[0].result.Reason != string(test.want) || attempts[0].result.Verdict != store.Retry {
					t.Errorf("attempts: got %+v, want one to be retried, %s", attempts, test.want)
				}
				d.end()
			})
		})
	}
}

// slowClaims is a database whose answers to claims take their time on the way, which is what makes requests begin late.
type slowClaims struct {
	*memory
	wait       time.Duration
	deny, fail bool
	extended   atomic.Int64
}

func (s *slowClaims) Claim(ctx context.Context, r store.ClaimRequest) (store.Batch, error) {
	defer time.Sleep(s.wait)
	return s.memory.Claim(ctx, r)
}

func (s *slowClaims) Extend(ctx context.Context, leases []store.Lease, lease time.Duration) (map[int64]bool, time.Time, error) {
	switch {
	case s.fail:
		return nil, time.Time{}, errDown
	case s.deny:
		return nil, s.now(), nil
	}
	s.extended.Add(int64(len(leases)))
	return s.memory.Extend(ctx, leases, lease)
}

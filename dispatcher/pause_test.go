package dispatcher

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/store"
)

// While the installation is paused the claimer looks now and then, however often producers ring, and at once when it is
// resumed.
func TestAPausedClaimerRestsAndWakesWithTheResume(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		m.paused = true
		m.add(m.apply(testEndpoint(t, 1)))
		d := startWithoutChores(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(time.Minute)
		before := len(m.asked())
		if before > 75 {
			t.Errorf("claims in a paused minute: got %d, want about one a second", before)
		}
		for range 1000 {
			m.notify()
			time.Sleep(10 * time.Millisecond)
		}
		if got := len(m.asked()) - before; got > 105 {
			t.Errorf("claims in ten seconds with a thousand notifications: got %d, want ten a second at most", got)
		}
		if m.pending() != 1 {
			t.Error("a delivery of a paused installation was sent")
		}
		time.Sleep(time.Minute)
		m.mu.Lock()
		m.paused = false
		m.mu.Unlock()
		m.notify()
		time.Sleep(pausedPause)
		synctest.Wait()
		if m.pending() != 0 {
			t.Error("the resume did not wake it")
		}
		d.end()
	})
}

// loadsSlowly takes its time to read endpoints.
type loadsSlowly struct {
	*memory
	time time.Duration
}

func (l *loadsSlowly) Endpoints(ctx context.Context, ids []int64) ([]store.Endpoint, error) {
	time.Sleep(l.time)
	return l.memory.Endpoints(ctx, ids)
}

// A delivery that was claimed before a pause is not sent long after it.
func TestWhatCannotBeSentSoonAfterItsClaimIsGivenBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &loadsSlowly{memory: newMemory(), time: 2 * handOutTime}
		m.add(m.apply(testEndpoint(t, 1)))
		m.onClaim = func(store.ClaimRequest) { m.paused = len(m.claims) == 2 } // in force right after the first claim
		d := startWithoutChores(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(m.time + pausedPause/2)
		if n := len(m.recorded()); n != 0 || m.pending() != 1 {
			t.Errorf("%d attempts, %d pending; want the delivery given back", n, m.pending())
		}
		time.Sleep(time.Minute)
		d.end()
		if attempts := m.recorded(); len(attempts) != 1 || attempts[0].result.Claim.Attempt != 1 || attempts[0].result.Verdict != store.Delivered {
			t.Errorf("attempts: got %+v, want the first one, delivered once its endpoint was known", attempts)
		}
	})
}

// Under load, with two dispatchers: nothing is sent later than a second after the pause's return, what is in flight ends
// normally and is recorded, events are accepted on, and with the resume everything is delivered, once. D15, for the state
// of an endpoint.
func TestNothingIsSentAfterAPause(t *testing.T) {
	t.Parallel()
	operator := func(scope string) func(*fixture, *store.Endpoint, bool) error {
		return func(f *fixture, _ *store.Endpoint, paused bool) (err error) {
			if paused {
				_, err = f.Pause(f.t.Context(), scope, "a test")
			} else {
				_, err = f.Resume(f.t.Context(), scope)
			}
			return err
		}
	}
	for name, set := range map[string]func(f *fixture, busy *store.Endpoint, paused bool) error{
		"installation": operator(store.WholeInstallation),
		"namespace":    operator("billing"),
		"endpoint, by its state": func(f *fixture, busy *store.Endpoint, paused bool) error {
			*busy = f.apply(*busy, setSpec(func(s *store.EndpointSpec) {
				if s.State = store.Enabled; paused {
					s.State = store.Paused
				}
			}))
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			busy, slow := f.endpoint("busy"), f.endpoint("slow")
			target := busy
			f.receiver.answer("busy", func(w http.ResponseWriter, _ *http.Request) { time.Sleep(time.Millisecond); w.WriteHeader(204) })
			release, begun := make(chan struct{}), make(chan struct{})
			var once sync.Once
			f.receiver.answer("slow", func(w http.ResponseWriter, _ *http.Request) {
				once.Do(func() { close(begun) })
				<-release
				w.WriteHeader(204)
			})
			for range 2 {
				f.dispatch(quickConfig(8))
			}
			inFlight := f.post(1, "", slow)
			select {
			case <-begun:
			case <-time.After(time.Minute):
				t.Fatal("waited a minute for the first request")
			}
			var posting sync.WaitGroup
			var posted []uuid.UUID
			var stop atomic.Bool
			posting.Go(func() {
				for !stop.Load() {
					posted = append(posted, f.post(10, "", target)...)
					time.Sleep(10 * time.Millisecond)
				}
			})
			waitFor(t, "a load", func() bool { return len(f.receiver.of("busy")) > 50 })

			if err := set(f, &busy, true); err != nil {
				t.Error(err)
			}
			returned := time.Now()
			close(release)
			waitFor(t, "the record of what was in flight", func() bool { return f.delivery(inFlight[0]).State == store.StateDelivered })
			time.Sleep(1200 * time.Millisecond) // what is sent meanwhile is what this is about
			stop.Store(true)
			posting.Wait()
			if late := slices.IndexFunc(f.receiver.of("busy"), func(r received) bool { return r.at.Sub(returned) > time.Second/2 }); late >= 0 {
				t.Errorf("a request came %v after the pause", f.receiver.of("busy")[late].at.Sub(returned))
			}
			if n := ask[int](f, `SELECT count(*) FROM postrider.delivery`); n == 0 {
				t.Fatal("nothing was left to be sent")
			}
			if err := set(f, &busy, false); err != nil {
				t.Error(err)
			}
			f.waitFor(store.StateDelivered, posted...)
			for id, n := range f.receiver.counts("busy") {
				if n != 1 {
					t.Errorf("event %s came %d times", id, n)
				}
			}
		})
	}
}

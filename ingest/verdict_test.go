package ingest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// passport is a value of verdicts in these tests.
type passport struct {
	name    string
	expires time.Time
}

func (p passport) validUntil() time.Time { return p.expires }

type outageLog struct{ fails, resumes atomic.Int32 }

func (o *outageLog) reviewsFail(error) { o.fails.Add(1) }
func (o *outageLog) reviewsResume()    { o.resumes.Add(1) }

// office is an API server of these tests: it answers what it is told to, and counts.
type office struct {
	mu      sync.Mutex
	answer  func(context.Context) (passport, error)
	asked   int
	outages outageLog

	server   *apiServer
	verdicts *verdicts[passport]
}

var reviewDefaults = ReviewConfig{
	Timeout: 3 * time.Second, AllowFor: 30 * time.Second, DenyFor: 5 * time.Second,
	OutageGrace: 15 * time.Minute, MaxInFlight: 2, Remember: 100,
}

func newOffice(config ReviewConfig) *office {
	o := &office{}
	o.server = newAPIServer(config, newMetrics(prometheus.NewRegistry()), &o.outages)
	o.verdicts = newVerdicts[passport](config, o.server, "token")
	return o
}

func (o *office) answers(answer func(context.Context) (passport, error)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answer = answer
}

func (o *office) ask(ctx context.Context) (passport, error) {
	o.mu.Lock()
	o.asked++
	answer := o.answer
	o.mu.Unlock()
	return answer(ctx)
}

func (o *office) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.asked
}

// judge asks for a key and expects an error, nil for none.
func (o *office) judge(t *testing.T, key byte, want error) {
	t.Helper()
	if _, err := o.verdicts.judge(digest{key}, o.ask); !errors.Is(err, want) {
		t.Errorf("key %d: got %v, want %v", key, err, want)
	}
}

func allows(context.Context) (passport, error)  { return passport{name: "producer"}, nil }
func refuses(context.Context) (passport, error) { return passport{}, errRefused }
func isAway(context.Context) (passport, error)  { return passport{}, errors.New("connection refused") }

// hangs answers with the deadline, as a server that does not.
func hangs(ctx context.Context) (passport, error) {
	<-ctx.Done()
	return passport{}, ctx.Err()
}

func TestAnswersCountForTheirTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(reviewDefaults)
		defer o.server.close()
		o.answers(allows)
		o.judge(t, 1, nil)
		time.Sleep(29 * time.Second)
		o.judge(t, 1, nil)
		if got := o.count(); got != 1 {
			t.Errorf("asked %d times within AllowFor, want 1", got)
		}
		time.Sleep(time.Second)
		o.answers(refuses)
		o.judge(t, 1, errRefused)
		time.Sleep(4 * time.Second)
		o.answers(allows)
		o.judge(t, 1, errRefused)
		time.Sleep(time.Second)
		o.judge(t, 1, nil)
		if got := o.count(); got != 3 {
			t.Errorf("asked %d times, want 3", got)
		}
	})
}

func TestLastAllowServesWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(reviewDefaults)
		defer o.server.close()
		o.answers(allows)
		o.judge(t, 1, nil)
		o.answers(isAway)
		time.Sleep(time.Minute)
		o.judge(t, 1, nil)
		o.judge(t, 2, errAway) // never seen before
		time.Sleep(14*time.Minute - time.Second)
		o.judge(t, 1, nil)
		time.Sleep(time.Second)
		synctest.Wait()
		o.judge(t, 1, errAway)
		if fails := o.outages.fails.Load(); fails != 1 {
			t.Errorf("the outage was logged %d times, want 1", fails)
		}
		o.answers(allows)
		o.judge(t, 1, nil)
		if resumes := o.outages.resumes.Load(); resumes != 1 {
			t.Errorf("the end of the outage was logged %d times, want 1", resumes)
		}
	})
}

func TestADenialEndsTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(reviewDefaults)
		defer o.server.close()
		o.answers(allows)
		o.judge(t, 1, nil)
		time.Sleep(31 * time.Second)
		o.answers(refuses)
		o.judge(t, 1, errRefused)
		o.answers(isAway)
		o.judge(t, 1, errRefused)
		time.Sleep(6 * time.Second)
		o.judge(t, 1, errAway)
	})
}

// A denial that is heard by the background probe counts as much as one that a request waits for.
func TestADenialHeardInTheBackgroundEndsTheGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(reviewDefaults)
		defer o.server.close()
		o.answers(allows)
		o.judge(t, 1, nil)
		time.Sleep(31 * time.Second)
		o.answers(isAway)
		o.judge(t, 1, nil)
		o.answers(refuses)
		time.Sleep(2 * time.Second)
		o.judge(t, 1, nil) // begins the probe
		synctest.Wait()
		o.answers(isAway)
		o.judge(t, 1, errRefused)
	})
}

func TestATokenThatExpiresEndsItsGrace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(reviewDefaults)
		defer o.server.close()
		expires := time.Now().Add(10 * time.Second)
		o.answers(func(context.Context) (passport, error) { return passport{expires: expires}, nil })
		o.judge(t, 1, nil)
		o.answers(isAway)
		time.Sleep(10 * time.Second)
		o.judge(t, 1, errAway)
	})
}

func TestGraceOfZeroIsNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		config := reviewDefaults
		config.OutageGrace = 0
		o := newOffice(config)
		defer o.server.close()
		o.answers(allows)
		o.judge(t, 1, nil)
		o.answers(isAway)
		o.judge(t, 1, nil) // within AllowFor
		time.Sleep(30 * time.Second)
		o.judge(t, 1, errAway)
	})
}

// An API server that hangs costs the first request its timeout; the others do not wait.
func TestKnownIdentitiesDoNotWaitForAHangingAPIServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(reviewDefaults)
		defer o.server.close()
		o.answers(allows)
		o.judge(t, 1, nil)
		o.answers(hangs)
		time.Sleep(time.Minute)
		began := time.Now()
		o.judge(t, 1, nil)
		if took := time.Since(began); took != reviewDefaults.Timeout {
			t.Errorf("the first took %v, want the timeout", took)
		}
		began = time.Now()
		for range 100 {
			o.judge(t, 1, nil)
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("the others waited %v", took-time.Second)
		}
	})
}

func TestReviewsOfOneTokenAreShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(reviewDefaults)
		defer o.server.close()
		o.answers(func(context.Context) (passport, error) {
			time.Sleep(time.Second)
			return passport{}, nil
		})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { o.judge(t, 1, nil) })
		}
		all.Wait()
		if got := o.count(); got != 1 {
			t.Errorf("asked %d times, want 1", got)
		}
	})
}

// Garbage tokens are a live review each. They keep neither known identities out nor more than their slots busy.
func TestGarbageTokensAreBoundedAndKeepNobodyOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(reviewDefaults)
		defer o.server.close()
		o.answers(allows)
		o.judge(t, 0, nil)
		time.Sleep(time.Minute)

		var flying, most, busy atomic.Int32
		garbage := func(context.Context) (passport, error) {
			most.Store(max(most.Load(), flying.Add(1)))
			defer flying.Add(-1)
			time.Sleep(900 * time.Millisecond)
			return passport{}, errRefused
		}
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				key := digest{1, byte(i), byte(i >> 8)}
				if _, err := o.verdicts.judge(key, garbage); errors.Is(err, errBusy) {
					busy.Add(1)
				} else if !errors.Is(err, errRefused) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		if got, want := int(busy.Load()), 1000-maxWaiting-reviewDefaults.MaxInFlight; got != want {
			t.Errorf("%d were sent away at once, want %d", got, want)
		}
		began := time.Now()
		o.judge(t, 0, nil)
		if took := time.Since(began); took != 0 {
			t.Errorf("a known identity waited %v", took)
		}
		if got := o.count(); got != 2 {
			t.Errorf("the known identity was reviewed %d times, want a second time", got)
		}
		all.Wait()
		if most.Load() > int32(reviewDefaults.MaxInFlight) {
			t.Errorf("%d reviews at once, want at most %d", most.Load(), reviewDefaults.MaxInFlight)
		}
		if busy.Load() < 900 {
			t.Errorf("only %d of 1000 were sent away", busy.Load())
		}
		if got := o.verdicts.allowed.len(); got != 1 {
			t.Errorf("%d allowing answers are remembered, want 1", got)
		}
	})
}

func TestMemoryIsBounded(t *testing.T) {
	t.Parallel()
	o := newOffice(reviewDefaults)
	defer o.server.close()
	for i := range 3 * maxDenied {
		answer := allows
		if i%2 == 0 {
			answer = refuses
		}
		o.answers(answer)
		_, _ = o.verdicts.judge(digest{byte(i), byte(i >> 8)}, o.ask)
	}
	if got := o.verdicts.allowed.len(); got > reviewDefaults.Remember {
		t.Errorf("%d allowing answers are remembered, want at most %d", got, reviewDefaults.Remember)
	}
	if got := o.verdicts.denied.len(); got > maxDenied {
		t.Errorf("%d refusals are remembered, want at most %d", got, maxDenied)
	}
}

func TestStopEndsReviewsAndSaysNothingOfTheAPIServer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		o := newOffice(reviewDefaults)
		o.answers(hangs)
		var all sync.WaitGroup
		all.Go(func() { o.judge(t, 1, errAway) })
		synctest.Wait()
		o.server.close()
		all.Wait()
		if o.outages.fails.Load() != 0 {
			t.Error("an outage was logged")
		}
	})
}

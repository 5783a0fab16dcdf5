package dispatcher

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/store"
)

// commits is a database whose commits take a time, and may lose their answer.
type commits struct {
	*memory
	take time.Duration

	mu      sync.Mutex
	sizes   []int
	at      int
	most    int
	lose    int                                // answers to lose
	refuse  func(store.Result) error           // rows
	failing func(results []store.Result) error // batches
}

func (c *commits) Complete(ctx context.Context, results []store.Result) ([]store.Recorded, error) {
	c.mu.Lock()
	c.sizes = append(c.sizes, len(results))
	c.at++
	c.most = max(c.most, c.at)
	take, lose := c.take, c.lose > 0
	if lose {
		c.lose--
	}
	c.mu.Unlock()
	time.Sleep(take)
	defer func() {
		c.mu.Lock()
		c.at--
		c.mu.Unlock()
	}()
	if c.failing != nil {
		if err := c.failing(results); err != nil {
			return nil, err
		}
	}
	var accepted []store.Result
	recorded := make([]store.Recorded, len(results))
	var index []int
	for i, r := range results {
		if c.refuse != nil {
			if recorded[i].Err = c.refuse(r); recorded[i].Err != nil {
				continue
			}
		}
		accepted, index = append(accepted, r), append(index, i)
	}
	did, err := c.memory.Complete(ctx, accepted)
	if err != nil {
		return nil, err
	}
	for n, i := range index {
		recorded[i] = did[n]
	}
	if lose {
		return nil, errors.Join(errDown, context.DeadlineExceeded)
	}
	return recorded, nil
}

// Batches follow one another while recording is quick, since two halves cost more than one whole.
func TestOutcomesGatherWhileACommitRuns(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		outcomes     int
		take         time.Duration
		most, atOnce int
	}{
		"quick":             {recordBatch - 100, recordOverlap / 2, 12, 1},
		"slow":              {recordBatch - 100, 50 * time.Millisecond, 12, completers},
		"beyond whole ones": {2 * recordBatch, recordOverlap / 2, 12, completers},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &commits{memory: newMemory(), take: c.take}
				for lane := int64(1); lane <= 4; lane++ {
					endpoint := m.apply(testEndpoint(t, lane))
					for range c.outcomes / 4 {
						m.add(endpoint)
					}
				}
				d := startWithoutChores(t, Config{Senders: 100}, testDependencies(t, m), outside{transport: slowly(time.Millisecond)})
				for m.pending() > 0 {
					time.Sleep(10 * time.Millisecond)
				}
				d.end()
				largest := 0
				for _, n := range m.sizes {
					largest = max(largest, n)
				}
				if m.most != c.atOnce || largest > recordBatch || len(m.sizes) > c.most {
					t.Errorf("%d outcomes: got %d batches, %d at once, the largest of %d, want %d, %d at once and %d at most",
						c.outcomes, len(m.sizes), m.most, largest, c.most, c.atOnce, recordBatch)
				}
			})
		})
	}
}

// A recorder that is behind holds up the claims, not the memory.
func TestSlowRecordingPushesBackOnClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const deliveries = 3000
		m := &commits{memory: newMemory(), take: time.Hour}
		for lane := int64(1); lane <= 4; lane++ {
			endpoint := m.apply(testEndpoint(t, lane))
			for range deliveries / 4 {
				m.add(endpoint)
			}
		}
		d := startWithoutChores(t, Config{Senders: 100, Lease: 10 * time.Hour}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(time.Minute)
		claimed := int(testutil.ToFloat64(d.metrics.claimed))
		if most := recordBuffer + completers*recordBatch + 2*100; claimed > most || claimed < recordBuffer {
			t.Errorf("claimed while nothing is recorded: got %d of %d, want %d at most", claimed, deliveries, most)
		}
		m.mu.Lock()
		m.take = 0
		m.mu.Unlock()
		for m.pending() > 0 {
			time.Sleep(time.Hour)
		}
		d.end()
	})
}

// An outcome whose commit was answered by silence is recorded once, and not counted as fenced.
func TestLostAnswerOfACommitIsHarmless(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &commits{memory: newMemory(), lose: 3}
		endpoint := m.apply(testEndpoint(t, 1))
		for range 20 {
			m.add(endpoint)
		}
		d := startWithoutChores(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(time.Minute)
		d.end()
		if got := len(m.recorded()); got != 20 || m.pending() != 0 {
			t.Errorf("recorded: got %d, %d pending, want 20 and none", got, m.pending())
		}
		if got := testutil.ToFloat64(d.metrics.fenced); got != 0 {
			t.Errorf("fenced: got %v, want 0", got)
		}
		if got := testutil.ToFloat64(d.metrics.deliveries[store.Delivered]); got != 20 {
			t.Errorf("delivered: got %v, want 20", got)
		}
	})
}

// An outage of the database loses no outcome.
func TestOutcomesWaitForTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		endpoint := m.apply(testEndpoint(t, 1))
		m.add(endpoint)
		d := start(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: slowly(2 * time.Second)})
		time.Sleep(time.Second)
		m.breakDown(&pgconn.PgError{Code: "57P01"})
		time.Sleep(40 * time.Second)
		m.breakDown(nil)
		time.Sleep(10 * time.Second)
		d.end()
		if attempts := m.recorded(); len(attempts) != 1 || attempts[0].result.Claim.Attempt != 1 {
			t.Errorf("attempts: got %+v, want the first one alone", attempts)
		}
	})
}

// A row that the database refuses is told and left to its lease; the others of its batch are recorded.
func TestRefusedRowHarmsNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		refused := errors.New("this row is bad")
		m := &commits{memory: newMemory(), refuse: func(r store.Result) error {
			if r.Claim.DeliveryID == 3 {
				return refused
			}
			return nil
		}}
		endpoint := m.apply(testEndpoint(t, 1))
		for range 10 {
			m.add(endpoint)
		}
		d := startWithoutChores(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(30 * time.Second)
		if got := testutil.ToFloat64(d.metrics.unrecorded); got != 1 || m.pending() != 1 {
			t.Errorf("lost outcomes: got %v, %d pending, want 1 and 1", got, m.pending())
		}
		d.end()
	})
}

// A batch that can never be recorded, for a fault of ours, does not block the recorder for ever.
func TestHopelessBatchIsGivenUpWhenItsLeasesEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &commits{memory: newMemory()}
		m.failing = func(results []store.Result) error {
			for _, r := range results {
				if r.Claim.DeliveryID == 1 {
					return &pgconn.PgError{Code: "42601"}
				}
			}
			return nil
		}
		first, second := m.apply(testEndpoint(t, 1)), m.apply(testEndpoint(t, 2))
		m.add(first)
		d := startWithoutChores(t, Config{Senders: 8}, testDependencies(t, m), outside{transport: receiver(ok)})
		time.Sleep(5 * time.Second)
		m.add(second)
		time.Sleep(2 * time.Minute)
		if got := testutil.ToFloat64(d.metrics.unrecorded); got < 1 {
			t.Errorf("lost outcomes: got %v, want the hopeless one", got)
		}
		if attempts := m.recorded(); len(attempts) != 1 || attempts[0].result.Claim.DeliveryID != 2 {
			t.Errorf("attempts: got %+v, want that of the other delivery", attempts)
		}
		d.end()
	})
}

// D13, by the double: whatever a worker reports that wakes after its lease was taken over, it is fenced and counted.
func TestLateOutcomeIsFencedAndCounted(t *testing.T) {
	t.Parallel()
	for _, status := range []int{200, 500, 400} {
		synctest.Test(t, func(t *testing.T) {
			m := newMemory()
			m.add(m.apply(testEndpoint(t, 1)))
			d := startWithoutChores(t, Config{Senders: 1}, testDependencies(t, m), outside{transport: receiver(func(*http.Request) (*http.Response, error) {
				time.Sleep(2 * time.Second)
				return answers(status)
			})})
			time.Sleep(time.Second)
			m.mu.Lock()
			m.rows[1].claim.Token[0] = 1 // somebody else's now
			m.mu.Unlock()
			time.Sleep(2 * time.Second)
			if got := testutil.ToFloat64(d.metrics.fenced); got != 1 || len(m.recorded()) != 0 {
				t.Errorf("after a late %d: got %v fenced and %d recorded, want 1 and none", status, got, len(m.recorded()))
			}
			d.end()
		})
	}
}

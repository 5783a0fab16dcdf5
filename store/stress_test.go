package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// POSTRIDER_STRESS_TIME (for example 5m) makes the stress longer; POSTRIDER_STRESS_SEED repeats what a seed began with.
const (
	stressTime = "POSTRIDER_STRESS_TIME"
	stressSeed = "POSTRIDER_STRESS_SEED"
)

const (
	stressLease = 1200 * time.Millisecond
	stressDrain = 90 * time.Second
	stressPeers = 4 // producers, and claimers
)

// roughness is what a stress does besides its daily work.
type roughness struct {
	kill      bool    // cut connections
	loseTouch float64 // accepts whose touch is lost with its process
	sweep     bool
}

// Producers, claimers, completers, lost processes, changing endpoints and chores work against each other on one queue. What
// they saw is judged afterwards, and invariants are looked at in one snapshot after another meanwhile.
func TestStress(t *testing.T) {
	t.Parallel()
	length, seed := 3500*time.Millisecond, rand.Uint64()
	if text := os.Getenv(stressTime); text != "" {
		var err error
		if length, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	if text := os.Getenv(stressSeed); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	for name, r := range map[string]roughness{
		"no loss, no sweep":                        {},
		"lost touches, cut connections, and sweep": {kill: true, loseTouch: 0.2, sweep: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Logf("run again with %s=%d %s=%v", stressSeed, seed, stressTime, length)
			newStress(t, r, seed).run(length)
		})
	}
}

// stress is one run. Its Store's sessions are named "stress"; the fixture's own are spared by the killer.
type stress struct {
	*fixture
	roughness
	work    *Store
	seed    uint64
	ledger  ledger
	all     []*stressed
	calm    atomic.Bool // every request succeeds from now on
	results chan Result
	flying  sync.WaitGroup
	open    atomic.Int64 // circuits, at most
	mended  atomic.Int64
	samples atomic.Int64
}

// stressed is an endpoint under stress. Only the meddler changes it; sick is read by the senders.
type stressed struct {
	row   Endpoint
	name  string
	fixed bool // limits and ordering never change
	sick  atomic.Bool
}

func newStress(t *testing.T, r roughness, seed uint64) *stress {
	t.Helper()
	f := newFixture(t)
	work, err := Open(t.Context(), Options{DSN: f.dsn, MaxConns: 10, Application: "stress"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(work.Close)
	w := &stress{fixture: f, roughness: r, work: work, seed: seed, results: make(chan Result, 500), ledger: newLedger()}
	rng := w.rng(0)
	for i := range 20 {
		e := &stressed{name: fmt.Sprint("fixed", i), fixed: i%4 != 0}
		if !e.fixed {
			e.name = fmt.Sprint("changing", i)
		}
		e.row = f.endpoint(e.name, func(p *EndpointSpec) {
			p.Ordered, p.MaxConcurrency = i%2 == 0, 1+rng.IntN(12)
			p.FailureThreshold, p.Cooldown, p.MaxCooldown = 6, 200*time.Millisecond, time.Second
			if i%3 == 0 {
				p.Rate = &Rate{Requests: 20 + rng.IntN(80), Per: time.Second, Burst: 1 + rng.IntN(8)}
			}
			if i%5 == 0 {
				p.MaxDuration = 1500 * time.Millisecond // the chore expires its backlog while its circuit is open
			}
		})
		w.all = append(w.all, e)
		w.ledger.lane(e)
	}
	return w
}

func (w *stress) rng(n uint64) *rand.Rand { return rand.New(rand.NewPCG(w.seed, n)) }

func (w *stress) run(length time.Duration) {
	// The producers and the meddler end first; what they left is worked off then.
	first, endFirst := context.WithTimeout(w.t.Context(), length)
	defer endFirst()
	second, endSecond := context.WithCancel(w.t.Context())
	defer endSecond()
	var g1, g2 sync.WaitGroup
	for i := range uint64(stressPeers) {
		g1.Go(func() { w.produce(first, w.rng(10+i)) })
		g2.Go(func() { w.claims(second, w.rng(20+i)) })
	}
	g1.Go(func() { w.meddle(first, w.rng(1)) })
	if w.kill {
		g1.Go(func() { w.cut(first) })
	}
	for range 3 {
		g2.Go(func() { w.completes(second) })
	}
	g2.Go(func() { w.chores(second) })
	g2.Go(func() { w.sample(second) })

	g1.Wait()
	w.settle()
	deadline, left := time.Now().Add(stressDrain), -1
	for left != 0 && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
		left = w.waiting()
	}
	w.flying.Wait() // the late ones come, and are fenced
	for len(w.results) > 0 {
		time.Sleep(time.Millisecond)
	}
	endSecond()
	g2.Wait()
	w.judge(left)
}

// failed notes an error. Without cut connections none may occur; with them it must say that the database was away.
func (w *stress) failed(where string, err error) {
	pg := (*pgconn.PgError)(nil)
	switch {
	case err == nil || errors.Is(err, context.Canceled):
	case errors.As(err, &pg) && pg.Code == "40P01":
		w.ledger.violate("deadlock in " + where + ": " + pg.Detail + pg.Hint + pg.Where)
	case w.kill && IsUnavailable(err):
		w.ledger.count("connections cut")
	case w.kill && where == "apply" && (errors.Is(err, ErrConflict) || errors.Is(err, ErrNotFound)):
	default:
		w.ledger.violate(where + ": " + err.Error())
	}
}

func (w *stress) produce(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		m, err := w.work.Matching(w.t.Context(), "billing")
		if w.failed("matching", err); err != nil || len(m.Endpoints) == 0 {
			continue
		}
		events := make([]NewEvent, 1+rng.IntN(20))
		for i := range events {
			e := NewEvent{
				Namespace: "billing", NamespaceUID: m.UID, Version: m.Version, Type: "t", ContentType: "text/plain", Body: []byte("{}"),
			}
			if rng.IntN(3) > 0 {
				e.OrderingKey = fmt.Sprint("k", rng.IntN(6))
			}
			if rng.IntN(10) == 0 {
				e.IdempotencyKey = fmt.Sprint("i", rng.IntN(200))
			}
			for _, n := range rng.Perm(len(m.Endpoints))[:min(len(m.Endpoints), 1+rng.IntN(2))] {
				e.Targets = append(e.Targets, m.Endpoints[n].Target)
			}
			events[i] = e
		}
		start := w.ledger.now()
		accepted, err := w.work.Accept(w.t.Context(), events, time.Hour)
		if w.failed("accept", err); err != nil {
			continue
		}
		touched := w.ledger.accepted(start, events, accepted)
		for err = errNotTouched; err != nil && len(touched) > 0 && rng.Float64() >= w.loseTouch; {
			err = w.work.Touch(w.t.Context(), touched)
			w.failed("touch", err)
		}
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
	}
}

var errNotTouched = errors.New("not touched yet")

func (w *stress) claims(ctx context.Context, rng *rand.Rand) {
	for n := uint64(0); ctx.Err() == nil; {
		r := ClaimRequest{Budget: 1 + rng.IntN(60), Lanes: 1 + rng.IntN(12), PerLane: 1 + rng.IntN(8), Lease: stressLease}
		b, err := w.work.Claim(w.t.Context(), r)
		if w.failed("claim", err); err != nil {
			continue
		}
		if len(b.Claims) > r.Budget {
			w.ledger.violate("a claim exceeds its budget")
		}
		w.ledger.claimed(b)
		for _, c := range b.Claims {
			n++
			own := rand.New(rand.NewPCG(rng.Uint64(), n))
			w.flying.Add(1)
			go func() { defer w.flying.Done(); w.request(c, own) }()
		}
		if b.Lanes == 0 {
			time.Sleep(2 * time.Millisecond)
		}
	}
}

// request plays a request, and the process that makes it.
func (w *stress) request(c Claim, rng *rand.Rand) {
	r := Result{Claim: c, Version: c.Version, Verdict: Delivered, Status: 200, Duration: time.Millisecond}
	time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
	p := rng.Float64()
	switch {
	case w.calm.Load():
	case w.ledger.sick(c.LaneID):
		r.Verdict, r.Delay, r.Reason = Retry, time.Duration(rng.IntN(200))*time.Millisecond, "ServerError"
	case p < 0.03: // the process is lost
		return
	case p < 0.06: // it outlives its lease
		time.Sleep(stressLease + time.Duration(rng.IntN(400))*time.Millisecond)
	case p < 0.09: // it asks for more time, sometimes too late, and uses it
		time.Sleep(stressLease * time.Duration(50+rng.IntN(60)) / 100)
		lease := Lease{DeliveryID: c.DeliveryID, LaneID: c.LaneID, Token: c.Token, Probe: c.Probe}
		extended, at, err := w.work.Extend(w.t.Context(), []Lease{lease}, stressLease)
		w.failed("extend", err)
		if err == nil && extended[c.DeliveryID] {
			w.ledger.extended(c, at.Add(stressLease))
			time.Sleep(stressLease * time.Duration(rng.IntN(95)) / 100)
		}
	case p < 0.12:
		r.Verdict = Released
	case p < 0.13:
		r.Verdict, r.Unsent, r.Reason = Retry, true, "KeyMissing"
	case p < 0.16:
		r.Verdict, r.Reason, r.Failing = Dead, "Rejected", rng.IntN(2) == 0
	case p < 0.162:
		r.Verdict, r.Reason, r.Gone = Dead, "Gone", true
	case p < 0.30:
		r.Verdict, r.Reason = Retry, "Timeout"
		if rng.IntN(4) > 0 {
			r.Delay = time.Duration(rng.IntN(300)) * time.Millisecond
		}
	}
	w.results <- r
}

func (w *stress) completes(ctx context.Context) {
	for {
		var batch []Result
		select {
		case <-ctx.Done():
			return
		case r := <-w.results:
			batch = append(batch, r)
		}
		for more := true; more && len(batch) < 200; {
			select {
			case r := <-w.results:
				batch = append(batch, r)
			default:
				more = false
			}
		}
		w.ledger.submitted(batch)
		recorded, err := w.work.Complete(w.t.Context(), batch)
		for err != nil { // whether it was committed is not known; the tokens make the repetition harmless
			w.failed("complete", err)
			w.ledger.unsure(batch)
			recorded, err = w.work.Complete(w.t.Context(), batch)
		}
		w.ledger.completed(batch, recorded)
	}
}

// meddle changes endpoints as their owners would.
func (w *stress) meddle(ctx context.Context, rng *rand.Rand) {
	for ctx.Err() == nil {
		e := w.all[rng.IntN(len(w.all))]
		switch n := rng.IntN(40); {
		case n < 6:
			w.change(e, func(c *EndpointChange) {
				if c.Spec.State = Paused; e.row.Spec.State == Paused {
					c.Spec.State = Enabled
				}
			})
		case n < 7:
			w.change(e, func(c *EndpointChange) { c.Spec.State = Disabled })
			time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
			w.change(e, func(c *EndpointChange) { c.Spec.State = Enabled })
		case n < 10:
			w.change(e, func(c *EndpointChange) {
				if c.HoldReason == "" {
					c.HoldReason = "InvalidSigningKey"
				} else {
					c.HoldReason = ""
				}
			})
		case n < 14:
			w.change(e, func(c *EndpointChange) { c.Spec.URL = fmt.Sprint("http://127.0.0.1/", rng.IntN(100)) })
		case n < 20:
			if !e.fixed {
				w.change(e, func(c *EndpointChange) {
					c.Spec.MaxConcurrency, c.Spec.Ordered = 1+rng.IntN(12), rng.IntN(2) == 0
					c.Spec.Rate = &Rate{Requests: 5 + rng.IntN(95), Per: time.Second, Burst: 1 + rng.IntN(8)}
				})
			}
		case n < 21:
			_, err := w.work.TombstoneEndpoint(w.t.Context(), "billing", e.name, e.row.UID)
			if w.failed("tombstone", err); err == nil {
				e.row.UID += "'"
				w.change(e, func(c *EndpointChange) { c.Generation, c.IfVersion, c.PublicID, c.Spec.State = 1, 0, newID(), Enabled })
			}
		default:
			e.sick.Store(rng.IntN(2) == 0)
		}
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
	}
}

// change applies a new generation; where another writer or a cut connection came between, it reads and tries again.
func (w *stress) change(e *stressed, edit func(*EndpointChange)) {
	for w.t.Context().Err() == nil {
		c := e.row.change(e.row.Generation + 1)
		edit(&c)
		row, err := w.work.ApplyEndpoint(w.t.Context(), c)
		if w.failed("apply", err); err == nil {
			e.row = row
			w.ledger.lane(e)
			return
		}
		if row, err = w.work.Endpoint(w.t.Context(), "billing", e.name); err == nil {
			if e.row = row; c.IfVersion == 0 {
				w.ledger.lane(e)
				return // it was made, though its answer was lost
			}
		}
	}
}

// settle ends the trouble: all are enabled and healthy, so that everything can end.
func (w *stress) settle() {
	w.calm.Store(true)
	for _, e := range w.all {
		e.sick.Store(false)
		w.change(e, func(c *EndpointChange) { c.Spec.State, c.HoldReason = Enabled, "" })
	}
}

func (w *stress) chores(ctx context.Context) {
	for after := int64(0); ctx.Err() == nil; time.Sleep(30 * time.Millisecond) {
		for what, chore := range map[string]func(context.Context, int) (int, error){
			"cancelled": w.work.BuryCancelled, "expired": w.work.ExpireBacklogs,
		} {
			n, err := chore(w.t.Context(), 50)
			w.failed(what, err)
			w.ledger.add(what, n)
		}
		if w.sweep {
			next, n, err := w.work.SweepLanes(w.t.Context(), after, 10)
			w.failed("sweep", err)
			after = next
			w.mended.Add(int64(n))
		}
	}
}

// cut terminates a session in the midst of its work, again and again.
func (w *stress) cut(ctx context.Context) {
	for ctx.Err() == nil {
		if _, err := w.pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'stress' AND state <> 'idle' ORDER BY random() LIMIT 1`); err != nil && ctx.Err() == nil {
			w.ledger.violate("cut: " + err.Error())
		}
		time.Sleep(150 * time.Millisecond)
	}
}

// What holds in every snapshot, not only in quiet.
const (
	inFlightIsOff = `SELECT count(*) FROM postrider.lane l JOIN postrider.endpoint p USING (endpoint_id)
		LEFT JOIN (SELECT lane_id, count(*) AS n, min(lease_until) AS ends FROM postrider.delivery WHERE claim_token IS NOT NULL GROUP BY 1) c ON c.lane_id = l.lane_id
		WHERE l.inflight <> coalesce(c.n, 0) OR l.lease_end > c.ends OR (c.n > 0 AND l.lease_end IS NULL) OR (p.name LIKE 'fixed%' AND l.inflight > l.max_inflight)`
	keysWithTwoHeads = `SELECT count(*) FROM (SELECT FROM postrider.delivery d JOIN postrider.lane l USING (lane_id) JOIN postrider.endpoint p ON p.endpoint_id = l.endpoint_id
		WHERE l.ordered AND p.name LIKE 'fixed%' AND d.ordering_key IS NOT NULL AND d.available_at < 'infinity'
		GROUP BY d.lane_id, d.ordering_key HAVING count(*) > 1) x`
	claimedWithoutToken = `SELECT count(*) FROM postrider.delivery WHERE (claim_token IS NULL) <> (lease_until IS NULL) OR attempt < 0 OR claim_token IS NOT NULL AND available_at = 'infinity'`
	deliveredTwice      = `SELECT count(*) FROM (SELECT FROM postrider.delivery GROUP BY event_id, endpoint_id HAVING count(*) > 1) x`
	strandedRows        = `SELECT count(*) FROM postrider.lane l WHERE cancelled_at IS NULL AND due_at > clock_timestamp()
		AND EXISTS (SELECT FROM postrider.delivery d WHERE d.lane_id = l.lane_id AND d.claim_token IS NULL AND available_at < now() - interval '3 s')`
	strandedKeys = `SELECT count(*) FROM (SELECT FROM postrider.delivery d JOIN postrider.lane l USING (lane_id) JOIN postrider.endpoint p ON p.endpoint_id = l.endpoint_id
		WHERE l.ordered AND p.name LIKE 'fixed%' AND cancelled_at IS NULL AND d.ordering_key IS NOT NULL
		GROUP BY d.lane_id, d.ordering_key HAVING min(available_at) = 'infinity' AND max(d.accepted_at) < now() - interval '3 s') x`
)

func (w *stress) sample(ctx context.Context) {
	checks := map[string]string{
		"in flight differs from the claimed rows": inFlightIsOff, "a key has two visible rows": keysWithTwoHeads,
		"a delivery is half claimed": claimedWithoutToken, "an event is owed twice": deliveredTwice,
	}
	if w.loseTouch == 0 && !w.kill {
		checks["a due row that no claim will look at"] = strandedRows
		checks["a key without a visible row"] = strandedKeys
	}
	for ; ctx.Err() == nil; time.Sleep(15 * time.Millisecond) {
		b := &pgx.Batch{}
		for what, sql := range checks {
			b.Queue(sql).QueryRow(func(row pgx.Row) error {
				var n int
				err := row.Scan(&n)
				if w.samples.Add(1); n > 0 {
					w.ledger.violate("snapshot: " + what)
				}
				return err
			})
		}
		b.Queue(`SELECT count(*) FROM postrider.lane WHERE open_until IS NOT NULL`).QueryRow(func(row pgx.Row) error {
			var n int64
			err := row.Scan(&n)
			w.open.Store(max(w.open.Load(), n))
			return err
		})
		if err := send(w.t.Context(), w.pool, b); err != nil {
			w.ledger.violate("sample: " + err.Error())
		}
	}
}

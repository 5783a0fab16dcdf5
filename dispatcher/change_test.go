package dispatcher

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

// D9: paused, disabled and deleted while deliveries wait and while they are in flight: held, cancelled, cancelled.
func TestEndpointStoppedWhileDeliveriesWaitAndFly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(f *fixture, e store.Endpoint)
		held   bool
	}{
		{"paused", func(f *fixture, e store.Endpoint) {
			f.apply(e, setSpec(func(s *store.EndpointSpec) { s.State = store.Paused }))
		}, true},
		{"not ready", func(f *fixture, e store.Endpoint) {
			f.apply(e, func(c *store.EndpointChange) { c.HoldReason = "SecretNotFound" })
		}, true},
		{"disabled", func(f *fixture, e store.Endpoint) {
			f.apply(e, setSpec(func(s *store.EndpointSpec) { s.State = store.Disabled }))
		}, false},
		{"deleted", func(f *fixture, e store.Endpoint) {
			if live, err := f.TombstoneEndpoint(f.t.Context(), e.Namespace, e.Name, e.UID); err != nil || !live {
				f.t.Errorf("TombstoneEndpoint: got %v, %v", live, err)
			}
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("target", func(s *store.EndpointSpec) { s.MaxConcurrency = 2 })
			release := make(chan struct{})
			f.receiver.answer("target", func(_ http.ResponseWriter, q *http.Request) {
				select {
				case <-release:
				case <-q.Context().Done():
				}
			})
			ids := f.post(6, "", e)
			d := f.dispatch(quickConfig(8))
			waitFor(t, "two requests in flight", func() bool { return len(f.receiver.of("target")) == 2 })
			test.change(f, e)
			close(release)
			if test.held {
				f.waitForPending(func(pending int) bool { return pending == 4 })
			} else {
				f.waitForPending(func(pending int) bool { return pending == 0 })
			}
			if n := len(f.receiver.of("target")); n != 2 {
				t.Errorf("requests: got %d, want the two that were in flight", n)
			}
			states := map[store.DeliveryState]int{}
			for _, id := range ids {
				delivery := f.delivery(id)
				states[delivery.State]++
				if delivery.State == store.StateDead && delivery.Reason != "Cancelled" {
					t.Errorf("dead letter: got %s, want Cancelled", delivery.Reason)
				}
			}
			rest := store.StateDead
			if test.held {
				rest = store.StatePending
			}
			if states[store.StateDelivered] != 2 || states[rest] != 4 {
				t.Errorf("deliveries: got %v, want 2 delivered and 4 %s", states, rest)
			}
			if got := testutil.ToFloat64(d.metrics.fenced); got != 0 {
				t.Errorf("fenced: got %v, want 0", got)
			}
		})
	}
}

// D15: a changed URL, key, header and state are in force on the next claim, under load and in every replica, and no stale
// memory ever brings the old ones back.
func TestChangeIsInForceOnTheNextClaim(t *testing.T) {
	t.Parallel()
	const newSecret = "another secret, of no fewer than 24 bytes"
	f := newFixture(t)
	e := f.endpoint("old", func(s *store.EndpointSpec) { s.MaxConcurrency = 4 })
	for range 2 {
		f.dispatch(quickConfig(8))
	}
	stop := make(chan struct{})
	var posting sync.WaitGroup
	var changedAt atomic.Bool
	after := map[string]bool{} // events accepted after the change: claimed after it too
	posting.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond): // the load
				changed := changedAt.Load()
				if id, ok := f.postQuietly(e); ok && changed {
					after[id.String()] = true
				}
			}
		}
	})
	waitFor(t, "deliveries to the old URL", func() bool { return len(f.receiver.of("old")) > 20 })
	changed := f.apply(e, func(c *store.EndpointChange) {
		c.Spec.URL = f.receiver.URL + "/new"
		c.Keys = []store.SealedKey{sealKey(t, e.PublicID, newSecret, time.Time{})}
		c.Spec.Headers = sealedFor(t, e.PublicID, store.Header{Name: "X-Team", Value: "new"})
	})
	changedAt.Store(true)
	waitFor(t, "deliveries to the new URL", func() bool { return len(f.receiver.of("new")) > 40 })
	close(stop)
	posting.Wait()
	f.waitForPending(func(pending int) bool { return pending == 0 })
	for _, q := range f.receiver.of("old") {
		if after[q.id] {
			t.Errorf("event %s was accepted after the change and sent to the old URL", q.id)
		}
	}
	if len(after) == 0 {
		t.Error("no event was accepted after the change")
	}
	verifier := signature.Verifier{Keys: []signature.Key{parsed(t, newSecret)}}
	for _, q := range f.receiver.of("new") {
		if err := verifier.Verify(q.header, []byte(q.body)); err != nil {
			t.Fatalf("a request to the new URL is not signed with the new key: %v", err)
		}
		if q.header.Get("X-Team") != "new" {
			t.Fatalf("a request to the new URL has the header X-Team: %q, want new", q.header.Get("X-Team"))
		}
	}
	if changed.Version <= e.Version {
		t.Errorf("version: got %d after %d, want it raised", changed.Version, e.Version)
	}
}

// postQuietly posts one event whatever becomes of the test meanwhile.
func (f *fixture) postQuietly(e store.Endpoint) (id uuid.UUID, ok bool) {
	m, err := f.Matching(f.t.Context(), "billing")
	if err != nil {
		return id, false
	}
	accepted, err := f.Accept(f.t.Context(), []store.NewEvent{{
		Namespace: "billing", NamespaceUID: m.UID, Version: m.Version, Type: "invoice.paid", ContentType: "application/json", Body: []byte("{}"),
		Targets: []store.Target{{EndpointID: e.ID, LaneID: e.LaneID}},
	}}, 0)
	if err != nil || accepted[0].Stale {
		return id, false
	}
	return accepted[0].EventID, f.Touch(f.t.Context(), []store.Touched{{LaneID: e.LaneID}}) == nil
}

func sealedFor(t testing.TB, place uuid.UUID, headers ...store.Header) []byte {
	t.Helper()
	text, err := store.MarshalHeaders(headers)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := testKeyring(t).Seal(text, place.String(), store.ColumnHeaders)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

// D13: a worker wakes after its lease was taken over, and reports success, failure or death: the new owner's outcome
// stands, before and after it.
func TestLateOutcomesAreFencedByTheStore(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"success": 200, "failure": 500, "death": 400} {
		for _, order := range []string{"before the new owner's", "after the new owner's"} {
			t.Run(name+" "+order, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				e := f.endpoint("target", func(s *store.EndpointSpec) { s.Timeout = 30 * time.Second })
				id := f.post(1, "", e)[0]
				asleep, wake := make(chan struct{}), make(chan struct{})
				f.receiver.answer("target", func(w http.ResponseWriter, q *http.Request) {
					if q.Header.Get("Postrider-Attempt") == "1" {
						close(asleep)
						<-wake
						w.WriteHeader(code)
					}
				})
				// The first worker's lease is over before it wakes: it is shorter in the database than it believes.
				short := &shortLeases{Store: f.open(applicationName)}
				sleeper := f.dispatch(Config{Senders: 1, Grace: time.Second}, func(d *Dependencies) { d.Store = short })
				<-asleep
				short.stop()
				var claimed store.Batch
				waitFor(t, "the lease of a millisecond to end", func() (taken bool) {
					var err error
					claimed, err = f.Claim(t.Context(), store.ClaimRequest{Budget: 1, Lanes: 1, PerLane: 1, Lease: time.Minute})
					return err == nil && len(claimed.Claims) == 1
				})
				if n := claimed.Claims[0].Attempt; n != 2 {
					t.Fatalf("taken over with attempt %d, want the second", n)
				}
				own := store.Result{Claim: claimed.Claims[0], Version: e.Version, Verdict: store.Delivered, Status: 200}
				late := func() {
					close(wake)
					waitFor(t, "the late outcome", func() bool { return testutil.ToFloat64(sleeper.metrics.fenced) == 1 })
				}
				if order == "before the new owner's" {
					late()
				}
				if recorded, err := f.Complete(t.Context(), []store.Result{own}); err != nil || recorded[0].Fenced {
					t.Fatalf("the new owner's outcome: got %+v, %v", recorded, err)
				}
				if order == "after the new owner's" {
					late()
				}
				d := f.delivery(id)
				if d.State != store.StateDelivered || len(d.Attempts) != 1 || d.Attempts[0].Number != 2 {
					t.Errorf("got %+v, want delivered by attempt 2, which is the only one recorded", d)
				}
			})
		}
	}
}

// shortLeases claims for a millisecond, whatever is asked for, until it is stopped.
type shortLeases struct {
	*store.Store
	mu      sync.Mutex
	stopped bool
}

func (s *shortLeases) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}

func (s *shortLeases) Claim(ctx context.Context, r store.ClaimRequest) (store.Batch, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return store.Batch{At: time.Now()}, nil
	}
	r.Lease = time.Millisecond
	return s.Store.Claim(ctx, r)
}

// D14: Postgres is killed and comes back under load: everything resumes by itself and nothing is lost.
func TestDatabaseRestartUnderLoadLosesNothing(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{Durable: true})
	dsn, err := pg.CreateDatabase(t.Context(), "restarted")
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	f := newFixtureOn(t, dsn)
	e := f.endpoint("target", func(s *store.EndpointSpec) { s.MaxConcurrency = 4 })
	f.receiver.answer("target", func(http.ResponseWriter, *http.Request) { time.Sleep(10 * time.Millisecond) }) // a receiver's work
	ids := f.post(200, "", e)
	d := f.dispatch(quickConfig(8))
	failures := func() float64 {
		return testutil.ToFloat64(d.metrics.storeErrors.claim) + testutil.ToFloat64(d.metrics.storeErrors.complete)
	}
	for _, rest := range []int{150, 75} {
		f.waitForPending(func(pending int) bool { return pending < rest })
		before := failures()
		pg.Kill()
		waitFor(t, "the outage to be noticed", func() bool { return failures() > before })
		if err := pg.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	f.waitForPending(func(pending int) bool { return pending == 0 })
	if counts := f.receiver.counts("target"); len(counts) != len(ids) {
		t.Errorf("events received: got %d, want %d", len(counts), len(ids))
	}
	for _, id := range ids {
		if got := f.delivery(id); got.State != store.StateDelivered {
			t.Errorf("event %s: got %+v, want delivered", id, got)
		}
	}
	if err := d.Ready(); err != nil {
		t.Errorf("Ready: %v", err)
	}
}

// No secret byte in any log line, at the most verbose level, whatever happens.
func TestLogsHoldNoSecret(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var logs collected
	const header, query, body = "header-value-not-to-be-logged", "query-not-to-be-logged", "body-not-to-be-logged"
	outcomes := map[string]http.HandlerFunc{
		"fine": nil, "fails": status(500), "redirects": status(302, "Location", "http://elsewhere.example/?"+query), "refuses": status(400), "gone": status(410),
	}
	var endpoints []store.Endpoint
	for name, answer := range outcomes {
		if answer != nil {
			f.receiver.answer(name, answer)
		}
		e := f.endpoint(name, func(s *store.EndpointSpec) {
			s.URL += "?token=" + query
			s.MaxAttempts = 2
			s.Schedule = []time.Duration{time.Millisecond}
		})
		endpoints = append(endpoints, f.apply(e, setSpec(func(s *store.EndpointSpec) {
			s.Headers = sealedFor(t, e.PublicID, store.Header{Name: "Authorization", Value: header})
		})))
	}
	for name, url := range map[string]string{"refused": "http://" + closedPort(t) + "/?" + query, "nowhere": "http://" + query + ".invalid/?" + query, "forbidden": "http://10.0.0.1/?" + query} {
		endpoints = append(endpoints, f.endpoint(name, func(s *store.EndpointSpec) { s.URL = url; s.MaxAttempts = 1 }))
	}
	d := f.dispatch(quickConfig(8), func(d *Dependencies) { d.Logger = logs.logger() })
	m, err := f.Matching(t.Context(), "billing")
	if err != nil {
		t.Fatal(err)
	}
	event := store.NewEvent{
		Namespace: "billing", NamespaceUID: m.UID, Version: m.Version, Type: "invoice.paid", ContentType: "text/plain", Body: []byte(body),
		Headers: map[string]string{"Ce-Subject": header},
	}
	var touched []store.Touched
	for _, e := range endpoints {
		event.Targets = append(event.Targets, store.Target{EndpointID: e.ID, LaneID: e.LaneID})
		touched = append(touched, store.Touched{LaneID: e.LaneID})
	}
	if _, err := f.Accept(t.Context(), []store.NewEvent{event}, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Touch(t.Context(), touched); err != nil {
		t.Fatal(err)
	}
	f.waitForPending(func(pending int) bool { return pending == 0 })
	d.end()
	text := logs.String()
	for _, secret := range []string{header, "token=" + query, "?" + query, body, strings.TrimPrefix(testSecret, "whsec_"), "v1,"} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("the log holds %q: %s", secret, text[max(0, i-200):min(len(text), i+200)])
		}
	}
	for _, want := range []string{`"event":"delivered"`, `"event":"retry"`, `"event":"dead"`, `"endpoint":"billing/fails"`, `"reason":"ServerError"`, `"dead_reason":"AttemptsExhausted"`} {
		if !strings.Contains(text, want) {
			t.Errorf("the log has no line with %s", want)
		}
	}
}

// The chores run beside the delivering: the next days' partitions are made, and the figures are there.
func TestChoresRunBesideDelivering(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const ahead = `SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'postrider'
		WHERE relname IN ('event_' || $1, 'attempt_' || $1)`
	tomorrow := ask[string](f, "SELECT to_char(now() AT TIME ZONE 'UTC' + interval '1 day', 'YYYYMMDD')")
	f.exec("DROP TABLE postrider.event_" + tomorrow + ", postrider.attempt_" + tomorrow)
	d := f.dispatch(quickConfig(1))
	waitFor(t, "tomorrow's partitions", func() bool { return ask[int](f, ahead, tomorrow) == 2 })
	waitFor(t, "the queue's figures", func() bool { return d.metrics.queue.Load() != nil })
}

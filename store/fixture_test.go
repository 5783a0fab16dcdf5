package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/test/localstack"
)

func TestMain(m *testing.M) { localstack.Main(m) }

// fixture is a migrated database of a test's own, with shorthands for what the parts do.
type fixture struct {
	*Store
	t   testing.TB
	dsn string
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	dsn := localstack.Database(t)
	return &fixture{Store: openStore(t, dsn), t: t, dsn: dsn}
}

// newFixtureOn is for a server of the test's own.
func newFixtureOn(t testing.TB, pg *localstack.Postgres) *fixture {
	t.Helper()
	dsn, err := pg.CreateDatabase(t.Context(), "postrider")
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	return &fixture{Store: openStore(t, dsn), t: t, dsn: dsn}
}

func openStore(t testing.TB, dsn string) *Store {
	t.Helper()
	return openWith(t, dsn, 8)
}

// openWith opens a store that has so many connections.
func openWith(t testing.TB, dsn string, conns int32) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{DSN: dsn, MaxConns: conns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// spec is an endpoint without a rate, a circuit that opens late and a short list of retries; change it at will.
func spec(change ...func(*EndpointSpec)) EndpointSpec {
	p := EndpointSpec{
		State: Enabled, URL: "http://127.0.0.1/hook", EventTypes: []string{"*"}, Timeout: 2 * time.Second, MaxConcurrency: 100,
		Payload: "Raw", MaxAttempts: 12, MaxDuration: 24 * time.Hour, BackoffBase: 10 * time.Second, BackoffFactor: 2, BackoffCap: 6 * time.Hour,
		FailureThreshold: 1000, Cooldown: 30 * time.Second, MaxCooldown: 10 * time.Minute,
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

// endpoint applies a new endpoint in namespace "billing" and returns its row.
func (f *fixture) endpoint(name string, change ...func(*EndpointSpec)) Endpoint {
	f.t.Helper()
	e, err := f.ApplyEndpoint(f.t.Context(), EndpointChange{
		PublicID: uuid.New(), Namespace: "billing", Name: name, NamespaceUID: "ns-1", UID: "uid-" + name, Generation: 1,
		Spec: spec(change...), Keys: []SealedKey{{Sealed: []byte("sealed"), Fingerprint: "sha256:00000000"}},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

// apply changes an endpoint's row as a new generation of its object would.
func (f *fixture) apply(e Endpoint, change ...func(*EndpointSpec)) Endpoint {
	f.t.Helper()
	for _, c := range change {
		c(&e.Spec)
	}
	applied, err := f.ApplyEndpoint(f.t.Context(), e.change(e.Generation+1))
	if err != nil {
		f.t.Fatal(err)
	}
	return applied
}

func (e Endpoint) change(generation int64) EndpointChange {
	return EndpointChange{
		Namespace: e.Namespace, Name: e.Name, NamespaceUID: e.NamespaceUID, UID: e.UID, Generation: generation,
		Spec: e.Spec, Keys: e.Keys, HoldReason: e.HoldReason, IfVersion: e.Version,
	}
}

// post accepts events for some endpoints without waking their lanes, and returns their ids.
func (f *fixture) post(key string, n int, endpoints ...Endpoint) []uuid.UUID {
	f.t.Helper()
	m, err := f.Matching(f.t.Context(), "billing")
	if err != nil {
		f.t.Fatal(err)
	}
	events := make([]NewEvent, n)
	for i := range events {
		events[i] = NewEvent{
			Namespace: "billing", NamespaceUID: m.UID, Version: m.Version, Type: "invoice.paid", ContentType: "application/json",
			Body: []byte(fmt.Sprintf(`{"n":%d}`, i)), OrderingKey: key,
		}
		for _, e := range endpoints {
			events[i].Targets = append(events[i].Targets, Target{EndpointID: e.ID, LaneID: e.LaneID, Ordered: e.Spec.Ordered})
		}
	}
	accepted, err := f.Accept(f.t.Context(), events, time.Hour)
	if err != nil {
		f.t.Fatal(err)
	}
	ids := make([]uuid.UUID, n)
	for i, a := range accepted {
		if a.Stale || a.Original != nil {
			f.t.Fatalf("event %d was not accepted: %+v", i, a)
		}
		ids[i] = a.EventID
	}
	return ids
}

// wake touches the lanes of some endpoints, with a key where they are ordered.
func (f *fixture) wake(key string, endpoints ...Endpoint) {
	f.t.Helper()
	var touched []Touched
	for _, e := range endpoints {
		t := Touched{LaneID: e.LaneID}
		if e.Spec.Ordered {
			t.OrderingKey = key
		}
		touched = append(touched, t)
	}
	if err := f.Touch(f.t.Context(), touched); err != nil {
		f.t.Fatal(err)
	}
}

// loseTouches lets a second pass for what waits: its touch is lost then, and no longer on its way.
func (f *fixture) loseTouches() {
	f.t.Helper()
	f.exec(`UPDATE postrider.delivery SET accepted_at = accepted_at - interval '1 s', available_at = available_at - interval '1 s' WHERE claim_token IS NULL`)
}

// Claim searches all lanes. On a machine this slow a search may be bounded by the one before it, and a lane whose hold was
// lifted would be found some time later.
func (f *fixture) Claim(ctx context.Context, r ClaimRequest) (Batch, error) {
	f.ready.reset()
	return f.Store.Claim(ctx, r)
}

func (f *fixture) claim(budget int) []Claim {
	f.t.Helper()
	return f.claimFor(budget, time.Minute)
}

func (f *fixture) claimFor(budget int, lease time.Duration) []Claim {
	f.t.Helper()
	b, err := f.Claim(f.t.Context(), ClaimRequest{Budget: budget, Lanes: budget, PerLane: budget, Lease: lease})
	if err != nil {
		f.t.Fatal(err)
	}
	return b.Claims
}

// complete records one verdict for some claims and demands that none is fenced.
func (f *fixture) complete(v Verdict, claims ...Claim) {
	f.t.Helper()
	for i, r := range f.record(v, claims...) {
		if r.Fenced || r.Err != nil {
			f.t.Fatalf("result %d: %+v", i, r)
		}
	}
}

func (f *fixture) record(v Verdict, claims ...Claim) []Recorded {
	f.t.Helper()
	recorded, err := f.Complete(f.t.Context(), results(v, claims...))
	if err != nil {
		f.t.Fatal(err)
	}
	return recorded
}

// ask runs a query that gives one value.
func ask[T any](f *fixture, sql string, args ...any) T {
	f.t.Helper()
	var v T
	if err := f.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (f *fixture) exec(sql string, args ...any) {
	f.t.Helper()
	if _, err := f.pool.Exec(context.Background(), sql, args...); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// reset makes the next claim search all.
func (c *readyCursor) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.next = time.Time{}
}

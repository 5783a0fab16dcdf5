package dispatcher

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

// fixture is a database of the test's own, and a receiver.
type fixture struct {
	*store.Store
	t        testing.TB
	dsn      string
	receiver *recordingReceiver
}

func newFixture(t testing.TB) *fixture {
	t.Helper()
	return newFixtureOn(t, localstack.Database(t))
}

func newFixtureOn(t testing.TB, dsn string) *fixture {
	t.Helper()
	f := &fixture{t: t, dsn: dsn, receiver: newReceiver(t)}
	f.Store = f.open("test")
	return f
}

// open makes a pool of its own, as each process has one.
func (f *fixture) open(application string) *store.Store {
	f.t.Helper()
	s, err := store.Open(f.t.Context(), store.Options{DSN: f.dsn, MaxConns: 6, Application: application})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(s.Close)
	return s
}

const applicationName = "postrider-dispatcher"

// quickConfig is made for tests: short leases, quick looks.
func quickConfig(senders int) Config {
	return Config{Senders: senders, Lease: 3 * time.Second, MaxTimeout: 2 * time.Second, RecordTime: time.Second, Grace: 5 * time.Second, PollMax: 200 * time.Millisecond}
}

// dispatch starts a dispatcher that ends with the test, unless it is ended before.
func (f *fixture) dispatch(c Config, change ...func(*Dependencies)) *running {
	f.t.Helper()
	d := testDependencies(f.t, f.open(applicationName))
	for _, c := range change {
		c(&d)
	}
	r := start(f.t, c, d, outside{})
	f.t.Cleanup(r.end)
	return r
}

// endpoint applies an endpoint at a path of the receiver.
func (f *fixture) endpoint(name string, change ...func(*store.EndpointSpec)) store.Endpoint {
	f.t.Helper()
	spec := testSpec(f.receiver.URL + "/" + name)
	spec.Timeout = 2 * time.Second
	for _, c := range change {
		c(&spec)
	}
	public := uuid.New()
	e, err := f.ApplyEndpoint(f.t.Context(), store.EndpointChange{
		PublicID: public, Namespace: "billing", Name: name, NamespaceUID: "ns-1", UID: "uid-" + name, Generation: 1,
		Spec: spec, Keys: []store.SealedKey{sealKey(f.t, public, testSecret, time.Time{})},
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

// apply changes an endpoint's row.
func (f *fixture) apply(e store.Endpoint, change ...func(*store.EndpointChange)) store.Endpoint {
	f.t.Helper()
	c := store.EndpointChange{
		Namespace: e.Namespace, Name: e.Name, NamespaceUID: e.NamespaceUID, UID: e.UID, Generation: e.Generation + 1,
		Spec: e.Spec, Keys: e.Keys, HoldReason: e.HoldReason, IfVersion: e.Version,
	}
	for _, f := range change {
		f(&c)
	}
	applied, err := f.ApplyEndpoint(f.t.Context(), c)
	if err != nil {
		f.t.Fatal(err)
	}
	return applied
}

func setSpec(change func(*store.EndpointSpec)) func(*store.EndpointChange) {
	return func(c *store.EndpointChange) { change(&c.Spec) }
}

// post accepts n events for endpoints and wakes their lanes, as ingest does.
func (f *fixture) post(n int, key string, endpoints ...store.Endpoint) []uuid.UUID {
	f.t.Helper()
	ids := f.accept(n, key, endpoints...)
	var touched []store.Touched
	for _, e := range endpoints {
		t := store.Touched{LaneID: e.LaneID}
		if e.Spec.Ordered {
			t.OrderingKey = key
		}
		touched = append(touched, t)
	}
	if err := f.Touch(f.t.Context(), touched); err != nil {
		f.t.Fatal(err)
	}
	if err := f.Notify(f.t.Context()); err != nil {
		f.t.Fatal(err)
	}
	return ids
}

func (f *fixture) accept(n int, key string, endpoints ...store.Endpoint) []uuid.UUID {
	f.t.Helper()
	m, err := f.Matching(f.t.Context(), "billing")
	if err != nil {
		f.t.Fatal(err)
	}
	events := make([]store.NewEvent, n)
	for i := range events {
		events[i] = store.NewEvent{
			Namespace: "billing", NamespaceUID: m.UID, Version: m.Version, Type: "invoice.paid", ContentType: "application/json",
			Body: fmt.Appendf(nil, `{"n":%d}`, i), OrderingKey: key,
		}
		for _, e := range endpoints {
			events[i].Targets = append(events[i].Targets, store.Target{EndpointID: e.ID, LaneID: e.LaneID, Ordered: e.Spec.Ordered})
		}
	}
	accepted, err := f.Accept(f.t.Context(), events, time.Hour)
	if err != nil {
		f.t.Fatal(err)
	}
	ids := make([]uuid.UUID, n)
	for i, a := range accepted {
		if ids[i] = a.EventID; a.Stale || a.Original != nil {
			f.t.Fatalf("event %d was not accepted: %+v", i, a)
		}
	}
	return ids
}

// event is what became of one, as a producer would ask.
func (f *fixture) event(id uuid.UUID) store.EventDetail {
	f.t.Helper()
	d, err := f.Event(f.t.Context(), "billing", "ns-1", id)
	if err != nil {
		f.t.Fatal(err)
	}
	return d
}

// delivery is what became of an event at the only endpoint it was for.
func (f *fixture) delivery(id uuid.UUID) store.DeliveryDetail {
	f.t.Helper()
	d := f.event(id)
	if len(d.Deliveries) != 1 {
		f.t.Fatalf("event %s: got %d deliveries, want 1", id, len(d.Deliveries))
	}
	return d.Deliveries[0]
}

// waitFor waits until all deliveries of some events have a state.
func (f *fixture) waitFor(state store.DeliveryState, ids ...uuid.UUID) {
	f.t.Helper()
	f.waitForPending(func(pending int) bool { return pending == 0 })
	for _, id := range ids {
		for _, d := range f.event(id).Deliveries {
			if d.State != state {
				f.t.Errorf("event %s at %s: got %s %s, want %s; attempts %+v", id, d.Endpoint, d.State, d.Reason, state, d.Attempts)
			}
		}
	}
}

func (f *fixture) waitForPending(enough func(pending int) bool) {
	f.t.Helper()
	waitFor(f.t, "deliveries", func() bool { return enough(ask[int](f, "SELECT count(*) FROM postrider.delivery")) })
}

// ask runs a query that gives one value.
func ask[T any](f *fixture, sql string, args ...any) T {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.dsn)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	var v T
	if err := conn.QueryRow(ctx, sql, args...).Scan(&v); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func (f *fixture) exec(sql string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	conn, err := pgx.Connect(ctx, f.dsn)
	if err != nil {
		f.t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		f.t.Fatalf("%s: %v", sql, err)
	}
}

// recordingReceiver answers by a function of each path, 204 where there is none, and notes what came.
type recordingReceiver struct {
	*httptest.Server
	mu       sync.Mutex
	answers  map[string]http.HandlerFunc
	received []received
	flying   map[string]int
	most     map[string]int // requests at once, by path
}

// received is a request that was received.
type received struct {
	at      time.Time
	path    string
	id      string
	attempt int
	body    string
	header  http.Header
}

func newReceiver(t testing.TB) *recordingReceiver {
	t.Helper()
	r := &recordingReceiver{answers: map[string]http.HandlerFunc{}, flying: map[string]int{}, most: map[string]int{}}
	r.Server = httptest.NewServer(r)
	t.Cleanup(func() {
		r.CloseClientConnections() // those that hang
		r.Close()
	})
	return r
}

func (r *recordingReceiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	body, _ := io.ReadAll(q.Body)
	attempt, _ := strconv.Atoi(q.Header.Get("Postrider-Attempt"))
	path := q.URL.Path
	r.mu.Lock()
	r.received = append(r.received, received{time.Now(), path, q.Header.Get("Webhook-Id"), attempt, string(body), q.Header})
	r.flying[path]++
	r.most[path] = max(r.most[path], r.flying[path])
	answer := r.answers[path]
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.flying[path]--
		r.mu.Unlock()
	}()
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	answer(w, q)
}

// answer sets what a path answers.
func (r *recordingReceiver) answer(name string, f http.HandlerFunc) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers["/"+name] = f
}

// of are the requests to a path, in the order in which they came.
func (r *recordingReceiver) of(name string) []received {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(func(yield func(received) bool) {
		for _, q := range r.received {
			if q.path == "/"+name && !yield(q) {
				return
			}
		}
	})
}

// counts are how often each event came to a path.
func (r *recordingReceiver) counts(name string) map[string]int {
	n := map[string]int{}
	for _, q := range r.of(name) {
		n[q.id]++
	}
	return n
}

func (r *recordingReceiver) mostAtOnce(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most["/"+name]
}

// status answers always the same.
func status(code int, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
	}
}

// hangs answers only when the client goes away.
func hangs(_ http.ResponseWriter, q *http.Request) { <-q.Context().Done() }

// failFirst fails the first n requests of each event.
func failFirst(n, code int) http.HandlerFunc {
	var mu sync.Mutex
	seen := map[string]int{}
	return func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if seen[q.Header.Get("Webhook-Id")]++; seen[q.Header.Get("Webhook-Id")] <= n {
			w.WriteHeader(code)
		}
	}
}

package ingest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/store"
)

// grouped runs a server with one committer, has that wait for the database, lets some calls come meanwhile, does something
// then, and lets it go on: they are one group.
func grouped(t *testing.T, n *tenant, then func(), calls ...func(*rig)) *rig {
	t.Helper()
	r := start(t, options{store: n.store, config: func(c *Config) { c.committers = 1 }})
	r.do(t, request{path: n.path(), body: simple}).accepted(t) // its memory is warm
	holder, err := n.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `LOCK TABLE postrider.event`); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		if a, err := r.try(t.Context(), request{path: n.path(), body: simple}); err != nil || a.status != http.StatusAccepted {
			t.Errorf("the one before: %v, %v", a.status, err)
		}
	})
	eventually(t, "under way", func() bool {
		return n.count(t, `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'postrider.event'::regclass`) == 1
	})
	for _, call := range calls {
		all.Go(func() { call(r) })
	}
	eventually(t, "waiting together", func() bool { return testutil.ToFloat64(r.metrics.waitingEvents) == float64(len(calls)) })
	then()
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	return r
}

// Each caller of a group hears of its own event alone: one is new, two have the same key, one's key belongs to another
// content, one has a value that the database refuses, one has left, one's namespace has just got an endpoint.
func TestEachOfAGroupHearsOnlyOfItsOwn(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	n.endpoint(t, "ledger", "*")
	moved := newTenantIn(t, n.store, n.pool, "moved", uuid.NewString())
	first := startOpen(t, n.store)
	first.do(t, request{path: n.path(), body: `{"type":"a","payload":1,"idempotency_key":"taken"}`}).accepted(t)

	post := func(path, body string, check func(answer)) func(*rig) {
		return func(r *rig) {
			a, err := r.try(t.Context(), request{path: path, body: body})
			if err != nil {
				t.Error(err)
				return
			}
			check(a)
		}
	}
	status := func(want int) func(answer) {
		return func(a answer) {
			if a.status != want {
				t.Errorf("status %d, want %d: %s", a.status, want, a.body)
			}
		}
	}
	var mu sync.Mutex
	var same []acceptedAnswer
	twin := func(a answer) {
		mu.Lock()
		defer mu.Unlock()
		if a.status != http.StatusAccepted {
			t.Errorf("one of two with a key: status %d", a.status)
			return
		}
		same = append(same, decode[acceptedAnswer](t, a))
	}
	spoilt := func(r *rig) {
		e := event{eventType: "a\x00b", contentType: mediaTypeJSON, payload: []byte("1")}
		o := r.accepter.accept(t.Context(), []submission{{namespace: n.name, event: e}})[0]
		if !errors.Is(o.err, store.ErrRefused) || storeProblem(o.err).Status != http.StatusUnprocessableEntity {
			t.Errorf("a value that the database refuses: %v", o.err)
		}
	}
	leaving, leave := context.WithCancel(t.Context())
	var left sync.WaitGroup
	left.Add(1)
	gone := func(r *rig) {
		defer left.Done()
		e := event{eventType: "gone", contentType: mediaTypeJSON, payload: []byte("1")}
		o := r.accepter.accept(leaving, []submission{{namespace: n.name, event: e}})[0]
		if !errors.Is(o.err, context.Canceled) {
			t.Errorf("the one that left: %+v", o)
		}
	}
	r := grouped(t, n, func() {
		moved.endpoint(t, "late", "*") // the table that was matched by is old now
		leave()
		left.Wait()
	},
		post(n.path(), `{"type":"new","payload":1}`, status(http.StatusAccepted)),
		post(n.path(), keyed("k"), twin), post(n.path(), keyed("k"), twin),
		post(n.path(), `{"type":"b","payload":1,"idempotency_key":"taken"}`, status(http.StatusConflict)),
		spoilt, gone,
		post(moved.path(), `{"type":"moved","payload":1}`, func(a answer) {
			if got := decode[acceptedAnswer](t, a); a.status != http.StatusAccepted || !slices.Equal(got.Deliveries, []acceptedDelivery{{"late"}}) {
				t.Errorf("its endpoints changed: %d, %+v, want the new endpoint", a.status, got)
			}
		}),
	)
	if len(same) != 2 || same[0].ID != same[1].ID || same[0].Duplicate == same[1].Duplicate {
		t.Errorf("two with one key: %+v, want one event, one of them a duplicate", same)
	}
	for name, want := range map[string]int{"new": 1, "render.done": 3, "gone": 0, "moved": 1, "b": 0} {
		if got := n.count(t, `SELECT count(*) FROM postrider.event WHERE type = $1`, name); got != want {
			t.Errorf("%d events of type %s, want %d", got, name, want)
		}
	}
	if got := testutil.ToFloat64(r.metrics.staleMatches); got != 1 {
		t.Errorf("%v were matched again, want the one whose endpoints changed", got)
	}
}

func TestABatchGoesThroughTheSameCommitsInItsOrder(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	n.apply(t, "ordered", func(c *store.EndpointChange) { c.Spec.Ordered = true })
	r := startOpen(t, n.store)
	batch := make([]submission, 1000)
	for i := range batch {
		batch[i] = submission{namespace: n.name, event: event{
			eventType: "a", contentType: mediaTypeJSON, payload: fmt.Append(nil, i), orderingKey: "o",
		}}
	}
	batch[7].event.eventType = "\x00"
	for i, o := range r.accepter.accept(t.Context(), batch) {
		if refused := errors.Is(o.err, store.ErrRefused); refused != (i == 7) || !refused && o.err != nil {
			t.Errorf("event %d: %v", i, o.err)
		}
	}
	if got := n.count(t, `SELECT count(*) FROM postrider.event`); got != 999 {
		t.Errorf("%d events, want 999", got)
	}
	if got := n.count(t, `SELECT count(*) FROM (SELECT convert_from(e.body, 'UTF8')::int AS n, lag(convert_from(e.body, 'UTF8')::int) OVER (ORDER BY d.id) AS before
		FROM postrider.delivery d JOIN postrider.event e ON e.id = d.event_id) o WHERE n < before`); got != 0 {
		t.Errorf("%d events stand before one that came earlier in the batch", got)
	}
}

// One event to 10,000 endpoints, and one of another caller beside it.
func TestAnEventForTenThousandEndpoints(t *testing.T) {
	t.Parallel()
	const endpoints = 10_000
	n := newTenant(t, "billing")
	n.endpoint(t, "first", "*")
	n.multiply(t, endpoints)
	r := startOpen(t, n.store)
	got := r.do(t, request{path: n.path(), body: keyed("wide")}).accepted(t)
	if got.Matched != endpoints || len(got.Deliveries) != endpoints {
		t.Fatalf("%d matched, want %d", got.Matched, endpoints)
	}
	if kept := n.count(t, `SELECT count(DISTINCT endpoint_id) FROM postrider.delivery WHERE event_id = $1`, got.ID); kept != endpoints {
		t.Errorf("%d deliveries, want %d", kept, endpoints)
	}
	again := r.do(t, request{path: n.path(), body: keyed("wide")}).accepted(t)
	if !again.Duplicate || again.ID != got.ID || again.Matched != endpoints {
		t.Errorf("posted again: duplicate %v of %s with %d matched", again.Duplicate, again.ID, again.Matched)
	}
	eventually(t, "all lanes woken", func() bool {
		return n.count(t, `SELECT count(*) FROM postrider.lane WHERE due_at <= now()`) == endpoints
	})
}

// multiply copies the one endpoint until there are so many. Applied one by one they would take a minute.
func (n *tenant) multiply(t *testing.T, endpoints int) {
	t.Helper()
	const columns = `SELECT string_agg(column_name, ', ' ORDER BY column_name) FROM information_schema.columns
		WHERE table_schema = 'postrider' AND table_name = $1 AND is_generated = 'NEVER' AND is_identity = 'NO' AND column_name <> ALL($2)`
	var ofEndpoint, ofLane string
	if err := n.pool.QueryRow(t.Context(), columns, "endpoint", []string{"public_id", "name", "uid", "lane_id"}).Scan(&ofEndpoint); err != nil {
		t.Fatal(err)
	}
	if err := n.pool.QueryRow(t.Context(), columns, "lane", []string{"endpoint_id"}).Scan(&ofLane); err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{
		fmt.Sprintf(`INSERT INTO postrider.endpoint (public_id, name, uid, %[1]s)
			SELECT gen_random_uuid(), 'endpoint-' || i, 'uid-' || i, %[1]s FROM postrider.endpoint, generate_series(2, %[2]d) i`, ofEndpoint, endpoints),
		fmt.Sprintf(`INSERT INTO postrider.lane (endpoint_id, %[1]s)
			SELECT e.endpoint_id, %[1]s FROM (SELECT %[1]s FROM postrider.lane) l, (SELECT endpoint_id FROM postrider.endpoint WHERE lane_id IS NULL) e`, ofLane),
		`UPDATE postrider.endpoint e SET lane_id = l.lane_id FROM postrider.lane l WHERE l.endpoint_id = e.endpoint_id`,
	} {
		if _, err := n.pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
}

// The database stands still, and what may wait waits: the next is refused at once and not after a time.
func TestWhatFindsNoPlaceIsA503AtOnce(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	s, _ := openStore(t, n.pool.Config().ConnString(), 2)
	r := start(t, options{store: s, config: func(c *Config) {
		c.DatabaseTimeout = 30 * time.Second
		c.groupEvents, c.MaxWaitingEvents = 1, 3
	}})
	r.do(t, request{path: n.path(), body: simple}).accepted(t)
	holder, err := n.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := holder.Exec(t.Context(), `LOCK TABLE postrider.event`); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range committers + 3 {
		all.Go(func() {
			if a, err := r.try(t.Context(), request{path: n.path(), body: simple}); err != nil || a.status != http.StatusAccepted {
				t.Errorf("one with a place: %d, %v", a.status, err)
			}
		})
		eventually(t, "in its place", func() bool {
			return testutil.ToFloat64(r.metrics.inFlight) == float64(i+1) && testutil.ToFloat64(r.metrics.waitingEvents) == float64(max(0, i+1-committers))
		})
	}
	began := time.Now()
	a := r.do(t, request{path: n.path(), body: simple}).want(t, http.StatusServiceUnavailable)
	if a.header.Get("Retry-After") == "" || time.Since(began) > 10*time.Second {
		t.Errorf("Retry-After %q after %v", a.header.Get("Retry-After"), time.Since(began))
	}
	if err := holder.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	all.Wait()
}

func TestOtherNamespacesThanTheWatchedAreRefused(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	other := newTenantIn(t, n.store, n.pool, "shipping", uuid.NewString())
	r := start(t, options{store: n.store, config: func(c *Config) { c.WatchNamespaces = []string{"billing", "shop"} }})
	id := r.do(t, request{path: n.path(), body: simple}).accepted(t).ID
	r.do(t, request{path: other.path(), body: simple}).want(t, http.StatusForbidden)
	r.do(t, request{path: "/api/v1/events/" + id + "?namespace=shipping"}).want(t, http.StatusForbidden)
	r.do(t, request{path: "/api/v1/events/" + id + "?namespace=billing"}).want(t, http.StatusOK)
	config := DefaultConfig()
	config.WatchNamespaces = []string{"billing", "Shop"}
	if err := config.Validate(); err == nil || !strings.Contains(err.Error(), `watch-namespaces has "Shop"`) {
		t.Errorf("a name that is none: %v", err)
	}
}

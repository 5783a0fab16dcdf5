package ingest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

const simple = `{"type":"render.done","payload":{"frame":1}}`

func keyed(key string) string {
	return fmt.Sprintf(`{"type":"render.done","payload":{"frame":1},"idempotency_key":%q}`, key)
}

// Case A1: one event posted five times at once with one key → one event row, three deliveries where three endpoints
// match, five identical ids.
func TestOneEventPostedFiveTimesAtOnceIsOneEvent(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "pixel-forge")
	for _, name := range []string{"frames", "jobs", "audit"} {
		n.endpoint(t, name, "render.*")
	}
	n.endpoint(t, "other", "invoice.*")
	one, two := startOpen(t, n.store), startOpen(t, n.store) // replicas
	for round := range 20 {
		key := fmt.Sprintf("job-%d", round)
		answers := make([]answer, 5)
		begin := make(chan struct{})
		var all sync.WaitGroup
		for i := range answers {
			all.Go(func() {
				<-begin
				var err error
				if answers[i], err = []*rig{one, two}[i%2].try(t.Context(), request{path: n.path(), body: keyed(key)}); err != nil {
					t.Error(err)
				}
			})
		}
		close(begin)
		all.Wait()
		fresh := 0
		first := answers[0].accepted(t)
		for _, a := range answers {
			got := a.accepted(t)
			if !got.Duplicate {
				fresh++
			}
			got.Duplicate, first.Duplicate = false, false
			if diff := cmp.Diff(first, got); diff != "" {
				t.Errorf("the answers differ:\n%s", diff)
			}
		}
		if fresh != 1 || first.Matched != 3 {
			t.Errorf("%d of five were fresh and %d endpoints matched, want 1 and 3", fresh, first.Matched)
		}
		if got := n.count(t, `SELECT count(*) FROM postrider.delivery WHERE event_id = $1`, first.ID); got != 3 {
			t.Errorf("%d deliveries, want 3", got)
		}
	}
	if got := n.count(t, `SELECT count(*) FROM postrider.event`); got != 20 {
		t.Errorf("%d events, want 20", got)
	}
}

// Case A4: what is posted is what is kept, to be signed and sent.
func TestPostedBytesAreKept(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	n.endpoint(t, "ledger", "*")
	r := startOpen(t, n.store)
	for _, payload := range []string{
		`8202522731445525542`, `12.340`, `1e400`, `"<>&\u003d🚀\ud83d"`, `{"b":1,"a":2,"b":3}`, "{ \"a\"\t: [ 1 ,\n2 ] }", `null`, `"\u0000"`,
	} {
		id := r.do(t, request{path: n.path(), body: `{"type":"a","payload": ` + payload + ` }`}).accepted(t).ID
		var kept []byte
		var contentType string
		if err := n.pool.QueryRow(t.Context(), `SELECT body, content_type FROM postrider.event WHERE id = $1`, id).Scan(&kept, &contentType); err != nil {
			t.Fatal(err)
		}
		if string(kept) != payload || contentType != "application/json" {
			t.Errorf("kept %q as %s, want %q", kept, contentType, payload)
		}
	}
}

// Case A6.
func TestTheSameKeyInTwoNamespacesIsTwoEvents(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	other := newTenantIn(t, n.store, n.pool, "shipping", uuid.NewString())
	r := startOpen(t, n.store)
	one := r.do(t, request{path: n.path(), body: keyed("k")}).accepted(t)
	two := r.do(t, request{path: other.path(), body: keyed("k")}).accepted(t)
	if one.ID == two.ID || two.Duplicate {
		t.Errorf("got %+v and %+v, want two events", one, two)
	}
}

// Case A7 over HTTP: the database takes what the rules take.
func TestKeysAtTheirBoundsReachTheDatabase(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	r := startOpen(t, n.store)
	for _, key := range []string{"k", strings.Repeat("k", 255), strings.Repeat("€", 85), ` "'\ $1 --`} {
		body := fmt.Sprintf(`{"type":"a","payload":1,"idempotency_key":%q,"ordering_key":%q}`, key, key)
		first := r.do(t, request{path: n.path(), body: body}).accepted(t)
		again := r.do(t, request{path: n.path(), body: body}).accepted(t)
		if first.Duplicate || !again.Duplicate || first.ID != again.ID {
			t.Errorf("key of %d bytes: %+v, then %+v", len(key), first, again)
		}
	}
	for _, key := range []string{`""`, `"` + strings.Repeat("k", 256) + `"`, `"a\u0000b"`, `"a\nb"`} {
		for _, field := range []string{"idempotency_key", "ordering_key"} {
			p := r.do(t, request{path: n.path(), body: `{"type":"a","payload":1,"` + field + `":` + key + `}`}).want(t, 422).problem(t)
			if len(p.Errors) != 1 || p.Errors[0].Field != field {
				t.Errorf("%s %s: got %+v", field, key, p.Errors)
			}
		}
	}
}

func TestAnotherContentUnderAKeyIsAConflictThatNamesTheField(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	r := startOpen(t, n.store)
	const first = `{"type":"invoice.paid","payload":{"secret":"s3cr3t"},"ordering_key":"customer-7","idempotency_key":"k"}`
	r.do(t, request{path: n.path(), body: first}).accepted(t)
	for name, tt := range map[string]struct {
		body   string
		fields []string
	}{
		"another type":      {strings.Replace(first, "invoice.paid", "invoice.void", 1), []string{"type"}},
		"another payload":   {strings.Replace(first, "s3cr3t", "other", 1), []string{"payload"}},
		"another spacing":   {strings.Replace(first, `{"secret"`, `{ "secret"`, 1), []string{"payload"}},
		"another order key": {strings.Replace(first, "customer-7", "customer-8", 1), []string{"ordering_key"}},
		"no order key":      {strings.Replace(first, `"ordering_key":"customer-7",`, ``, 1), []string{"ordering_key"}},
		"all of it":         {`{"type":"a","payload":1,"idempotency_key":"k"}`, []string{"type", "payload", "ordering_key"}},
	} {
		a := r.do(t, request{path: n.path(), body: tt.body}).want(t, http.StatusConflict)
		detail := a.problem(t).Detail
		for _, field := range []string{"type", "payload", "ordering_key"} {
			if named := strings.Contains(detail, field); named != slices.Contains(tt.fields, field) {
				t.Errorf("%s: %s is named: %v in %q", name, field, named, detail)
			}
		}
		for _, value := range []string{"s3cr3t", "customer-7", "invoice.paid"} {
			if strings.Contains(string(a.body), value) {
				t.Errorf("%s: the answer has the first event's %q", name, value)
			}
		}
	}
	if got := n.count(t, `SELECT count(*) FROM postrider.event`); got != 1 {
		t.Errorf("%d events, want 1", got)
	}
	if strings.Contains(r.logs.String(), "s3cr3t") || strings.Contains(r.logs.String(), "customer-7") {
		t.Error("a posted value is in the log")
	}
}

func TestAnIdempotencyKeyIsForgottenAfterItsWindow(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	n.endpoint(t, "ledger", "*")
	r := start(t, options{store: n.store, config: func(c *Config) { c.IdempotencyWindow = time.Second }})
	first := r.do(t, request{path: n.path(), body: keyed("k")}).accepted(t)
	var second acceptedAnswer
	eventually(t, "forgotten", func() bool {
		second = r.do(t, request{path: n.path(), body: keyed("k")}).accepted(t)
		return !second.Duplicate
	})
	if second.ID == first.ID {
		t.Error("the second event has the first one's id")
	}
	if got := n.count(t, `SELECT count(*) FROM postrider.delivery`); got != 2 {
		t.Errorf("%d deliveries, want 2", got)
	}
}

func TestAnEventThatMatchesNothingIsSaidPlainly(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	n.endpoint(t, "ledger", "invoice.*")
	n.apply(t, "disabled", func(c *store.EndpointChange) { c.Spec.State = store.Disabled })
	r := startOpen(t, n.store)
	a := r.do(t, request{path: n.path(), body: simple})
	if got := a.accepted(t); got.Matched != 0 || got.Deliveries == nil || !strings.Contains(string(a.body), `"matched":0`) {
		t.Errorf("got %s", a.body)
	}
	if got := testutil.ToFloat64(r.metrics.unmatched); got != 1 {
		t.Errorf("counted %v unmatched, want 1", got)
	}
}

// A namespace that the controller has not told of yet may have endpoints already, and has no uid that its events could
// belong to. Once it is told of, the next post is taken.
func TestANamespaceNobodyToldOfIsAskedToComeBack(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	r := startOpen(t, n.store)
	const path = "/api/v1/events?namespace=brand-new"
	for range 2 {
		a := r.do(t, request{path: path, body: simple}).want(t, http.StatusServiceUnavailable)
		if got := a.problem(t).Type; got != problemBase+"namespace-unknown" || a.header.Get("Retry-After") == "" {
			t.Errorf("got the problem %s with Retry-After %q", got, a.header.Get("Retry-After"))
		}
	}
	if got := n.count(t, `SELECT count(*) FROM postrider.event`); got != 0 {
		t.Errorf("%d events were kept", got)
	}
	made := newTenantIn(t, n.store, n.pool, "brand-new", uuid.NewString())
	made.endpoint(t, "ledger", "*")
	if got := r.do(t, request{path: path, body: simple}).accepted(t); got.Matched != 1 {
		t.Errorf("got %+v, want it matched right after the namespace was told of", got)
	}
	// And deleted again: what is remembered of it does not count.
	if _, err := n.store.ForgetNamespace(t.Context(), made.name, made.uid); err != nil {
		t.Fatal(err)
	}
	r.do(t, request{path: path, body: simple}).want(t, http.StatusServiceUnavailable)
}

// An endpoint that is paused, or not Ready for a missing Secret, gets its events and lets them wait.
func TestHeldEndpointsGetTheirEvents(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	n.apply(t, "paused", func(c *store.EndpointChange) { c.Spec.State = store.Paused })
	n.apply(t, "no-secret", func(c *store.EndpointChange) { c.HoldReason = "SecretNotFound" })
	got := startOpen(t, n.store).do(t, request{path: n.path(), body: simple}).accepted(t)
	if diff := cmp.Diff([]acceptedDelivery{{"no-secret"}, {"paused"}}, got.Deliveries); diff != "" {
		t.Errorf("deliveries (-want +got):\n%s", diff)
	}
}

// Acceptance: process killed between event and deliveries → neither exists. There is no moment between them: a
// deliveries table that refuses a row takes the event with it, and the idempotency key.
func TestEventAndDeliveriesAreStoredTogetherOrNotAtAll(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	for i := range 5 {
		n.endpoint(t, fmt.Sprintf("ledger-%d", i), "*")
	}
	if _, err := n.pool.Exec(t.Context(), `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF (SELECT name FROM postrider.endpoint WHERE endpoint_id = NEW.endpoint_id) = 'ledger-3' THEN
				RAISE EXCEPTION 'refused';
			END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON postrider.delivery FOR EACH ROW EXECUTE FUNCTION refuse()`); err != nil {
		t.Fatal(err)
	}
	r := startOpen(t, n.store)
	r.do(t, request{path: n.path(), body: keyed("k")}).want(t, 500)
	for _, table := range []string{"event", "delivery", "idempotency"} {
		if got := n.count(t, `SELECT count(*) FROM postrider.`+table); got != 0 {
			t.Errorf("%d rows of %s are left", got, table)
		}
	}
	if _, err := n.pool.Exec(t.Context(), `DROP TRIGGER refuse ON postrider.delivery`); err != nil {
		t.Fatal(err)
	}
	if got := r.do(t, request{path: n.path(), body: keyed("k")}).accepted(t); got.Duplicate || got.Matched != 5 {
		t.Errorf("got %+v, want a fresh event with five deliveries", got)
	}
}

// The backends of accepts are killed at random moments: what was answered is there, whole and once; what was not is absent
// or whole. Most are found again by their ids, or repeated under them. A POST is hit twice at most: a killer that never
// rests can be quicker than each repetition, and every POST then takes all its time.
func TestAKilledAcceptLeavesNothingHalf(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	for i := range 3 {
		n.endpoint(t, fmt.Sprintf("ledger-%d", i), "*")
	}
	r := startOpen(t, n.store)
	kept, refused := 0, 0
	for i := 0; i < 2000 && (kept < 20 || testutil.ToFloat64(r.metrics.recovered) < 20); i++ {
		rest := n.killAccepts(t, 2)
		a := r.do(t, request{path: n.path(), body: keyed(fmt.Sprintf("k%d", i))})
		rest()
		switch a.status {
		case http.StatusAccepted:
			kept++
		case http.StatusServiceUnavailable:
			refused++
		default:
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	events := n.count(t, `SELECT count(*) FROM postrider.event`)
	if events < kept || events > kept+refused {
		t.Errorf("%d events for %d answers of 202", events, kept)
	}
	if half := n.count(t, `SELECT count(*) FROM postrider.event e WHERE 3 <> (SELECT count(*) FROM postrider.delivery d WHERE d.event_id = e.id)`); half > 0 {
		t.Errorf("%d events have not all their deliveries", half)
	}
	t.Logf("%d accepted, %d refused, %d events", kept, refused, events)
	if testutil.ToFloat64(r.metrics.recovered) == 0 {
		t.Error("no accept was killed: the test shows nothing")
	}
}

// killAccepts ends the backends that it sees amid an accept, until it has hit often enough or is told to rest.
func (n *tenant) killAccepts(t *testing.T, times int) (rest func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var killer sync.WaitGroup
	killer.Go(func() {
		for hit := 0; hit < times && ctx.Err() == nil; {
			tag, err := n.pool.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND state = 'active' AND query LIKE '%WITH moment%' AND pid <> pg_backend_pid()`)
			if err == nil {
				hit += int(tag.RowsAffected())
			}
		}
	})
	return func() {
		stop()
		killer.Wait()
	}
}

// An endpoint that was Ready before a POST began is never missed, by servers that remember the table without it.
func TestAnEndpointReadyBeforeThePostIsNeverMissed(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	servers := []*rig{startOpen(t, n.store), startOpen(t, n.store)}
	for round := range 60 {
		for _, r := range servers {
			r.do(t, request{path: n.path(), body: simple}).accepted(t) // its memory is warm
		}
		name := fmt.Sprintf("endpoint-%d", round)
		n.endpoint(t, name, "render.*")
		var all sync.WaitGroup
		for _, r := range servers {
			all.Go(func() {
				a, err := r.try(t.Context(), request{path: n.path(), body: simple})
				if err != nil {
					t.Error(err)
					return
				}
				if got := a.accepted(t); !slices.Contains(got.Deliveries, acceptedDelivery{name}) {
					t.Errorf("round %d: %s is missed", round, name)
				}
			})
		}
		all.Wait()
	}
	if testutil.ToFloat64(servers[0].metrics.staleMatches) == 0 {
		t.Error("no table was ever found outdated: the test shows nothing")
	}
}

// Case K7: of a namespace that was deleted and made again, the new tenant sees nothing of the old one.
func TestANamespaceMadeAgainSeesNothingOfTheOldOne(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	n.endpoint(t, "ledger", "*")
	r := startOpen(t, n.store)
	old := r.do(t, request{path: n.path(), body: keyed("k")}).accepted(t)
	r.do(t, request{path: "/api/v1/events/" + old.ID + "?namespace=billing"}).want(t, 200)
	if _, err := n.store.ForgetNamespace(t.Context(), n.name, n.uid); err != nil {
		t.Fatal(err)
	}
	again := newTenantIn(t, n.store, n.pool, n.name, uuid.NewString())
	r.do(t, request{path: "/api/v1/events/" + old.ID + "?namespace=billing"}).want(t, 404)
	fresh := r.do(t, request{path: again.path(), body: keyed("k")}).accepted(t)
	if fresh.Duplicate || fresh.ID == old.ID || fresh.Matched != 0 {
		t.Errorf("got %+v, want an event of its own that reaches no endpoint of the old tenant", fresh)
	}
}

func TestUnknownAndForeignEventsAreNotFoundInTheSameWords(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	other := newTenantIn(t, n.store, n.pool, "shipping", uuid.NewString())
	r := startOpen(t, n.store)
	foreign := r.do(t, request{path: other.path(), body: simple}).accepted(t).ID
	id := map[string]string{"X-Request-Id": "r"}
	unknown := r.do(t, request{path: "/api/v1/events/" + uuid.NewString() + "?namespace=billing", header: id}).want(t, 404)
	got := r.do(t, request{path: "/api/v1/events/" + foreign + "?namespace=billing", header: id}).want(t, 404)
	if string(unknown.body) != string(got.body) {
		t.Errorf("unknown: %s\nforeign: %s", unknown.body, got.body)
	}
}

func TestAnEventIsReadWithItsDeliveriesAndAttempts(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	n.endpoint(t, "audit", "*")
	n.endpoint(t, "ledger", "*")
	r := startOpen(t, n.store)
	posted := r.do(t, request{path: n.path(), body: `{"type":"a.b","payload":1,"ordering_key":"o"}`}).accepted(t)
	eventually(t, "claimable", func() bool {
		batch, err := n.store.Claim(t.Context(), store.ClaimRequest{Budget: 10, Lanes: 10, PerLane: 10, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		for _, claim := range batch.Claims {
			result := store.Result{Claim: claim, Version: claim.Version, Verdict: store.Delivered, Status: 200, Duration: 5 * time.Millisecond, Response: []byte("ok")}
			if _, err := n.store.Complete(t.Context(), []store.Result{result}); err != nil {
				t.Fatal(err)
			}
		}
		return n.count(t, `SELECT count(*) FROM postrider.attempt`) == 2
	})
	got := decode[eventAnswer](t, r.do(t, request{path: "/api/v1/events/" + posted.ID + "?namespace=billing"}).want(t, 200))
	if got.ID != posted.ID || got.Type != "a.b" || got.OrderingKey != "o" || got.AcceptedAt != posted.AcceptedAt || len(got.Deliveries) != 2 {
		t.Fatalf("got %+v", got)
	}
	for i, name := range []string{"audit", "ledger"} {
		d := got.Deliveries[i]
		if d.Endpoint != name || d.State != "delivered" || len(d.Attempts) != 1 || d.Attempts[0].StatusCode != 200 || d.Attempts[0].Response != "ok" {
			t.Errorf("delivery %d is %+v", i, d)
		}
	}
}

func TestTheProducersTraceIsKept(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	r := startOpen(t, n.store)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for given, want := range map[string]string{trace: trace, "garbage": ""} {
		id := r.do(t, request{path: n.path(), body: simple, header: map[string]string{"Traceparent": given}}).accepted(t).ID
		var kept string
		if err := n.pool.QueryRow(t.Context(), `SELECT coalesce(traceparent, '') FROM postrider.event WHERE id = $1`, id).Scan(&kept); err != nil {
			t.Fatal(err)
		}
		if kept != want {
			t.Errorf("given %q, kept %q, want %q", given, kept, want)
		}
	}
}

// A posted event can be claimed at once, without the sweep, and the dispatchers hear of it.
func TestAcceptedEventsWakeTheDispatchers(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	n.apply(t, "ordered", func(c *store.EndpointChange) { c.Spec.Ordered = true })
	r := startOpen(t, n.store)
	heard := make(chan struct{}, 1000)
	ctx, stop := context.WithCancel(t.Context())
	var listening sync.WaitGroup
	listening.Go(func() { _ = n.store.Listen(ctx, func() { heard <- struct{}{} }) })
	defer listening.Wait()
	defer stop()
	<-heard // listening has begun
	r.do(t, request{path: n.path(), body: `{"type":"a","payload":1,"ordering_key":"o"}`}).accepted(t)
	select {
	case <-heard:
	case <-time.After(30 * time.Second):
		t.Fatal("no notification came")
	}
	batch, err := n.store.Claim(t.Context(), store.ClaimRequest{Budget: 10, Lanes: 10, PerLane: 10, Lease: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if len(batch.Claims) != 1 {
		t.Errorf("%d claims after the notification, want 1", len(batch.Claims))
	}
}

// Acceptance: 1,000 producers at once over a pool of 10 connections: no error but 503 with Retry-After, no deadlock,
// every 202 found in the database.
func TestAThousandProducersOverTenConnections(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t, localstack.Database(t), 10)
	n := newTenantIn(t, s, pool, "billing", uuid.NewString())
	for i := range 3 {
		n.endpoint(t, fmt.Sprintf("ledger-%d", i), "*")
	}
	r := start(t, options{store: s, config: func(c *Config) { c.DatabaseTimeout = 30 * time.Second }})
	var mu sync.Mutex
	accepted, refused := map[string]bool{}, 0
	begin := make(chan struct{})
	var all sync.WaitGroup
	for producer := range 1000 {
		all.Go(func() {
			<-begin
			for i := range 2 {
				body := simple
				if i == 1 {
					body = keyed(fmt.Sprintf("shared-%d", producer%50)) // contended
				}
				a, err := r.try(t.Context(), request{path: n.path(), body: body})
				mu.Lock()
				switch {
				case err != nil:
					t.Error(err)
				case a.status == http.StatusAccepted:
					accepted[decode[acceptedAnswer](t, a).ID] = true
				case a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") != "":
					refused++
				default:
					t.Errorf("status %d: %s", a.status, a.body)
				}
				mu.Unlock()
			}
		})
	}
	close(begin)
	all.Wait()
	ids := make([]string, 0, len(accepted))
	for id := range accepted {
		ids = append(ids, id)
	}
	if found := n.count(t, `SELECT count(*) FROM postrider.event WHERE id = ANY($1::uuid[])`, ids); found != len(ids) {
		t.Errorf("%d of %d accepted events are in the database", found, len(ids))
	}
	if half := n.count(t, `SELECT count(*) FROM postrider.event e WHERE 3 <> (SELECT count(*) FROM postrider.delivery d WHERE d.event_id = e.id)`); half > 0 {
		t.Errorf("%d events have not all their deliveries", half)
	}
	if len(accepted) < 100 {
		t.Errorf("only %d were accepted", len(accepted))
	}
	t.Logf("%d events accepted, %d requests refused", len(accepted), refused)
}

package controllers

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

// deliver posts n events to an endpoint, as ingest does, and returns their ids.
func deliver(t testing.TB, w *world, name string, n int) []uuid.UUID {
	t.Helper()
	ctx := patience(t)
	matching, err := w.store.Matching(ctx, w.namespace)
	w.must(err)
	i := slices.IndexFunc(matching.Endpoints, func(e store.MatchedEndpoint) bool { return e.Name == name })
	if i < 0 {
		t.Fatalf("endpoint %s gets no events: %+v", name, matching)
	}
	target := matching.Endpoints[i].Target
	events := make([]store.NewEvent, n)
	for i := range events {
		events[i] = store.NewEvent{
			Namespace: w.namespace, NamespaceUID: matching.UID, Version: matching.Version,
			Type: "invoice.paid", ContentType: "application/json", Body: []byte(`{}`), Targets: []store.Target{target},
		}
	}
	accepted, err := w.store.Accept(ctx, events, time.Hour)
	w.must(err)
	var ids []uuid.UUID
	for _, a := range accepted {
		if a.Stale {
			t.Fatal("the matching table moved meanwhile")
		}
		ids = append(ids, a.EventID)
	}
	w.must(w.store.Touch(ctx, []store.Touched{{LaneID: target.LaneID}}))
	return ids
}

// settle claims what is due, as a dispatcher does, ends the claim of one event and gives the others back.
func settle(t testing.TB, w *world, event uuid.UUID, end func(*store.Result)) {
	t.Helper()
	ctx := patience(t)
	batch, err := w.store.Claim(ctx, store.ClaimRequest{Budget: 100, Lanes: 10, PerLane: 100, Lease: time.Minute})
	w.must(err)
	var results []store.Result
	found := false
	for _, c := range batch.Claims {
		r := store.Result{Claim: c, Version: c.Version, Verdict: store.Released}
		if c.EventID == event {
			found = true
			end(&r)
		}
		results = append(results, r)
	}
	if !found {
		t.Fatalf("event %s is not among the %d that are due", event, len(batch.Claims))
	}
	recorded, err := w.store.Complete(ctx, results)
	w.must(err)
	for _, r := range recorded {
		if r.Fenced || r.Err != nil {
			t.Fatalf("not recorded: %+v", r)
		}
	}
}

func delivered(r *store.Result) { r.Verdict, r.Status = store.Delivered, 200 }

func retried(r *store.Result) {
	r.Verdict, r.Status, r.Reason, r.Message, r.Delay = store.Retry, 503, "ServerError", "try again", time.Hour
}

func gaveUp(r *store.Result) { r.Verdict, r.Status, r.Reason = store.Dead, 403, "Rejected" }

func answered410(r *store.Result) {
	r.Verdict, r.Status, r.Reason, r.Gone = store.Retry, 410, "Gone", true
}

// exec changes the database behind everybody's back.
func exec(t testing.TB, w *world, statements string) {
	t.Helper()
	ctx := patience(t)
	conn, err := pgx.Connect(ctx, w.dsn)
	w.must(err)
	defer func() { _ = conn.Close(ctx) }()
	_, err = conn.Exec(ctx, statements)
	w.must(err)
}

func keyName(sealed []byte) (string, error) { return keyring.KeyName(sealed) }

// migrated makes a migrated database on a server of the test's own.
func migrated(t testing.TB, pg *localstack.Postgres) string {
	t.Helper()
	dsn, err := pg.CreateDatabase(patience(t), "postrider")
	if err == nil {
		err = migrations.Up(patience(t), dsn)
	}
	if err != nil {
		t.Fatal(err)
	}
	return dsn
}

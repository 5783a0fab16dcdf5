package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// keyed makes events of namespace "billing" that bear idempotency keys.
func (f *fixture) keyed(keys ...string) []NewEvent {
	f.t.Helper()
	m, err := f.Matching(f.t.Context(), "billing")
	if err != nil {
		f.t.Fatal(err)
	}
	events := make([]NewEvent, len(keys))
	for i, key := range keys {
		events[i] = NewEvent{
			Namespace: "billing", NamespaceUID: m.UID, Version: m.Version, Type: "invoice.paid", ContentType: "application/json",
			Body: []byte(fmt.Sprint(i)), IdempotencyKey: key,
		}
		for _, e := range m.Endpoints {
			events[i].Targets = append(events[i].Targets, e.Target)
		}
	}
	return events
}

func (f *fixture) accept(events []NewEvent) []Acceptance {
	f.t.Helper()
	accepted, err := f.Accept(f.t.Context(), events, time.Hour)
	if err != nil {
		f.t.Fatal(err)
	}
	return accepted
}

func TestEqualKeysInOneCallGiveOneEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	got := f.accept(f.keyed("k", "other", "k", "", "k", ""))
	for _, i := range []int{0, 1, 3, 5} {
		if got[i].Original != nil || got[i].Stale {
			t.Errorf("event %d: got %+v, want it accepted", i, got[i])
		}
	}
	for _, i := range []int{2, 4} {
		if got[i].Original == nil || got[i].EventID != got[0].EventID {
			t.Errorf("event %d: got %+v, want the original %v", i, got[i], got[0].EventID)
		}
	}
	if o := got[2].Original; o != nil && (o.Type != "invoice.paid" || o.ContentType != "application/json" || len(o.Endpoints) != 1 || o.Endpoints[0] != "a") {
		t.Errorf("got %+v", o)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.event`); n != 4 {
		t.Errorf("%d events, want 4", n)
	}
	if n := f.waiting(); n != 4 {
		t.Errorf("%d deliveries, want 4", n)
	}
}

// Keys are taken in order: a group that waits for a key holds none that comes after it, whatever order they were posted in.
func TestGroupsWithTheSameKeysInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	insert := `INSERT INTO postrider.idempotency (namespace, namespace_uid, key, event_id, expires_at)
		VALUES ('billing', 'ns-1', $1, gen_random_uuid(), now() + interval '1 h')`
	f.endpoint("a")
	other := f.session()
	other.exec(insert, "a")
	accepter, events := f.as("accepter"), f.keyed("z", "m", "a")
	accepting := begin(t, func(ctx context.Context) ([]Acceptance, error) { return accepter.Accept(ctx, events, time.Hour) })
	if !f.blocked("accepter", accepting.done) {
		t.Error("the group did not wait for the key that another one holds")
	}
	// Shorter than a deadlock lasts: the group would be its victim, try again, and nobody had noticed.
	other.exec(`SET LOCAL lock_timeout = '200ms'`)
	for _, key := range []string{"m", "z"} {
		if err := other.try(insert, key); err != nil {
			t.Errorf("key %s: the waiting group holds it: %v", key, err)
			break
		}
	}
	other.exec("ROLLBACK")
	for i, a := range accepting.result() {
		if a.Original != nil || a.Stale {
			t.Errorf("event %d: %+v, want it accepted, since the other group gave up", i, a)
		}
	}
}

// The winner commits while the loser waits for its key. The loser's statement does not see the winner's row: only a later
// one does.
func TestTheLoserOfAKeyGetsTheWinnersEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	events := f.keyed("k")
	slow := f.gated("winner", "INSERT", "event")
	winning := begin(t, func(ctx context.Context) ([]Acceptance, error) { return slow.Accept(ctx, events, time.Hour) })
	f.blocked("winner", winning.done)
	loser := f.as("loser")
	losing := begin(t, func(ctx context.Context) ([]Acceptance, error) { return loser.Accept(ctx, events, time.Hour) })
	f.blocked("loser", losing.done)
	slow.open()
	won, lost := winning.result()[0], losing.result()[0]
	if won.Original != nil || lost.Original == nil || won.EventID != lost.EventID {
		t.Errorf("winner %+v, loser %+v; want one event, original to the loser", won, lost)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.event`); n != 1 {
		t.Errorf("%d events, want 1", n)
	}
}

func TestManyPostsOfOneKeyAtOnceGiveOneEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	events := f.keyed("k")
	var group sync.WaitGroup
	got := make([]Acceptance, 32)
	errs := make([]error, len(got))
	for i := range got {
		group.Go(func() {
			a, err := f.Accept(t.Context(), events, time.Hour)
			if errs[i] = err; err == nil {
				got[i] = a[0]
			}
		})
	}
	group.Wait()
	winners := 0
	for i, a := range got {
		if errs[i] != nil {
			t.Fatal(errs[i])
		}
		if a.EventID != got[0].EventID || a.EventID == uuid.Nil {
			t.Errorf("call %d got %v, call 0 %v", i, a.EventID, got[0].EventID)
		}
		if a.Original == nil {
			winners++
		}
	}
	if winners != 1 || f.waiting() != 1 {
		t.Errorf("%d winners and %d deliveries, want 1 and 1", winners, f.waiting())
	}
}

// The holder of a key is gone by the time the loser looks for its event: the loser tries again, and wins.
func TestTheLoserOfAKeyThatVanishedWins(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	first := f.accept(f.keyed("k"))[0]
	purge := f.session()
	purge.exec(`LOCK TABLE postrider.pinned_event`) // which the loser reads in its second statement
	loser, events := f.as("loser"), f.keyed("k")
	losing := begin(t, func(ctx context.Context) ([]Acceptance, error) { return loser.Accept(ctx, events, time.Hour) })
	if !f.blocked("loser", losing.done) {
		t.Fatal("the loser did not look for the original")
	}
	purge.exec(`DELETE FROM postrider.idempotency`)
	purge.exec("COMMIT")
	if got := losing.result()[0]; got.Original != nil || got.EventID == first.EventID {
		t.Errorf("got %+v, want a new event", got)
	}
}

func TestAKeyWhoseTimeIsOverIsFreeAgain(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	first := f.accept(f.keyed("k"))[0]
	f.exec(`UPDATE postrider.idempotency SET expires_at = now() - interval '1 s'`)
	second := f.accept(f.keyed("k"))[0]
	if second.Original != nil || second.EventID == first.EventID {
		t.Errorf("got %+v, want a new event", second)
	}
	if third := f.accept(f.keyed("k"))[0]; third.Original == nil || third.EventID != second.EventID {
		t.Errorf("got %+v, want the second event", third)
	}
}

// Where events are kept for a shorter time than their keys, a key must not be taken for ever by an event that is gone.
func TestAKeyWhoseEventIsGoneIsFree(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	f.exec(`INSERT INTO postrider.idempotency (namespace, namespace_uid, key, event_id, expires_at)
		VALUES ('billing', 'ns-1', 'k', gen_random_uuid(), now() + interval '1 h')`)
	first := f.accept(f.keyed("k"))[0]
	if first.Original != nil {
		t.Fatalf("got %+v, want a new event", first)
	}
	if again := f.accept(f.keyed("k"))[0]; again.Original == nil || again.EventID != first.EventID {
		t.Errorf("got %+v, want the event that has the key now", again)
	}
}

func TestAKeyIsOneNamespacesOwn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	billing := f.accept(f.keyed("k"))[0]
	for _, tenant := range []struct{ namespace, uid string }{{"shipping", "ns-2"}, {"billing", "ns-1-again"}} {
		if err := f.RecordNamespace(t.Context(), tenant.namespace, tenant.uid); err != nil {
			t.Fatal(err)
		}
		m, err := f.Matching(t.Context(), tenant.namespace)
		if err != nil {
			t.Fatal(err)
		}
		if len(m.Endpoints) != 0 || m.UID != tenant.uid {
			t.Errorf("%v: got %+v, want its own uid and no endpoint of the former namespace", tenant, m)
		}
		other := f.accept([]NewEvent{{
			Namespace: tenant.namespace, NamespaceUID: m.UID, Version: m.Version, Type: "t", ContentType: "c", IdempotencyKey: "k",
		}})[0]
		if other.Original != nil || other.EventID == billing.EventID {
			t.Errorf("%v: got %+v, want an event of its own", tenant, other)
		}
		if _, err := f.Event(t.Context(), tenant.namespace, tenant.uid, billing.EventID); !errors.Is(err, ErrNotFound) {
			t.Errorf("%v sees another tenant's event: %v", tenant, err)
		}
	}
}

func TestAcceptIsStaleOnceTheMatchingTableMoved(t *testing.T) {
	t.Parallel()
	for name, move := range map[string]func(f *fixture, e Endpoint) error{
		"another endpoint": func(f *fixture, e Endpoint) error { f.endpoint("b"); return nil },
		"other event types": func(f *fixture, e Endpoint) error {
			f.apply(e, func(p *EndpointSpec) { p.EventTypes = []string{"x"} })
			return nil
		},
		"disabled": func(f *fixture, e Endpoint) error {
			f.apply(e, func(p *EndpointSpec) { p.State = Disabled })
			return nil
		},
		"ordered": func(f *fixture, e Endpoint) error { f.apply(e, func(p *EndpointSpec) { p.Ordered = true }); return nil },
		"deleted": func(f *fixture, e Endpoint) error {
			_, err := f.TombstoneEndpoint(f.t.Context(), "billing", "a", "uid-a")
			return err
		},
		"namespace made anew": func(f *fixture, e Endpoint) error { return f.RecordNamespace(f.t.Context(), "billing", "ns-2") },
		"namespace gone": func(f *fixture, e Endpoint) error {
			_, err := f.ForgetNamespace(f.t.Context(), "billing", "ns-1")
			return err
		},
		"namespace told of again": func(f *fixture, e Endpoint) error {
			if _, err := f.ForgetNamespace(f.t.Context(), "billing", "ns-1"); err != nil {
				return err
			}
			return f.RecordNamespace(f.t.Context(), "billing", "ns-1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a")
			events := f.keyed("k", "")
			if err := move(f, e); err != nil {
				t.Fatal(err)
			}
			for i, a := range f.accept(events) {
				if !a.Stale || a.Original != nil || a.EventID != uuid.Nil {
					t.Errorf("event %d: got %+v, want it stale", i, a)
				}
			}
			if n := f.waiting() + ask[int](f, `SELECT count(*) FROM postrider.event`) + ask[int](f, `SELECT count(*) FROM postrider.idempotency`); n != 0 {
				t.Errorf("%d rows were stored", n)
			}
		})
	}
}

func TestAcceptIsNotStaleForWhatMatchingDoesNotConcern(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	events := f.keyed("")
	e = f.apply(e, func(p *EndpointSpec) { p.URL = "http://127.0.0.1/other" })
	f.apply(e, func(p *EndpointSpec) { p.State = Paused })
	if got := f.accept(events)[0]; got.Stale {
		t.Errorf("got %+v: a new URL and a pause change nothing about who gets what", got)
	}
}

// NOTIFY takes a lock of the whole server at commit. So an accept has none in its transaction, nor a claim or a
// completion: what listens hears of a touch alone.
func TestOnlyATouchNotifies(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	listener := f.session()
	listener.exec("COMMIT")
	listener.exec("LISTEN " + channel)
	notifier := f.as("notifier")
	touch := func() {
		t.Helper()
		if err := notifier.Touch(t.Context(), []Touched{{LaneID: e.LaneID}}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		f.accept(f.keyed("k", "k", ""))
		touch()
		f.complete(Delivered, f.claim(10)...)
	}
	touch()
	// Notifications come in the order of their commits.
	for i := range 3 {
		n, err := listener.conn.WaitForNotification(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := ask[string](f, `SELECT application_name FROM pg_stat_activity WHERE pid = $1`, n.PID); got != "notifier" {
			t.Errorf("notification %d is of a session named %q, want that of the one that touches", i, got)
		}
	}
}

package store

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// oldDay makes the partitions of a day some days ago.
func (f *fixture) oldDay(ago int) {
	f.t.Helper()
	f.exec(`SELECT postrider.make_days((now() AT TIME ZONE 'UTC')::date - $1::int, 1)`, ago)
}

// oldEvents makes events of noon of such a day.
func (f *fixture) oldEvents(ago, n int) []uuid.UUID {
	f.t.Helper()
	f.exec(`INSERT INTO postrider.event (id, namespace, namespace_uid, type, content_type, body, endpoint_ids)
		SELECT (left(postrider.uuid7_floor((now() AT TIME ZONE 'UTC')::date - $1::int + interval '12 h')::text, 14) || right(gen_random_uuid()::text, 22))::uuid,
		       'billing', 'ns-1', 'old', 'text/plain', 'body', '{}' FROM generate_series(1, $2)`, ago, n)
	ids := ask[[]uuid.UUID](f, `SELECT array_agg(id) FROM postrider.event WHERE type = 'old' AND id >= postrider.uuid7_floor((now() AT TIME ZONE 'UTC')::date - $1::int)
		AND id < postrider.uuid7_floor((now() AT TIME ZONE 'UTC')::date - $1::int + 1)`, ago)
	if len(ids) != n {
		f.t.Fatalf("%d events of %d days ago, want %d", len(ids), ago, n)
	}
	return ids
}

// owe makes deliveries of events.
func (f *fixture) owe(e Endpoint, events ...uuid.UUID) {
	f.t.Helper()
	f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at) SELECT $1, $2, id, now() FROM unnest($3::uuid[]) AS t(id)`, e.LaneID, e.ID, events)
}

func (f *fixture) days(table string) int {
	f.t.Helper()
	return ask[int](f, `SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relnamespace = 'postrider'::regnamespace AND relname ~ ('^' || $1 || '_[0-9]{8}$')`, table)
}

func (f *fixture) drop(events, attempts int) (int, error) {
	const day = 24 * time.Hour
	return f.DropDays(f.t.Context(), time.Duration(events)*day, time.Duration(attempts)*day)
}

func TestDaysAreMadeAheadByManyAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, table := range []string{"event", "attempt"} {
		for _, ahead := range []int{1, 3} {
			f.exec(`DROP TABLE postrider.` + table + `_` + ask[string](f, `SELECT to_char((now() AT TIME ZONE 'UTC')::date + $1::int, 'YYYYMMDD')`, ahead))
		}
	}
	made, errs := make([]int, 4), make([]error, 4)
	var group sync.WaitGroup
	for i := range made {
		group.Go(func() { made[i], errs[i] = f.MakeDays(t.Context()) })
	}
	group.Wait()
	sum := 0
	for i := range made {
		if sum += made[i]; errs[i] != nil {
			t.Error(errs[i])
		}
	}
	if figures, err := f.QueueFigures(t.Context()); sum != 4 || err != nil || figures.DaysAhead != 3 {
		t.Errorf("made %d partitions, %d days ahead, %v; want 4 and 3", sum, figures.DaysAhead, err)
	}
}

// The making of partitions must not wait for whoever reads or writes the tables, nor they for it.
func TestDaysAreMadeBesideReadersAndWriters(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.exec(`DROP TABLE postrider.event_` + ask[string](f, `SELECT to_char((now() AT TIME ZONE 'UTC')::date + 3, 'YYYYMMDD')`))
	writer := f.session()
	writer.exec(`INSERT INTO postrider.event (id, namespace, namespace_uid, type, content_type, body, endpoint_ids) VALUES (postrider.uuid7(), '', '', '', '', '', '{}')`)
	maker := f.session()
	maker.exec(`SELECT postrider.make_days((now() AT TIME ZONE 'UTC')::date - 1, 5)`)
	f.post("", 1, e)
	f.wake("", e)
	f.complete(Delivered, f.claim(1)...)
	maker.exec("COMMIT")
}

func TestOldDaysGoAndWhatIsNeededStays(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	for _, ago := range []int{2, 3, 4, 10} {
		f.oldDay(ago)
	}
	before := f.days("event")
	owed, idle, dead := f.oldEvents(10, 1), f.oldEvents(4, 1), f.oldEvents(3, 1)
	f.owe(e, owed...)
	f.owe(e, dead...)
	if n, err := f.drop(3, 20); n != 2 || err != nil || f.days("event") != before-2 || f.days("attempt") != before {
		t.Errorf("dropped %d, %v, %d days left; want the events of 4 and 10 days ago", n, err, f.days("event"))
	}
	if n, err := f.drop(3, 3); n != 2 || err != nil || f.days("attempt") != before-2 {
		t.Errorf("dropped %d, %v; want the attempts of 4 and 10 days ago", n, err)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.event WHERE id = $1`, idle[0]) + ask[int](f, `SELECT count(*) FROM postrider.pinned_event WHERE id = $1`, idle[0]); n != 0 {
		t.Error("an event that nobody needs was kept")
	}
	f.wake("", e)
	claims := f.claim(10)
	if len(claims) != 2 {
		t.Fatalf("claimed %d deliveries, want 2", len(claims))
	}
	for _, c := range claims {
		if c.BodyLost || string(c.Body) != "body" || c.EventType != "old" {
			t.Errorf("got %+v", c)
		}
	}
	f.complete(Delivered, claims...)
	if n, err := f.PurgePinned(t.Context(), 10); n != 1 || err != nil {
		t.Errorf("purged %d, %v; want the pinned body that was delivered", n, err)
	}
}

func TestManyNeededBodiesArePinned(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.oldDay(10)
	events := f.oldEvents(10, 2500)
	f.owe(e, events...)
	f.owe(e, events[:500]...)
	if n, err := f.drop(3, 3); n != 2 || err != nil {
		t.Fatalf("dropped %d, %v", n, err)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.pinned_event`); n != 2500 {
		t.Errorf("%d bodies pinned, want 2500", n)
	}
}

// Detaching waits for who still reads the day, no longer than its bound, and claims go on. What it leaves is ended next time.
func TestAnInterruptedDropIsEndedNextTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.oldDay(10)
	f.owe(e, f.oldEvents(10, 1)...)
	f.post("", 5, e)
	f.wake("", e)
	reader := f.session()
	reader.exec(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`)
	reader.exec(`SELECT count(*) FROM postrider.event`)
	dropper := f.as("dropper")
	dropping := begin(t, func(ctx context.Context) (error, error) {
		_, err := dropper.DropDays(ctx, 72*time.Hour, 72*time.Hour)
		return err, nil
	})
	if !f.blocked("dropper", dropping.done) {
		t.Error("it did not wait for the reader")
	}
	f.complete(Delivered, f.claim(3)...)
	f.post("", 1, e)
	if n, err := f.drop(3, 3); n != 0 || err != nil {
		t.Errorf("a second one dropped %d beside the first, %v", n, err)
	}
	if err := dropping.result(); err == nil || !strings.Contains(err.Error(), "lock timeout") {
		t.Errorf("got %v, want a lock timeout", err)
	}
	if n := ask[int](f, `SELECT count(*) FROM pg_inherits WHERE inhdetachpending`); n != 1 {
		t.Errorf("%d partitions are being detached, want 1", n)
	}
	if n := f.days("attempt"); n != 5 {
		t.Errorf("%d days of attempts, want 5: the other table's trouble is not theirs", n)
	}
	got := f.claim(10)
	if len(got) != 4 {
		t.Errorf("claimed %d deliveries, want 4", len(got))
	}
	for _, c := range got {
		if c.BodyLost {
			t.Errorf("a body of a day that is being detached is lost: %+v", c)
		}
	}
	reader.exec("COMMIT")
	if n, err := f.drop(3, 3); n != 1 || err != nil || f.days("event") != 5 {
		t.Errorf("dropped %d, %v, %d days left; want the rest", n, err, f.days("event"))
	}
}

func TestADetachedDayIsDropped(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.oldDay(10)
	for _, table := range []string{"event", "attempt"} {
		f.exec(`ALTER TABLE postrider.` + table + ` DETACH PARTITION postrider.` + table + `_` +
			ask[string](f, `SELECT to_char((now() AT TIME ZONE 'UTC')::date - 10, 'YYYYMMDD')`))
	}
	if n, err := f.drop(3, 3); n != 2 || err != nil || f.days("event") != 5 || f.days("attempt") != 5 {
		t.Errorf("dropped %d, %v", n, err)
	}
}

func TestPurgesDeleteWhatIsOldInBoundedSteps(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e, gone := f.endpoint("a"), f.endpoint("gone")
	f.post("", 5, e, gone)
	f.wake("", e, gone)
	f.complete(Dead, f.claim(100)...)
	f.accept(f.keyed("k1", "k2", "k3"))
	type purge = func(context.Context, int) (int, error)
	dead := func(ctx context.Context, n int) (int, error) { return f.PurgeDeadLetters(ctx, time.Hour, n) }
	endpoints := func(ctx context.Context, n int) (int, error) { return f.PurgeEndpoints(ctx, time.Hour, n) }
	check := func(what string, p purge, want ...int) {
		t.Helper()
		for i, w := range append(want, 0) {
			if n, err := p(t.Context(), 3); n != w || err != nil {
				t.Errorf("%s, step %d: %d, %v; want %d", what, i, n, err, w)
			}
		}
	}
	check("young dead letters", dead)
	check("needed bodies", f.PurgePinned)
	check("kept keys", f.PurgeIdempotency)
	f.exec(`UPDATE postrider.dead_letter SET died_at = now() - interval '2 h' WHERE endpoint_id = $1`, gone.ID)
	f.exec(`UPDATE postrider.idempotency SET expires_at = now() - interval '1 s' WHERE key <> 'k2'`)
	if _, err := f.TombstoneEndpoint(t.Context(), "billing", "gone", "uid-gone"); err != nil {
		t.Fatal(err)
	}
	f.exec(`UPDATE postrider.endpoint SET tombstoned_at = tombstoned_at - interval '2 h'`)
	check("an endpoint with a lane and dead letters", endpoints)
	check("old dead letters", dead, 3, 2)
	check("bodies that another dead letter needs", f.PurgePinned)
	check("keys", f.PurgeIdempotency, 2)
	f.exec(`UPDATE postrider.lane SET cancelled_at = cancelled_at - interval '2 h'`)
	for range 2 {
		if _, err := f.BuryCancelled(t.Context(), 10); err != nil {
			t.Fatal(err)
		}
	}
	f.exec(`UPDATE postrider.dead_letter SET died_at = now() - interval '2 h'`)
	for {
		n, err := f.PurgeDeadLetters(t.Context(), time.Hour, 100)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			break
		}
	}
	check("bodies that nobody needs", f.PurgePinned, 3, 2)
	check("an endpoint that nothing refers to", endpoints, 1)
	if n := ask[int](f, `SELECT count(*) FROM postrider.endpoint_status`); n != 1 {
		t.Errorf("%d rows of status, want the live endpoint's", n)
	}
}

func TestTheBacklogOfAnOpenCircuitDiesOfAge(t *testing.T) {
	t.Parallel()
	for _, inOrder := range []bool{false, true} {
		t.Run(fmt.Sprint("ordered ", inOrder), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", fragile(1), func(p *EndpointSpec) { p.Ordered, p.MaxDuration, p.MaxConcurrency = inOrder, time.Hour, 1 })
			healthy := f.endpoint("healthy", func(p *EndpointSpec) { p.MaxDuration = time.Hour })
			f.post("k", 6, e, healthy)
			f.wake("k", e)
			f.exec(`UPDATE postrider.delivery SET accepted_at = now() - interval '61 m', available_at = CASE WHEN available_at < 'infinity' THEN now() - interval '61 m' ELSE available_at END`)
			young := f.post("k", 2, e)
			f.complete(Retry, f.claim(1)...)
			expire := func(n, want int) {
				t.Helper()
				if got, err := f.ExpireBacklogs(t.Context(), n); got != want || err != nil {
					t.Errorf("buried %d, %v; want %d", got, err, want)
				}
			}
			f.exec(`UPDATE postrider.lane SET resumed_at = now() - interval '59 m' WHERE lane_id = $1`, e.LaneID)
			expire(100, 0) // its age counts from the end of its last hold
			f.exec(`UPDATE postrider.lane SET resumed_at = now() - interval '61 m' WHERE lane_id = $1`, e.LaneID)
			f.exec(`UPDATE postrider.lane SET paused = true WHERE lane_id = $1`, e.LaneID)
			expire(100, 0)
			f.exec(`UPDATE postrider.lane SET paused = false WHERE lane_id = $1`, e.LaneID)
			// The probe in flight is its owner's.
			f.exec(`UPDATE postrider.delivery SET available_at = now() - interval '61 m' WHERE lane_id = $1 AND attempt > 0`, e.LaneID)
			f.endCooldown(e)
			f.wake("", e)
			probe := f.probe()
			expire(2, 2)
			expire(100, 3)
			expire(100, 0)
			if n := ask[int](f, `SELECT count(*) FROM postrider.dead_letter WHERE reason = 'Expired' AND endpoint_id = $1`, e.ID); n != 5 {
				t.Errorf("%d dead letters, want 5", n)
			}
			f.checkInFlight()
			f.complete(Dead, probe)
			got := f.claim(10)
			if len(got) != 1 || got[0].EventID != young[0] {
				t.Errorf("claimed %+v, want the first that is young enough", got)
			}
			f.exec(`UPDATE postrider.lane SET max_inflight = 100`)
			f.wake("", healthy)
			if got := len(f.claim(100)); got < 6 {
				t.Errorf("claimed %d deliveries, want those of the endpoint whose circuit is closed too", got)
			}
		})
	}
}

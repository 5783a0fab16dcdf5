package store

import (
	"testing"
	"time"
)

// Each hold is its own: lifting one neither lifts nor keeps another.
func TestHoldsAreIndependent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 1, e)
	f.wake("", e)
	set := func(state State, reason string) {
		c := e.change(e.Generation)
		c.Spec.State, c.HoldReason = state, reason
		var err error
		if e, err = f.ApplyEndpoint(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	for i, step := range []struct {
		state State
		hold  string
		want  int
	}{{Paused, "", 0}, {Paused, "InvalidSigningKey", 0}, {Enabled, "InvalidSigningKey", 0}, {Paused, "", 0}, {Enabled, "", 1}} {
		set(step.state, step.hold)
		got := f.claim(10)
		if len(got) != step.want {
			t.Errorf("step %d: claimed %d deliveries, want %d", i, len(got), step.want)
		}
		f.complete(Delivered, got...)
	}
}

// Age counts from the end of a hold, for what was accepted before it.
func TestAgeCountsFromTheEndOfAHold(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(f *fixture, e Endpoint) Endpoint{
		"paused": func(f *fixture, e Endpoint) Endpoint { return f.apply(e, func(p *EndpointSpec) { p.State = Paused }) },
		"not ready": func(f *fixture, e Endpoint) Endpoint {
			e.HoldReason = "SecretNotFound"
			return f.apply(e)
		},
		"gone": func(f *fixture, e Endpoint) Endpoint {
			f.post("", 1, e)
			f.wake("", e)
			r := results(Dead, f.claim(1)...)
			r[0].Gone = true
			if _, err := f.Complete(f.t.Context(), r); err != nil {
				f.t.Fatal(err)
			}
			return e
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := hold(f, f.endpoint("a"))
			f.post("", 1, e)
			f.exec(`UPDATE postrider.delivery SET accepted_at = now() - interval '1 d'`)
			f.wake("", e)
			if got := f.claim(10); len(got) != 0 {
				t.Fatalf("claimed %d deliveries of a held endpoint", len(got))
			}
			before := ask[time.Time](f, `SELECT now()`)
			e.HoldReason = ""
			e = f.apply(e, func(p *EndpointSpec) { p.State = Enabled })
			held := f.claim(10)
			if len(held) != 1 || held[0].AgeFrom.Before(before) || !held[0].AcceptedAt.Before(before) {
				t.Fatalf("got %+v, want the delivery, with its age from the end of the hold", held)
			}
			// Another change lifts no hold, and so gives no new time.
			resumed := held[0].AgeFrom
			e = f.apply(e, func(p *EndpointSpec) { p.URL += "/v2" })
			f.complete(Retry, held...)
			if got := f.claim(10); len(got) != 1 || !got[0].AgeFrom.Equal(resumed) {
				t.Errorf("got %+v, want its age from %v", got, resumed)
			}
			f.post("", 1, e)
			f.wake("", e)
			if got := f.claim(10); len(got) != 1 || !got[0].AgeFrom.Equal(got[0].AcceptedAt) {
				t.Errorf("got %+v, want the age of a new delivery from its acceptance", got)
			}
		})
	}
}

func TestGoneHoldsUntilAnotherGeneration(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 4, e)
	f.wake("", e)
	gone := func(version int64) {
		r := results(Dead, f.claim(1)...)
		r[0].Gone, r[0].Version = true, version
		if _, err := f.Complete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	gone(e.Version - 1)
	if got := ask[int](f, `SELECT count(gone_at) FROM postrider.lane`); got != 0 {
		t.Error("a 410 to an earlier version counts against the present one")
	}
	gone(e.Version)
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries for a receiver that is gone", len(got))
	}
	activity, _, err := f.Activities(t.Context(), time.Time{})
	if err != nil || len(activity) != 1 || !activity[0].Gone {
		t.Errorf("got %+v, %v; want it gone", activity, err)
	}
	rotated := e.change(e.Generation)
	rotated.Keys = []SealedKey{{Sealed: []byte("new"), Fingerprint: "sha256:11111111"}}
	if e, err = f.ApplyEndpoint(t.Context(), rotated); err != nil {
		t.Fatal(err)
	}
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries: a new key makes nobody come back", len(got))
	}
	f.apply(e, func(p *EndpointSpec) { p.URL += "/v2" })
	if got := f.claim(10); len(got) != 2 {
		t.Errorf("claimed %d deliveries, want 2 with the new generation", len(got))
	}
}

func TestCancelledWorkDoesNotRevive(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 2 })
	f.post("", 5, e)
	f.wake("", e)
	sent := f.claim(10)
	off := f.apply(e, func(p *EndpointSpec) { p.State = Disabled })
	if m, err := f.Matching(t.Context(), "billing"); err != nil || len(m.Endpoints) != 0 || off.LaneID != 0 {
		t.Errorf("a disabled endpoint gets events: %+v, %v", m, err)
	}
	on := f.apply(off, func(p *EndpointSpec) { p.State = Enabled })
	if on.LaneID == 0 || on.LaneID == e.LaneID {
		t.Fatalf("lane %d after lane %d, want a new one", on.LaneID, e.LaneID)
	}
	f.post("", 1, on)
	f.wake("", on)
	f.wake("", e)
	f.complete(Retry, sent[0])
	if got := f.claim(10); len(got) != 1 || got[0].LaneID != on.LaneID {
		t.Errorf("claimed %+v, want the new delivery alone", got)
	}
	if n, err := f.BuryCancelled(t.Context(), 100); n != 4 || err != nil {
		t.Errorf("buried %d, %v; want 4, all but the one in flight", n, err)
	}
	f.endLeases()
	if n, err := f.BuryCancelled(t.Context(), 100); n != 1 || err != nil {
		t.Errorf("buried %d, %v; want the one whose lease ended", n, err)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.dead_letter WHERE reason = 'Cancelled'`); n != 5 {
		t.Errorf("%d dead letters, want 5", n)
	}
	f.checkInFlight()
	// The lane goes once no accept can still know it.
	for _, age := range []string{"59 m", "61 m"} {
		f.exec(`UPDATE postrider.lane SET cancelled_at = now() - $1::interval WHERE cancelled_at IS NOT NULL`, age)
		if _, err := f.BuryCancelled(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
		if n, want := ask[int](f, `SELECT count(*) FROM postrider.lane`), map[string]int{"59 m": 2, "61 m": 1}[age]; n != want {
			t.Errorf("%s later: %d lanes, want %d", age, n, want)
		}
	}
}

// Rows in flight are left to their claims, and must not hide those behind them from the chore.
func TestCancellingPassesOverWhatIsInFlight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 5 })
	f.post("", 8, e)
	f.wake("", e)
	f.claim(10)
	f.apply(e, func(p *EndpointSpec) { p.State = Disabled })
	if n, err := f.BuryCancelled(t.Context(), 2); n != 2 || err != nil {
		t.Errorf("buried %d, %v; want 2 of those that wait behind the 5 in flight", n, err)
	}
	if n, err := f.BuryCancelled(t.Context(), 2); n != 1 || err != nil {
		t.Errorf("buried %d, %v; want the last one", n, err)
	}
}

func TestALostBodyIsToldAndAPinnedOneUsed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	ids := f.post("", 2, e)
	f.exec(`INSERT INTO postrider.pinned_event SELECT * FROM postrider.event WHERE id = $1`, ids[0])
	f.exec(`DELETE FROM postrider.event`)
	f.wake("", e)
	claims := f.claim(10)
	if len(claims) != 2 {
		t.Fatalf("claimed %d deliveries, want 2", len(claims))
	}
	for _, c := range claims {
		if lost := c.EventID == ids[1]; c.BodyLost != lost || !lost && (string(c.Body) != `{"n":0}` || c.EventType != "invoice.paid") {
			t.Errorf("event %v: got %+v", c.EventID, c)
		}
	}
	// A dead letter without a body is one all the same.
	all := results(Dead, claims...)
	for i := range all {
		all[i].Unsent, all[i].DeadReason = true, "BodyLost"
	}
	if recorded, err := f.Complete(t.Context(), all); err != nil || recorded[0].Fenced || recorded[1].Fenced {
		t.Errorf("got %+v, %v", recorded, err)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.dead_letter WHERE reason = 'BodyLost' AND attempts = 0`); n != 2 {
		t.Errorf("%d dead letters without an attempt, want 2", n)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.attempt`); n != 0 {
		t.Errorf("%d attempts recorded, want none", n)
	}
}

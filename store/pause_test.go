package store

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// in applies a new endpoint in a namespace of its own choice.
func (f *fixture) in(namespace, name string, change ...func(*EndpointSpec)) Endpoint {
	f.t.Helper()
	e, err := f.ApplyEndpoint(f.t.Context(), EndpointChange{
		PublicID: uuid.New(), Namespace: namespace, Name: name, NamespaceUID: "uid-" + namespace, UID: namespace + "-" + name, Generation: 1,
		Spec: spec(change...),
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

// due gives an endpoint n deliveries without an event.
func (f *fixture) due(n int, endpoints ...Endpoint) {
	f.t.Helper()
	for _, e := range endpoints {
		events := make([]uuid.UUID, n)
		for i := range events {
			events[i] = uuid.New()
		}
		f.owe(e, events...)
	}
	f.wake("", endpoints...)
}

func (f *fixture) pause(namespace, reason string) Pause {
	f.t.Helper()
	p, err := f.Pause(f.t.Context(), namespace, reason)
	if err != nil {
		f.t.Fatal(err)
	}
	return p
}

func (f *fixture) resume(namespace string) bool {
	f.t.Helper()
	was, err := f.Resume(f.t.Context(), namespace)
	if err != nil {
		f.t.Fatal(err)
	}
	return was
}

// scopes are the two things that can be paused, as they hold the endpoints of namespace billing.
var scopes = map[string]string{"the installation": WholeInstallation, "the namespace": "billing"}

func TestAPauseHoldsTheNextClaimAndItsResumeGivesItBack(t *testing.T) {
	t.Parallel()
	for name, scope := range scopes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.in("billing", "a")
			f.due(3, e)
			sent := f.claim(1)
			f.pause(scope, "an incident")
			if got := f.claim(10); len(got) != 0 {
				t.Fatalf("claimed %d deliveries of what is paused", len(got))
			}
			f.complete(Retry, sent...) // what was in flight ends as ever
			f.due(1, e)
			again := f.in("billing", "b")
			f.due(1, again)
			if got := f.claim(10); len(got) != 0 {
				t.Errorf("claimed %d deliveries that came meanwhile", len(got))
			}
			f.apply(e, func(p *EndpointSpec) { p.URL += "/v2" })
			if got := f.claim(10); len(got) != 0 {
				t.Errorf("claimed %d deliveries after a change of the endpoint", len(got))
			}
			if !f.resume(scope) {
				t.Error("it says that it was not paused")
			}
			if got := f.claim(10); len(got) != 5 {
				t.Errorf("claimed %d deliveries, want all 5", len(got))
			}
			f.checkInFlight()
			if f.resume(scope) {
				t.Error("it says that it was still paused")
			}
		})
	}
}

func TestANamespacesPauseHoldsItsOwnEndpointsAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	billing, orders := f.in("billing", "a"), f.in("orders", "a")
	f.due(1, billing, orders)
	f.pause("billing", "")
	f.pause("never-heard-of", "")
	if got := f.claim(10); len(got) != 1 || got[0].EndpointID != orders.ID {
		t.Errorf("got %+v, want the delivery of the other namespace", got)
	}
	f.pause(WholeInstallation, "")
	f.due(1, orders)
	f.resume("billing")
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries: the installation's pause is not the namespace's", len(got))
	}
	f.pause("billing", "")
	f.resume(WholeInstallation)
	if got := f.claim(10); len(got) != 1 || got[0].EndpointID != orders.ID {
		t.Errorf("got %+v, want the delivery of the other namespace: resuming the installation resumes no namespace", got)
	}
}

// While the installation is paused, looking for work costs the same whatever waits, and writes to no lane.
func TestClaimsOfAPausedInstallationWriteNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.due(5, f.in("billing", "a"), f.in("orders", "a"))
	f.pause(WholeInstallation, "")
	lanes := `SELECT string_agg(ctid::text || xmin || ' ' || xmax, ',' ORDER BY lane_id) FROM postrider.lane`
	before := ask[string](f, lanes)
	for range 3 {
		b, err := f.Claim(t.Context(), whole())
		if err != nil || !b.Paused || b.More || b.Lanes != 0 || b.At.IsZero() {
			t.Errorf("got %+v, %v; want that it is paused", b, err)
		}
	}
	if after := ask[string](f, lanes); after != before {
		t.Errorf("lanes were written: %s, then %s", before, after)
	}
	q, err := f.QueueFigures(t.Context())
	if err != nil || q.Claimable != 0 || !q.OldestDue.IsZero() || !q.Paused || q.PausedNamespaces != 0 {
		t.Errorf("got %+v, %v; want nothing claimable, and paused", q, err)
	}
	f.pause("orders", "")
	f.resume(WholeInstallation)
	if q, err = f.QueueFigures(t.Context()); err != nil || q.Claimable != 5 || q.OldestDue.IsZero() || q.Paused || q.PausedNamespaces != 1 {
		t.Errorf("got %+v, %v; want 5 claimable, and one namespace paused", q, err)
	}
}

// Whatever else holds an endpoint, a pause neither lifts nor keeps it, and the other way round.
func TestAPauseIsIndependentOfOtherHolds(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]struct {
		set, lift func(*fixture, Endpoint) Endpoint
	}{
		"paused by its state": {
			func(f *fixture, e Endpoint) Endpoint { return f.apply(e, func(p *EndpointSpec) { p.State = Paused }) },
			func(f *fixture, e Endpoint) Endpoint { return f.apply(e, func(p *EndpointSpec) { p.State = Enabled }) },
		},
		"not Ready": {
			func(f *fixture, e Endpoint) Endpoint { e.HoldReason = "SecretNotFound"; return f.apply(e) },
			func(f *fixture, e Endpoint) Endpoint { e.HoldReason = ""; return f.apply(e) },
		},
		"gone": {
			func(f *fixture, e Endpoint) Endpoint {
				f.exec(`UPDATE postrider.lane SET gone_at = now() WHERE lane_id = $1`, e.LaneID)
				return e
			},
			func(f *fixture, e Endpoint) Endpoint { return f.apply(e, func(p *EndpointSpec) { p.URL += "/v2" }) },
		},
		"its circuit open": {
			func(f *fixture, e Endpoint) Endpoint {
				f.exec(`UPDATE postrider.lane SET open_until = now() + interval '1 h' WHERE lane_id = $1`, e.LaneID)
				return e
			},
			func(f *fixture, e Endpoint) Endpoint { f.endCooldown(e); return e },
		},
	} {
		for scopeName, scope := range scopes {
			t.Run(name+", "+scopeName, func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				e := f.in("billing", "a")
				f.due(1, e)
				none := func(when string) {
					t.Helper()
					if got := f.claim(10); len(got) != 0 {
						t.Fatalf("%s: claimed %d deliveries", when, len(got))
					}
				}
				e = hold.set(f, e)
				f.pause(scope, "")
				none("under both")
				f.resume(scope)
				none("after the resume")
				f.pause(scope, "")
				e = hold.lift(f, e)
				none("after the other hold's end")
				e = hold.set(f, e)
				f.resume(scope)
				none("after the resume of what was held meanwhile")
				hold.lift(f, e)
				if got := f.claim(10); len(got) != 1 {
					t.Errorf("claimed %d deliveries once nothing holds, want 1", len(got))
				}
			})
		}
	}
}

// What is enabled or adopted while its namespace is paused gets a lane that is held.
func TestALaneMadeDuringAPauseIsHeld(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.in("billing", "a", func(p *EndpointSpec) { p.State = Disabled })
	f.pause("billing", "")
	e = f.apply(e, func(p *EndpointSpec) { p.State = Enabled })
	paused := f.in("billing", "b", func(p *EndpointSpec) { p.State = Paused })
	f.due(1, e, paused)
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries of lanes made during the pause", len(got))
	}
	f.resume("billing")
	if got := f.claim(10); len(got) != 1 || got[0].EndpointID != e.ID {
		t.Errorf("got %+v, want the delivery of the endpoint that is enabled", got)
	}
	f.due(1, f.in("billing", "c"))
	if got := f.claim(10); len(got) != 1 {
		t.Errorf("claimed %d deliveries of a lane made afterwards, want 1", len(got))
	}
}

func TestAgeCountsFromTheEndOfAPause(t *testing.T) {
	t.Parallel()
	for name, scope := range scopes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.in("billing", "a")
			f.due(1, e)
			f.exec(`UPDATE postrider.delivery SET accepted_at = now() - interval '1 d'`)
			f.pause(scope, "")
			before := ask[time.Time](f, `SELECT now()`)
			f.resume(scope)
			held := f.claim(10)
			if len(held) != 1 || held[0].AgeFrom.Before(before) || !held[0].AcceptedAt.Before(before) {
				t.Fatalf("got %+v, want the delivery, with its age from the resume", held)
			}
			f.due(1, e)
			if got := f.claim(10); len(got) != 1 || !got[0].AgeFrom.Equal(got[0].AcceptedAt) {
				t.Errorf("got %+v, want the age of a new delivery from its acceptance", got)
			}
		})
	}
}

func TestNothingExpiresWhilePausedNorForItsMaxDurationAfterwards(t *testing.T) {
	t.Parallel()
	for name, scope := range scopes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.in("billing", "a", fragile(1), func(p *EndpointSpec) { p.MaxDuration, p.MaxConcurrency = time.Hour, 1 })
			f.due(3, e)
			f.complete(Retry, f.claim(1)...) // opens the circuit
			f.exec(`UPDATE postrider.delivery SET accepted_at = now() - interval '1 d', available_at = now() - interval '1 d'`)
			expired := func(when string, want int) {
				t.Helper()
				if n, err := f.ExpireBacklogs(t.Context(), 100); n != want || err != nil {
					t.Errorf("%s: buried %d, %v; want %d", when, n, err, want)
				}
			}
			f.pause(scope, "")
			expired("paused", 0)
			f.resume(scope)
			expired("just resumed", 0)
			f.exec(`UPDATE postrider.pause SET resumed_at = resumed_at - interval '59 m'`)
			f.exec(`UPDATE postrider.lane SET resumed_at = resumed_at - interval '59 m'`)
			expired("almost an hour later", 0)
			f.exec(`UPDATE postrider.pause SET resumed_at = resumed_at - interval '2 m'`)
			f.exec(`UPDATE postrider.lane SET resumed_at = resumed_at - interval '2 m'`)
			expired("an hour later", 3)
		})
	}
}

func TestPausesAreToldWithTheirReasons(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	if got, err := f.Pauses(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("got %+v, %v; want none", got, err)
	}
	first := f.pause("billing", "a leak")
	f.pause(WholeInstallation, "restored")
	if again := f.pause("billing", ""); again != first {
		t.Errorf("paused again: got %+v, want %+v", again, first)
	}
	if again := f.pause("billing", "a flood"); again.Since != first.Since || again.Reason != "a flood" {
		t.Errorf("paused for another reason: got %+v", again)
	}
	got, err := f.Pauses(t.Context())
	if err != nil || len(got) != 2 || got[0].Namespace != WholeInstallation || got[0].Reason != "restored" ||
		got[1].Namespace != "billing" || got[1].Reason != "a flood" || !got[1].Since.Equal(first.Since) {
		t.Errorf("got %+v, %v", got, err)
	}
	f.resume("billing")
	if p := f.pause("billing", ""); p.Reason != "" || !p.Since.After(first.Since) {
		t.Errorf("got %+v, want nothing of the pause before", p)
	}
}

// Whoever comes first with a token pauses; the restarts and upgrades that follow leave alone what a human has resumed.
func TestAStartPausesOnceForEachToken(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.due(1, f.in("billing", "a"))
	start := func(token string) bool {
		t.Helper()
		first, err := f.StartPaused(t.Context(), token, "started paused for "+token)
		if err != nil {
			t.Fatal(err)
		}
		return first
	}
	var group sync.WaitGroup
	var mutex sync.Mutex
	firsts := 0
	for range 4 {
		group.Go(func() {
			first := start("monday")
			b, err := f.Claim(t.Context(), whole())
			if err != nil || !b.Paused {
				t.Errorf("got %+v, %v: it is paused for whoever has started", b, err)
			}
			mutex.Lock()
			defer mutex.Unlock()
			if first {
				firsts++
			}
		})
	}
	group.Wait()
	if firsts != 1 {
		t.Errorf("%d of 4 paused, want one", firsts)
	}
	f.resume(WholeInstallation)
	if start("monday") || len(f.claim(10)) != 1 {
		t.Error("a restart paused again what was resumed")
	}
	f.pause(WholeInstallation, "an incident")
	start("tuesday")
	if p, err := f.Pauses(t.Context()); err != nil || len(p) != 1 || p[0].Reason != "an incident" {
		t.Errorf("got %+v, %v; want the pause that there was", p, err)
	}
	f.resume(WholeInstallation)
	if start("tuesday") || start("monday") {
		t.Error("an old token paused again")
	}
	if !start("wednesday") {
		t.Error("a new token did not pause")
	}
}

// A command that was killed on its way leaves lanes behind. They follow.
func TestPausesThatWereCutShortAreFinished(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.in("billing", "a")
	f.due(1, e)
	settle := func(want int) {
		t.Helper()
		if n, err := f.SettlePauses(t.Context()); n != want || err != nil {
			t.Fatalf("settled %d, %v; want %d", n, err, want)
		}
	}
	f.exec(setPaused, "billing", "")
	settle(0) // the command may still be at it
	f.exec(`UPDATE postrider.pause SET paused_at = paused_at - interval '1 m'`)
	settle(1)
	settle(0)
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries of a namespace whose pause was finished", len(got))
	}
	f.exec(setResumed, "billing")
	f.exec(`UPDATE postrider.pause SET resumed_at = resumed_at - interval '1 m'`)
	settle(1)
	if got := f.claim(10); len(got) != 1 {
		t.Errorf("claimed %d deliveries of a namespace whose resume was finished, want 1", len(got))
	}
	// So is one that is given again.
	f.pause("billing", "")
	f.exec(setResumed, "billing")
	f.complete(Retry, f.claim(10)...)
	f.resume("billing")
	if got := ask[int](f, `SELECT count(*) FROM postrider.lane WHERE paused OR namespace_paused`); got != 0 {
		t.Error("the lane is held after the second resume")
	}
}

func TestACommandThatWasOvertakenSaysSo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.in("billing", "a")
	f.pause("billing", "")
	change := ask[int64](f, `SELECT change FROM postrider.pause WHERE namespace = 'billing'`)
	f.resume("billing")
	if err := f.settle(t.Context(), "billing", change); !errors.Is(err, ErrConflict) {
		t.Errorf("got %v, want ErrConflict", err)
	}
	if got := ask[bool](f, `SELECT paused FROM postrider.lane WHERE lane_id = $1`, e.LaneID); got {
		t.Error("the lane follows the command that came first")
	}
}

// More lanes than one chunk.
func TestALargeNamespaceIsPausedInChunks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.in("billing", "a")
	const more = 2*settleChunk + 7
	f.exec(`INSERT INTO postrider.endpoint OVERRIDING SYSTEM VALUE SELECT (jsonb_populate_record(e, jsonb_build_object('endpoint_id', e.endpoint_id + n, 'name', 'e' || n,
			'public_id', gen_random_uuid(), 'uid', n::text, 'lane_id', $2::bigint + n))).* FROM postrider.endpoint e, generate_series(1, $3::int) n
		WHERE e.endpoint_id = $1`, e.ID, e.LaneID, more)
	f.exec(`INSERT INTO postrider.lane (lane_id, endpoint_id, version, ordered, due_at, max_inflight, threshold, cooldown_min, cooldown_max, max_duration)
		OVERRIDING SYSTEM VALUE
		SELECT $2::bigint + n, $1::bigint + n, 1, false, now(), 1, 1, '1 s', '1 s', '1 h' FROM generate_series(1, $3::int) n`, e.ID, e.LaneID, more)
	held := func() int {
		return ask[int](f, `SELECT count(*) FROM postrider.lane WHERE ready_at = 'infinity' AND namespace_paused`)
	}
	f.pause("billing", "")
	if got := held(); got != more+1 {
		t.Errorf("%d lanes are held, want %d", got, more+1)
	}
	f.resume("billing")
	if got := held(); got != 0 {
		t.Errorf("%d lanes are held after the resume", got)
	}
}

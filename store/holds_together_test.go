package store

import (
	"maps"
	"slices"
	"testing"
)

// hold is one of the reasons why a delivery is not sent now. What is changed in the object is tried anew whatever the
// receiver said before: respecifies tells that setting and lifting is a new generation, which ends a 410 and a cooldown;
// reversions that it is a new version of the row, which ends a cooldown.
type hold struct {
	set, lift               func(*fixture, Endpoint) Endpoint
	respecifies, reversions bool
}

const (
	stoppedAll  = "installation paused"
	circuitOpen = "circuit open"
	goneFor410  = "gone"
	rateUsedUp  = "rate used up"
)

func sql(statement string) func(*fixture, Endpoint) Endpoint {
	return func(f *fixture, e Endpoint) Endpoint {
		f.t.Helper()
		f.exec(statement, e.LaneID)
		return e
	}
}

func pauses(scope string) hold {
	return hold{
		set:  func(f *fixture, e Endpoint) Endpoint { f.pause(scope, ""); return e },
		lift: func(f *fixture, e Endpoint) Endpoint { f.resume(scope); return e },
	}
}

func setState(s State) func(*fixture, Endpoint) Endpoint {
	return func(f *fixture, e Endpoint) Endpoint {
		f.t.Helper()
		return f.apply(e, func(p *EndpointSpec) { p.State = s })
	}
}

// setReason is what a missing Secret does: the generation stays.
func setReason(reason string) func(*fixture, Endpoint) Endpoint {
	return func(f *fixture, e Endpoint) Endpoint {
		f.t.Helper()
		e.HoldReason = reason
		applied, err := f.ApplyEndpoint(f.t.Context(), e.change(e.Generation))
		if err != nil {
			f.t.Fatal(err)
		}
		return applied
	}
}

// holds are all of them.
var holds = map[string]hold{
	stoppedAll:         pauses(WholeInstallation),
	"namespace paused": pauses("billing"),
	"state paused":     {set: setState(Paused), lift: setState(Enabled), respecifies: true},
	"not Ready":        {set: setReason("SecretNotFound"), lift: setReason(""), reversions: true},
	goneFor410: {
		set: sql(`UPDATE postrider.lane SET gone_at = now() WHERE lane_id = $1`),
		lift: func(f *fixture, e Endpoint) Endpoint {
			return f.apply(e, func(p *EndpointSpec) { p.URL += "/next" })
		},
		respecifies: true,
	},
	circuitOpen: {
		set:  sql(`UPDATE postrider.lane SET open_until = now() + interval '1 h', cooldown = interval '1 h' WHERE lane_id = $1`),
		lift: func(f *fixture, e Endpoint) Endpoint { f.endCooldown(e); return e },
	},
	rateUsedUp: {
		set:  sql(`UPDATE postrider.lane SET token_at = now() + interval '1 h' WHERE lane_id = $1`),
		lift: sql(`UPDATE postrider.lane SET token_at = now() WHERE lane_id = $1`),
	},
	"all slots taken": {
		set: sql(`WITH flying AS (
				INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, claim_token, lease_until)
				SELECT lane_id, endpoint_id, gen_random_uuid(), now(), gen_random_uuid(), now() + interval '1 h' FROM postrider.lane, generate_series(1, 3)
				WHERE lane_id = $1)
			UPDATE postrider.lane SET inflight = inflight + 3, lease_end = now() + interval '1 h' WHERE lane_id = $1`),
		lift: sql(`WITH ended AS (DELETE FROM postrider.delivery WHERE lane_id = $1 AND claim_token IS NOT NULL)
			UPDATE postrider.lane SET inflight = 0, lease_end = NULL WHERE lane_id = $1`),
	},
	"Retry-After": {
		set: sql(`WITH later AS (UPDATE postrider.delivery SET available_at = now() + interval '1 h' WHERE lane_id = $1 AND claim_token IS NULL)
			UPDATE postrider.lane SET due_at = now() + interval '1 h' WHERE lane_id = $1`),
		lift: sql(`WITH later AS (UPDATE postrider.delivery SET available_at = now() WHERE lane_id = $1 AND claim_token IS NULL)
			UPDATE postrider.lane SET due_at = now() WHERE lane_id = $1`),
	},
}

// heldEndpoint is an endpoint that any of the holds can hold, with two deliveries.
func (f *fixture) heldEndpoint(name string) Endpoint {
	f.t.Helper()
	e := f.endpoint(name, func(p *EndpointSpec) { p.Rate, p.MaxConcurrency = perHour(6, 5), 3 })
	f.post("", 2, e)
	f.wake("", e)
	return e
}

// play sets and lifts holds one after the other, and looks each time whether anything is claimed: only if nothing holds.
// What is claimed is given back.
func (f *fixture) play(e Endpoint, order []string, set ...string) {
	f.t.Helper()
	holding := map[string]bool{}
	step := func(verb, name string, h hold, act func(*fixture, Endpoint) Endpoint) {
		f.t.Helper()
		e = act(f, e)
		if h.respecifies {
			delete(holding, goneFor410)
		}
		if h.respecifies || h.reversions {
			delete(holding, circuitOpen)
		}
		if holding[name] = verb == "set"; !holding[name] {
			delete(holding, name)
		}
		if len(holding) == 0 { // what earlier claims took is no hold
			f.exec(`UPDATE postrider.lane SET token_at = now() - interval '1 h' WHERE lane_id = $1`, e.LaneID)
		}
		if n := len(holding); n > 1 || n == 1 && !holding[stoppedAll] {
			if ask[bool](f, `SELECT ready_at <= now() FROM postrider.lane WHERE lane_id = $1`, e.LaneID) {
				f.t.Errorf("%v: %s %q: claimers look at it for nothing while %v hold", order, verb, name, slices.Sorted(maps.Keys(holding)))
			}
		}
		got := f.claim(10)
		if len(got) > 0 != (len(holding) == 0) {
			f.t.Errorf("%v: %s %q: claimed %d deliveries while %v hold", order, verb, name, len(got), slices.Sorted(maps.Keys(holding)))
		}
		f.complete(Released, got...)
	}
	for _, name := range set {
		step("set", name, holds[name], holds[name].set)
	}
	for _, name := range order {
		step("lift", name, holds[name], holds[name].lift)
	}
	if len(holding) > 0 {
		f.t.Fatalf("the test has lifted all but %v", holding)
	}
	f.complete(Delivered, f.claim(10)...) // all of it, or the probe first
	f.exec(`DELETE FROM postrider.delivery`)
	f.exec(`UPDATE postrider.lane SET inflight = 0, lease_end = NULL`)
}

// Each hold is its own: a delivery is sent once none is left, whichever came and went in whatever order.
func TestLiftingOneHoldLiftsNoOther(t *testing.T) {
	t.Parallel()
	names := slices.Sorted(maps.Keys(holds))
	for i, first := range names {
		t.Run(first, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for _, second := range names {
				if second != first {
					f.play(f.heldEndpoint(first+" "+second), []string{first, second}, first, second)
				}
			}
			// All at once, lifted from this one on, there and back.
			order := slices.Concat(names[i:], names[:i])
			f.play(f.heldEndpoint("all"), order, names...)
			slices.Reverse(order)
			f.play(f.heldEndpoint("all, backwards"), order, names...)
		})
	}
}

// Age is judged after a failed attempt: what waits for a token, a slot or its turn is attempted however old it is. Only
// behind an open circuit it dies without, and not while an endpoint is held by who runs it or by its own 410.
func TestOnlyAnOpenCircuitLetsWhatWaitsDieOfAge(t *testing.T) {
	t.Parallel()
	for name := range holds {
		for _, open := range []bool{false, true} {
			if open && name == circuitOpen {
				continue
			}
			t.Run(name+map[bool]string{true: ", circuit open", false: ""}[open], func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				e := holds[name].set(f, f.heldEndpoint("a"))
				if open {
					holds[circuitOpen].set(f, e)
				}
				f.exec(`UPDATE postrider.delivery SET accepted_at = now() - interval '25 h' WHERE claim_token IS NULL`)
				if name != "Retry-After" {
					f.exec(`UPDATE postrider.delivery SET available_at = now() - interval '25 h' WHERE claim_token IS NULL`)
				}
				want := 0
				if name == circuitOpen || open && slices.Contains([]string{rateUsedUp, "all slots taken"}, name) {
					want = 2
				}
				if got := f.expire(100); got != want {
					t.Errorf("buried %d, want %d", got, want)
				}
			})
		}
	}
}

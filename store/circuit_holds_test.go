package store

import (
	"slices"
	"testing"
	"time"
)

// later records a retry as the receiver asked for it, by Retry-After.
func (f *fixture) later(after time.Duration, claims ...Claim) {
	f.t.Helper()
	all := results(Retry, claims...)
	for i := range all {
		all[i].Delay, all[i].Status, all[i].Reason = after, 503, "ServerError"
	}
	recorded, err := f.Complete(f.t.Context(), all)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, r := range recorded {
		if r.Fenced || r.Err != nil {
			f.t.Fatalf("%+v", r)
		}
	}
}

// passRetries lets time pass for deliveries that wait for a retry.
func (f *fixture) passRetries(e Endpoint, d time.Duration) {
	f.t.Helper()
	f.exec(`UPDATE postrider.delivery SET available_at = available_at - $2::interval WHERE lane_id = $1 AND available_at BETWEEN now() AND '9999-01-01'`, e.LaneID, d)
	f.exec(`UPDATE postrider.lane SET due_at = due_at - $2::interval WHERE lane_id = $1 AND due_at < 'infinity'`, e.LaneID, d)
}

func (f *fixture) none(when string) {
	f.t.Helper()
	if got := f.claim(10); len(got) != 0 {
		f.t.Fatalf("%s: claimed %d deliveries, want none", when, len(got))
	}
}

// Retry-After is its delivery's, the cooldown its endpoint's: what was asked to wait long is not the probe, and what was
// asked to come back at once waits for the cooldown.
func TestRetryAfterAndAnOpenCircuit(t *testing.T) {
	t.Parallel()
	t.Run("longer than the cooldown", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		e := f.endpoint("a", fragile(1))
		ids := f.queue("", 2, e)
		asked := f.claim(1)
		f.later(time.Hour, asked...)
		f.none("before the cooldown is over")
		f.endCooldown(e)
		probe := f.probe()
		if probe.EventID == asked[0].EventID {
			t.Fatal("the probe is the delivery that was asked to wait for an hour")
		}
		f.later(2*time.Hour, probe) // so is this one, and the cooldown is a minute now
		f.endCooldown(e)
		f.none("both wait for longer than the cooldown")
		if c := f.circuit(e); !c.open || c.probing || c.cooldown != time.Minute {
			t.Errorf("got %+v, want it open and no probe under way", c)
		}
		f.passRetries(e, time.Hour)
		first := f.probe()
		if first.EventID != asked[0].EventID {
			t.Errorf("probed with %v of %v, want the first whose time has come", first.EventID, ids)
		}
		f.complete(Delivered, first)
		f.none("the circuit is closed, and the other one still waits")
		f.passRetries(e, time.Hour)
		if got := f.claim(10); len(got) != 1 || got[0].Probe || got[0].EventID != probe.EventID {
			t.Errorf("claimed %d deliveries, want the other one, which is no probe", len(got))
		}
	})
	t.Run("what comes meanwhile is the probe", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		e := f.endpoint("a", fragile(1))
		f.queue("", 1, e)
		f.later(6*time.Hour, f.claim(1)...)
		f.endCooldown(e)
		f.none("the only delivery waits")
		fresh := f.queue("", 1, e)
		if probe := f.probe(); probe.EventID != fresh[0] {
			t.Error("the probe is not the new delivery")
		}
	})
	t.Run("shorter than the cooldown", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		e := f.endpoint("a", fragile(1))
		f.queue("", 1, e)
		f.later(0, f.claim(1)...)
		f.none("due at once, but the circuit is open")
		f.endCooldown(e)
		f.later(0, f.probe())
		f.none("due at once, but the cooldown is twice as long")
		f.endCooldown(e)
		f.complete(Delivered, f.probe())
	})
}

// A probe is a request like any other: it waits for its token and takes it, and counts among maxConcurrency.
func TestAProbeWaitsForATokenAndASlot(t *testing.T) {
	t.Parallel()
	t.Run("a token", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		e := f.endpoint("a", fragile(1), func(p *EndpointSpec) { p.Rate = perHour(6, 2) })
		f.queue("", 9, e)
		sent := f.claim(10)
		if len(sent) != 2 {
			t.Fatalf("claimed %d deliveries, want the burst", len(sent))
		}
		f.later(time.Hour, sent...)
		f.endCooldown(e)
		f.none("the cooldown is over, but there is no token")
		f.pass(e, 20*time.Minute) // two tokens, and one probe
		probe := f.probe()
		f.none("beside the probe, though a token is left")
		f.complete(Delivered, probe)
		if got := f.claim(10); len(got) != 1 {
			t.Errorf("claimed %d deliveries once it is closed, want one by the token that the probe has left", len(got))
		}
		f.none("no token is left")
	})
	t.Run("a token, not yet the cooldown", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		e := f.endpoint("a", fragile(1), func(p *EndpointSpec) { p.Rate = perHour(6, 5) })
		f.queue("", 9, e)
		f.later(time.Hour, f.claim(1)...)
		f.pass(e, 10*time.Hour)
		f.none("a full bucket opens no circuit's gate")
		f.endCooldown(e)
		f.complete(Delivered, f.probe())
		if got := f.claim(10); len(got) != 4 {
			t.Errorf("claimed %d deliveries, want the burst without the probe's token", len(got))
		}
	})
	t.Run("a slot", func(t *testing.T) {
		t.Parallel()
		f := newFixture(t)
		e := f.endpoint("a", fragile(1), func(p *EndpointSpec) { p.MaxConcurrency = 3 })
		f.queue("", 9, e)
		flying := f.claim(10)
		f.later(time.Hour, flying[0])
		f.apply(e, func(p *EndpointSpec) { p.MaxConcurrency = 2 })
		f.none("two requests from before it opened take up the two slots")
		f.complete(Retry, flying[1])
		if c := f.circuit(e); !c.open {
			t.Errorf("got %+v", c)
		}
		probe := f.probe()
		f.complete(Delivered, flying[2], probe)
		if c := f.circuit(e); c.open {
			t.Errorf("got %+v, want it closed by the probe", c)
		}
	})
}

// A cooldown goes on under a pause; what is found after the pause is a probe and not the backlog, whose age counts from
// there. A probe that was under way when an operator paused still tells of the receiver. A change of the object, which
// `state: Paused` is, asks anew.
func TestAPauseWhileTheCircuitIsOpen(t *testing.T) {
	t.Parallel()
	for name, h := range holds {
		if !slices.Contains([]string{stoppedAll, "namespace paused", "state paused", "not Ready"}, name) {
			continue
		}
		anew := h.respecifies || h.reversions
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			t.Run("cooldown over meanwhile", func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				e := f.broken(5)
				e = h.set(f, e)
				f.endCooldown(e)
				f.none("the cooldown is over, but it is paused")
				f.exec(`UPDATE postrider.delivery SET accepted_at = accepted_at - interval '25 h', available_at = available_at - interval '25 h'`)
				f.exec(`UPDATE postrider.lane SET first_at = first_at - interval '25 h'`)
				if n := f.expire(100); n != 0 {
					t.Errorf("buried %d during a pause", n)
				}
				before := ask[time.Time](f, `SELECT now()`)
				h.lift(f, e)
				if n := f.expire(100); n != 0 {
					t.Errorf("buried %d right after a pause", n)
				}
				if probe := f.probe(); probe.AgeFrom.Before(before) {
					t.Errorf("the probe's age counts from %v, want it from the end of the pause, %v", probe.AgeFrom, before)
				}
				f.none("beside the probe")
			})
			t.Run("cooldown not over", func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				e := f.broken(5)
				e = h.lift(f, h.set(f, e))
				if anew {
					f.probe()
				} else {
					f.none("the resume has ended a cooldown")
					f.endCooldown(e)
					f.probe()
				}
				f.none("beside the probe")
			})
			t.Run("a probe under way", func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				e := f.broken(5)
				f.endCooldown(e)
				probe := f.probe()
				e = h.set(f, e)
				f.complete(Delivered, probe)
				f.none("the probe is back, but it is paused")
				h.lift(f, e)
				if anew {
					f.complete(Delivered, f.probe())
				}
				if got := f.claim(10); len(got) == 0 || got[0].Probe {
					t.Errorf("claimed %d deliveries, want the backlog of a closed circuit", len(got))
				}
			})
			t.Run("a probe under way that fails", func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				e := f.broken(5)
				f.endCooldown(e)
				probe := f.probe()
				e = h.set(f, e)
				f.later(0, probe)
				want := time.Minute
				if anew {
					want = 30 * time.Second // it was sent by what is no longer said
				}
				if c := f.circuit(e); !c.open || c.cooldown != want {
					t.Errorf("got %+v, want it open with a cooldown of %v", c, want)
				}
				f.none("paused, and its circuit open")
			})
		})
	}
}

// Times go on under a pause: a retry falls due, and the bucket fills, to its burst and no further.
func TestTimesGoOnUnderAPause(t *testing.T) {
	t.Parallel()
	for _, name := range []string{stoppedAll, "namespace paused", "state paused", "not Ready"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", func(p *EndpointSpec) { p.Rate = perHour(6, 3) })
			f.queue("", 5, e)
			sent := f.claim(10)
			if len(sent) != 3 {
				t.Fatalf("claimed %d deliveries, want the burst", len(sent))
			}
			f.later(time.Hour, sent[0])
			e = holds[name].set(f, e)
			f.passRetries(e, time.Hour)
			f.pass(e, 10*time.Hour)
			f.none("paused")
			holds[name].lift(f, e)
			got := f.claim(10)
			if len(got) != 3 || !slices.ContainsFunc(got, func(c Claim) bool { return c.EventID == sent[0].EventID }) {
				t.Errorf("claimed %d deliveries, want the two that waited and the one that fell due meanwhile", len(got))
			}
			f.queue("", 2, e)
			f.none("the bucket held no more than its burst")
		})
	}
}

// A head that waits by Retry-After is one row that is not due: it takes no token and no slot from other keys, and its
// followers wait for it alone.
func TestAWaitingHeadTakesNothingFromOtherKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", ordered, func(p *EndpointSpec) { p.Rate, p.MaxConcurrency = perHour(6, 3), 2 })
	waits := f.queue("waits", 3, e)
	f.later(time.Hour, f.claim(1)...)
	b, c := f.queue("b", 2, e), f.queue("c", 2, e)
	got := f.claim(10)
	if len(got) != 2 || got[0].EventID != b[0] || got[1].EventID != c[0] {
		t.Fatalf("claimed %d deliveries, want the heads of the two others: two slots, two tokens", len(got))
	}
	f.complete(Delivered, got...)
	f.none("no token")
	f.pass(e, time.Hour)
	if got = f.claim(10); len(got) != 2 || got[0].EventID != b[1] || got[1].EventID != c[1] {
		t.Fatalf("claimed %d deliveries, want the next of the two others", len(got))
	}
	f.complete(Delivered, got...)
	f.pass(e, time.Hour)
	f.none("the head still waits")
	f.passRetries(e, time.Hour)
	for i, want := range waits {
		f.pass(e, time.Hour)
		got := f.claim(10)
		if len(got) != 1 || got[0].EventID != want {
			t.Fatalf("claimed %d deliveries, want event %d of the key that waited", len(got), i)
		}
		f.complete(Delivered, got...)
	}
}

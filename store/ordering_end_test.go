package store

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

// drain delivers all that is claimable, one claim after the other, and returns each key's events in the order in which
// they were sent. No two of a key may be in flight, and nothing may stay behind.
func (f *fixture) drain() map[string][]uuid.UUID {
	f.t.Helper()
	sent := map[string][]uuid.UUID{}
	for claims := f.claim(100); len(claims) > 0; claims = f.claim(100) {
		at := map[string]int{}
		for _, c := range claims {
			if at[c.OrderingKey]++; c.OrderingKey != "" && at[c.OrderingKey] > 1 {
				f.t.Errorf("two deliveries of the key %q are in flight", c.OrderingKey)
			}
			sent[c.OrderingKey] = append(sent[c.OrderingKey], c.EventID)
		}
		f.complete(Delivered, claims...)
	}
	if n := f.waiting(); n != 0 {
		f.t.Errorf("%d deliveries are stuck", n)
	}
	f.checkInFlight()
	return sent
}

// expect demands the order in which a key's events were sent.
func (f *fixture) expect(sent map[string][]uuid.UUID, key string, want ...uuid.UUID) {
	f.t.Helper()
	if !slices.Equal(sent[key], want) {
		f.t.Errorf("key %q: sent %v, want %v", key, sent[key], want)
	}
}

// age makes what was accepted older.
func (f *fixture) age(by time.Duration, events ...uuid.UUID) {
	f.t.Helper()
	f.exec(`UPDATE postrider.delivery SET accepted_at = accepted_at - $1::interval WHERE event_id = ANY($2::uuid[])`, by, events)
}

func (f *fixture) expire(chunk int) (n int) {
	f.t.Helper()
	n, err := f.ExpireBacklogs(f.t.Context(), chunk)
	if err != nil {
		f.t.Fatal(err)
	}
	return n
}

// queue posts n events of a key and promotes it.
func (f *fixture) queue(key string, n int, e Endpoint) []uuid.UUID {
	f.t.Helper()
	ids := f.post(key, n, e)
	f.wake(key, e)
	return ids
}

// However the head ends, its key goes on with the next one at once, and no other key notices.
func TestAKeyGoesOnAfterAHeadThatIsGivenUp(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(r *Result){
		"rejected":           func(r *Result) { r.Status, r.Reason = 400, "Rejected" },
		"attempts used up":   func(r *Result) { r.DeadReason, r.Failing = "AttemptsExhausted", true },
		"expired":            func(r *Result) { r.DeadReason, r.Failing = "Expired", true },
		"its body lost":      func(r *Result) { r.DeadReason, r.Unsent = "BodyLost", true },
		"under an old spec":  func(r *Result) { r.Version-- },
		"as the last result": func(*Result) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", ordered)
			a, b := f.queue("a", 4, e), f.queue("b", 2, e)
			sent := map[string][]uuid.UUID{}
			for n := range 2 { // two heads in a row
				for _, c := range f.claim(100) {
					sent[c.OrderingKey] = append(sent[c.OrderingKey], c.EventID)
					if c.OrderingKey != "a" {
						continue // stays in flight
					}
					all := results(Dead, c)
					end(&all[0])
					if r, err := f.Complete(t.Context(), all); err != nil || r[0].Fenced || !r[0].Ready {
						t.Fatalf("head %d: %+v, %v; want it recorded and the lane ready for the next", n, r, err)
					}
				}
			}
			f.expect(sent, "a", a[:2]...)
			f.expect(sent, "b", b[0])
			f.endLeases()
			sent = f.drain()
			f.expect(sent, "a", a[2:]...)
			f.expect(sent, "b", b...)
		})
	}
}

// Behind an open circuit a key's deliveries die of age, whether the head waits for its retry or its turn, in chunks of any
// size. What is young enough goes on in order once a probe succeeds, and a key whose head lives is not disturbed.
func TestAKeyGoesOnAfterAHeadThatExpiredBehindAnOpenCircuit(t *testing.T) {
	t.Parallel()
	for _, chunk := range []int{1, 2, 100} {
		f := newFixture(t)
		e := f.endpoint("a", ordered, fragile(1), func(p *EndpointSpec) { p.MaxDuration = time.Hour })
		a := f.queue("a", 5, e)
		r := results(Retry, f.claim(1)...)
		r[0].Delay = 40 * time.Minute // the head waits for its retry
		if _, err := f.Complete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		b, c, d := f.queue("b", 4, e), f.queue("c", 2, e), f.queue("d", 2, e)
		if got := f.claim(100); len(got) != 0 {
			t.Fatalf("claimed %d deliveries past an open circuit", len(got))
		}
		f.age(2*time.Hour, slices.Concat(a[:2], b[:3], d)...) // of c none: it goes on as ever
		buried := 0
		for n := f.expire(chunk); n > 0; n = f.expire(chunk) {
			if buried += n; n > chunk {
				t.Errorf("buried %d at once, want %d at most", n, chunk)
			}
			for _, key := range []string{"a", "b", "c", "d"} {
				if n := f.visible(key); n > 1 {
					t.Errorf("%d visible rows of the key %s", n, key)
				}
			}
		}
		if dead := ask[int](f, `SELECT count(*) FROM postrider.dead_letter WHERE reason = 'Expired' AND event_id = ANY($1::uuid[])`,
			slices.Concat(a[:2], b[:3], d)); buried != 7 || dead != 7 {
			t.Errorf("chunks of %d: buried %d, %d of the old ones; want these 7", chunk, buried, dead)
		}
		if got := f.claim(100); len(got) != 0 {
			t.Fatalf("claimed %d deliveries: an expiry opened the circuit's gate", len(got))
		}
		f.endCooldown(e)
		probe := f.probe()
		sent := map[string][]uuid.UUID{probe.OrderingKey: {probe.EventID}}
		f.complete(Delivered, probe)
		for key, ids := range f.drain() {
			sent[key] = append(sent[key], ids...)
		}
		f.expect(sent, "a", a[2:]...)
		f.expect(sent, "b", b[3])
		f.expect(sent, "c", c...)
		f.expect(sent, "d")
	}
}

// The lane was to be looked at when the head's retry falls due. The next of its key is due now, and the probe.
func TestTheNextAfterAnExpiredHeadIsNotKeptWaitingForItsRetry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", ordered, fragile(1), func(p *EndpointSpec) { p.MaxDuration = time.Hour })
	ids := f.queue("k", 3, e)
	r := results(Retry, f.claim(1)...)
	r[0].Delay = 40 * time.Minute
	if _, err := f.Complete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	f.endCooldown(e)
	if got := f.claim(10); len(got) != 0 {
		t.Fatalf("claimed %d deliveries past a head that waits for its retry", len(got))
	}
	f.age(2*time.Hour, ids[0])
	if n := f.expire(100); n != 1 {
		t.Fatalf("buried %d, want the head", n)
	}
	if probe := f.probe(); probe.EventID != ids[1] {
		t.Errorf("probed with %v, want %v, the next of its key", probe.EventID, ids[1])
	}
}

// A head that is the probe in flight is not buried under its request, though all behind it expire; what comes of it counts.
func TestAKeyGoesOnAfterAProbeWhoseFollowersExpired(t *testing.T) {
	t.Parallel()
	for _, v := range []Verdict{Delivered, Dead, Retry, Released} {
		t.Run(string(v), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", ordered, fragile(1), func(p *EndpointSpec) { p.MaxDuration = time.Hour })
			a := f.queue("a", 4, e)
			f.complete(Retry, f.claim(1)...)
			f.endCooldown(e)
			probe := f.probe()
			f.age(2*time.Hour, a[:3]...)
			if n := f.expire(100); n != 2 {
				t.Fatalf("buried %d, want the two old followers", n)
			}
			if f.visible("a") != 1 {
				t.Errorf("%d visible rows beside the probe", f.visible("a")-1)
			}
			f.complete(v, probe)
			want := a[3:]
			if v == Retry || v == Released { // it waits for another probe, and is old
				f.endCooldown(e)
				if n := f.expire(100); n != 1 {
					t.Errorf("buried %d, want the head that is back", n)
				}
			}
			if v == Retry || v == Released {
				probe = f.probe()
				f.expect(map[string][]uuid.UUID{"a": {probe.EventID}}, "a", want...)
				f.complete(Delivered, probe)
				want = nil
			}
			f.expect(f.drain(), "a", want...)
		})
	}
}

// Disabled or deleted, and enabled or made again: the key starts anew. What was cancelled never comes back, neither what
// was in flight, nor a retry, nor a follower, and it is not in the way of what is posted afterwards.
func TestAKeyStartsAnewWhenItsEndpointIsBack(t *testing.T) {
	t.Parallel()
	for name, back := range map[string]func(*fixture, Endpoint) Endpoint{
		"disabled": func(f *fixture, e Endpoint) Endpoint {
			e = f.apply(e, func(p *EndpointSpec) { p.State = Disabled })
			return f.apply(e, func(p *EndpointSpec) { p.State = Enabled })
		},
		"deleted": func(f *fixture, e Endpoint) Endpoint {
			if ok, err := f.TombstoneEndpoint(f.t.Context(), e.Namespace, e.Name, e.UID); !ok || err != nil {
				f.t.Fatalf("%v, %v", ok, err)
			}
			return f.endpoint(e.Name, ordered)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			old := f.endpoint("a", ordered)
			flying, retried, due := f.queue("flying", 3, old), f.queue("retried", 3, old), f.queue("due", 3, old)
			var head Claim
			for _, c := range f.claim(100) {
				switch c.OrderingKey {
				case "flying":
					head = c
				case "retried":
					r := results(Retry, c)
					r[0].Delay = time.Hour
					if _, err := f.Complete(t.Context(), r); err != nil {
						t.Fatal(err)
					}
				case "due":
					f.complete(Released, c)
				}
			}
			e := back(f, old)
			again := f.queue("flying", 2, e)
			for _, key := range []string{"flying", "retried", "due"} {
				f.wake(key, old) // a touch that comes late
			}
			if _, _, err := f.SweepLanes(t.Context(), 0, 100); err != nil {
				t.Fatal(err)
			}
			first := f.claim(100)
			if len(first) != 1 || first[0].EventID != again[0] {
				t.Fatalf("claimed %d deliveries, want the first since it is back", len(first))
			}
			f.complete(Retry, head) // its request was under way when it was cancelled
			f.complete(Delivered, first...)
			buried := 0
			for n := 1; n > 0; buried += n {
				var err error
				if n, err = f.BuryCancelled(t.Context(), 2); err != nil {
					t.Fatal(err)
				}
			}
			if dead := ask[int](f, `SELECT count(*) FROM postrider.dead_letter WHERE reason = 'Cancelled' AND event_id = ANY($1::uuid[])`,
				slices.Concat(flying, retried, due)); buried != 9 || dead != 9 {
				t.Errorf("buried %d, %d of the old ones; want all 9", buried, dead)
			}
			retriedAgain := f.queue("retried", 2, e)
			sent := f.drain()
			f.expect(sent, "flying", again[1])
			f.expect(sent, "retried", retriedAgain...)
			f.expect(sent, "due")
		})
	}
}

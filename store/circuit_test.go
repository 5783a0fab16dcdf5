package store

import (
	"testing"
	"time"
)

// circuit is the state of a lane's circuit.
type circuit struct {
	open     bool
	fails    int
	probing  bool
	cooldown time.Duration
}

func (f *fixture) circuit(e Endpoint) (c circuit) {
	f.t.Helper()
	if err := f.pool.QueryRow(f.t.Context(), `SELECT open_until IS NOT NULL, fails, probe_token IS NOT NULL, cooldown FROM postrider.lane WHERE lane_id = $1`,
		e.LaneID).Scan(&c.open, &c.fails, &c.probing, &c.cooldown); err != nil {
		f.t.Fatal(err)
	}
	return c
}

// endCooldown lets the cooldown of an open circuit pass.
func (f *fixture) endCooldown(e Endpoint) {
	f.t.Helper()
	f.exec(`UPDATE postrider.lane SET open_until = now() - interval '1 ms' WHERE lane_id = $1 AND probe_token IS NULL`, e.LaneID)
}

func fragile(threshold int) func(*EndpointSpec) {
	return func(p *EndpointSpec) {
		p.FailureThreshold, p.Cooldown, p.MaxCooldown = threshold, 30*time.Second, 100*time.Second
	}
}

// broken makes an endpoint whose circuit is open, with n deliveries that wait.
func (f *fixture) broken(n int) Endpoint {
	f.t.Helper()
	e := f.endpoint("a", fragile(1))
	f.post("", n, e)
	f.wake("", e)
	claims := f.claim(1)
	f.complete(Retry, claims...)
	if c := f.circuit(e); !c.open {
		f.t.Fatalf("got %+v, want it open", c)
	}
	return e
}

// probe claims and demands the circuit's one probe.
func (f *fixture) probe() Claim {
	f.t.Helper()
	claims := f.claim(10)
	if len(claims) != 1 || !claims[0].Probe {
		f.t.Fatalf("claimed %d deliveries, want the probe alone", len(claims))
	}
	return claims[0]
}

func TestCircuitOpensAfterConsecutiveFailuresAlone(t *testing.T) {
	t.Parallel()
	// R: to be retried; F: dead after the last of its retryable failures; D: delivered; X: dead, but the receiver answered;
	// U: not sent; L: released; O: a failure under an old version. A space ends a batch.
	for signs, want := range map[string]circuit{
		"R R":       {fails: 2},
		"R R R":     {fails: 3, open: true, cooldown: 30 * time.Second},
		"RRR":       {fails: 3, open: true, cooldown: 30 * time.Second},
		"R F R":     {fails: 3, open: true, cooldown: 30 * time.Second},
		"RR D RR":   {fails: 2},
		"RRDRR":     {fails: 2},
		"RR X RR":   {fails: 2},
		"RRD":       {fails: 0},
		"DRRR":      {fails: 3, open: true, cooldown: 30 * time.Second},
		"RRRD":      {fails: 0},
		"RR U L R":  {fails: 3, open: true, cooldown: 30 * time.Second},
		"RR UL UL":  {fails: 2},
		"RR OOO":    {fails: 2},
		"OOOO OOOO": {fails: 0},
		"RRORR":     {fails: 4, open: true, cooldown: 30 * time.Second},
	} {
		t.Run(signs, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", fragile(3))
			e = f.apply(e, func(p *EndpointSpec) { p.URL += "/v2" })
			f.post("", len(signs), e)
			f.wake("", e)
			claims := f.claim(100)
			var batch []Result
			for _, sign := range signs + " " {
				if sign == ' ' {
					if _, err := f.Complete(t.Context(), batch); err != nil {
						t.Fatal(err)
					}
					batch = nil
					continue
				}
				r := results(Retry, claims[0])[0]
				claims = claims[1:]
				switch sign {
				case 'F':
					r.Verdict, r.Failing = Dead, true
				case 'D':
					r.Verdict = Delivered
				case 'X':
					r.Verdict = Dead
				case 'U':
					r.Unsent = true
				case 'L':
					r.Verdict = Released
				case 'O':
					r.Version--
				}
				batch = append(batch, r)
			}
			if got := f.circuit(e); got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		})
	}
}

func TestAnOpenCircuitLetsOneProbeThrough(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.broken(5)
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries before the cooldown is over", len(got))
	}
	f.endCooldown(e)
	f.probe()
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries beside the probe", len(got))
	}
}

func TestAProbesSuccessClosesTheCircuit(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]Verdict{"delivered": Delivered, "dead by an answer": Dead} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.broken(5)
			f.endCooldown(e)
			f.complete(v, f.probe())
			if got := f.circuit(e); got != (circuit{}) {
				t.Errorf("got %+v, want it closed and forgotten", got)
			}
			if got := f.claim(10); len(got) != 4 || got[0].Probe {
				t.Errorf("claimed %d deliveries, want the 4 others", len(got))
			}
		})
	}
}

func TestAProbesFailureDoublesTheCooldownUpToItsMaximum(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.broken(5)
	for _, want := range []time.Duration{60 * time.Second, 100 * time.Second, 100 * time.Second} {
		f.endCooldown(e)
		f.complete(Retry, f.probe())
		got := f.circuit(e)
		if !got.open || got.probing || got.cooldown != want {
			t.Errorf("got %+v, want it open for %v", got, want)
		}
		left := ask[time.Duration](f, `SELECT open_until - now() FROM postrider.lane`)
		if left > want || left < want-patience {
			t.Errorf("open for another %v, want %v", left, want)
		}
	}
	// Success makes the next failure begin with the least cooldown again.
	f.endCooldown(e)
	f.complete(Delivered, f.probe())
	f.complete(Retry, f.claim(1)...)
	if got := f.circuit(e); got.cooldown != 30*time.Second {
		t.Errorf("got %+v, want the least cooldown after a success", got)
	}
}

func TestAProbeThatWasNotSentIsGivenBack(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*Result){
		"released": func(r *Result) { r.Verdict = Released },
		"unsent":   func(r *Result) { r.Verdict, r.Unsent = Retry, true },
		"body lost": func(r *Result) {
			r.Verdict, r.Unsent, r.Reason = Dead, true, "BodyLost"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.broken(5)
			before := f.circuit(e)
			f.endCooldown(e)
			all := results(Released, f.probe())
			edit(&all[0])
			if _, err := f.Complete(t.Context(), all); err != nil {
				t.Fatal(err)
			}
			if got := f.circuit(e); got != before {
				t.Errorf("got %+v, want %+v", got, before)
			}
			f.probe()
		})
	}
}

func TestAProbeThatIsLostWithItsLeaseMakesWayForTheNext(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.broken(5)
	f.endCooldown(e)
	late := f.probe()
	f.endLeases()
	next := f.probe()
	if next.Token == late.Token {
		t.Fatal("the token was used again")
	}
	if r := f.record(Delivered, late); !r[0].Fenced {
		t.Error("the lost probe's result was recorded")
	}
	if got := f.circuit(e); !got.open || !got.probing {
		t.Errorf("got %+v: a fenced result moved the circuit", got)
	}
	f.complete(Delivered, next)
	if got := f.circuit(e); got.open {
		t.Errorf("got %+v, want it closed", got)
	}
}

func TestOnlyTheProbeMovesAnOpenCircuit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", fragile(1))
	f.post("", 5, e)
	f.wake("", e)
	sent := f.claim(4)
	f.complete(Retry, sent[0])
	before := f.circuit(e)
	f.complete(Retry, sent[1])
	f.complete(Delivered, sent[2])
	f.complete(Dead, sent[3])
	if got := f.circuit(e); got != before {
		t.Errorf("got %+v, want %+v: what was sent before it opened does not count", got, before)
	}
}

func TestAChangedEndpointIsTriedAtOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.broken(5)
	e = f.apply(e, func(p *EndpointSpec) { p.URL += "/v2" })
	old := f.probe() // half open: no cooldown to wait for
	e = f.apply(e, func(p *EndpointSpec) { p.URL += "/v3" })
	if got := f.circuit(e); !got.open || got.probing {
		t.Errorf("got %+v, want it half open without a probe", got)
	}
	probe := f.probe()
	f.complete(Retry, old)
	if got := f.circuit(e); !got.probing {
		t.Errorf("got %+v: the probe of the old version moved the circuit", got)
	}
	f.complete(Delivered, probe)
	if got := f.circuit(e); got.open {
		t.Errorf("got %+v, want it closed", got)
	}
}

func TestAnExtendedProbeKeepsTheNextBack(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.broken(5)
	f.endCooldown(e)
	c := f.probe()
	f.endLeases()
	extended, at, err := f.Extend(t.Context(), []Lease{{DeliveryID: c.DeliveryID, LaneID: c.LaneID, Token: c.Token, Probe: true}}, time.Minute)
	if err != nil || !extended[c.DeliveryID] || at.IsZero() {
		t.Fatalf("extended %v at %v, %v", extended, at, err)
	}
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries beside the extended probe", len(got))
	}
	f.complete(Delivered, c)
	if got := f.circuit(e); got.open {
		t.Errorf("got %+v, want it closed", got)
	}
	f.checkInFlight()
}

package store

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
)

// pass lets time pass for a rate.
func (f *fixture) pass(e Endpoint, d time.Duration) {
	f.t.Helper()
	f.exec(`UPDATE postrider.lane SET token_at = token_at - $2::interval WHERE lane_id = $1`, e.LaneID, d)
}

// The test's own seconds are nothing against a rate of six an hour.
func TestRateAndBurst(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.Rate = &Rate{Requests: 6, Per: time.Hour, Burst: 3} })
	f.post("", 100, e)
	f.wake("", e)
	for i, step := range []struct {
		pass time.Duration
		want int
	}{
		{0, 3}, {0, 0}, {9 * time.Minute, 0}, {time.Minute, 1}, {0, 0}, {25 * time.Minute, 2}, {4 * time.Minute, 0}, {time.Minute, 1}, {100 * time.Hour, 3}, {0, 0},
	} {
		f.pass(e, step.pass)
		if got := f.claim(50); len(got) != step.want {
			t.Errorf("step %d: claimed %d deliveries %v later, want %d", i, len(got), step.pass, step.want)
		}
	}
}

// Rounding must not add up to a token too many.
func TestNoTokenIsCheaperThanTheRateSays(t *testing.T) {
	t.Parallel()
	for _, r := range []Rate{{3, time.Second, 1}, {7, time.Second, 3}, {11, time.Minute, 5}, {1, 7 * time.Hour, 1}, {999, time.Second, 10}, {100000, 7 * time.Second, 1}} {
		t.Run(fmt.Sprintf("%d per %v, burst %d", r.Requests, r.Per, r.Burst), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", func(p *EndpointSpec) { p.Rate, p.MaxConcurrency = &r, 1000 })
			f.post("", 60, e)
			f.wake("", e)
			for range 40 {
				// As if a token were there just now. The burst is so large that the bucket is not found full.
				f.exec(`UPDATE postrider.lane SET token_at = now(), burst = 100000`)
				before := ask[time.Time](f, `SELECT token_at FROM postrider.lane`)
				b, err := f.Claim(t.Context(), ClaimRequest{Budget: 1, Lanes: 1, PerLane: 1, Lease: time.Minute})
				if err != nil || len(b.Claims) != 1 {
					t.Fatalf("claimed %d deliveries, %v", len(b.Claims), err)
				}
				step := ask[time.Time](f, `SELECT token_at FROM postrider.lane`).Sub(before)
				if exact := float64(r.Per.Microseconds()) / float64(r.Requests); float64(step.Microseconds()) < exact-1e-6 || float64(step.Microseconds()) > exact+1 {
					t.Fatalf("a token cost %v, want %v µs, rounded up", step, exact)
				}
			}
		})
	}
}

func TestAChangedRateCapsTheWaitForTheNextToken(t *testing.T) {
	t.Parallel()
	for name, rate := range map[string]*Rate{"faster": {Requests: 1000, Per: time.Second, Burst: 1}, "none": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", func(p *EndpointSpec) { p.Rate = &Rate{Requests: 1, Per: time.Hour, Burst: 1} })
			f.post("", 2, e)
			f.wake("", e)
			if got := f.claim(10); len(got) != 1 {
				t.Fatalf("claimed %d deliveries, want 1", len(got))
			}
			e = f.apply(e, func(p *EndpointSpec) { p.URL += "/v2" })
			if got := f.claim(10); len(got) != 0 {
				t.Fatalf("claimed %d deliveries after a change of something else", len(got))
			}
			f.apply(e, func(p *EndpointSpec) { p.Rate = rate })
			f.until("the next token", func() bool { return len(f.claim(10)) == 1 })
		})
	}
}

// A burst that was half spent under a slow rate is not whole again under a fast one.
func TestAChangedRateGivesNoFreshBurst(t *testing.T) {
	t.Parallel()
	for name, perHour := range map[string]int{"faster": 60, "much faster": 3600, "slower": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", func(p *EndpointSpec) { p.Rate = &Rate{Requests: 6, Per: time.Hour, Burst: 5} })
			f.post("", 20, e)
			f.wake("", e)
			f.exec(`UPDATE postrider.lane SET token_at = '2000-01-01Z'`) // idle for long
			f.claim(3)
			e = f.apply(e, func(p *EndpointSpec) { p.Rate.Requests = perHour })
			if got, least := len(f.claim(20)), 1; got > 2+int(patience.Hours()*float64(perHour)) || got < least {
				t.Errorf("claimed %d deliveries, want the 2 of the burst that were left", got)
			}
			f.pass(e, time.Hour*2/time.Duration(perHour))
			if got := len(f.claim(20)); got < 1 || got > 3 {
				t.Errorf("claimed %d deliveries after the time of two, want about 2", got)
			}
		})
	}
}

func TestAChangedConcurrencyCountsAtTheNextClaim(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 2 })
	f.post("", 10, e)
	f.wake("", e)
	held := f.claim(10)
	e = f.apply(e, func(p *EndpointSpec) { p.MaxConcurrency = 3 })
	if got := f.claim(10); len(got) != 1 || got[0].Version != e.Version {
		t.Errorf("claimed %d deliveries, want one more, of version %d", len(got), e.Version)
	}
	f.apply(e, func(p *EndpointSpec) { p.MaxConcurrency = 1 })
	f.complete(Delivered, held...)
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries over the lowered limit", len(got))
	}
	f.checkInFlight()
}

func TestAClaimKeepsToItsRequest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, c := f.endpoint("a"), f.endpoint("b"), f.endpoint("c")
	f.post("", 20, a, b, c)
	f.wake("", a, b, c)
	batch, err := f.Claim(t.Context(), ClaimRequest{
		Budget: 100, Lanes: 10, PerLane: 5, Lease: time.Minute, Exclude: []int64{a.LaneID}, Caps: map[int64]int{b.LaneID: 2},
	})
	if err != nil {
		t.Fatal(err)
	}
	got := map[int64]int{}
	for _, claim := range batch.Claims {
		got[claim.LaneID]++
	}
	if got[a.LaneID] != 0 || got[b.LaneID] != 2 || got[c.LaneID] != 5 || !batch.More || batch.Lanes != 2 {
		t.Errorf("got %v of %d lanes, more %v; want 2 of b, 5 of c, and more", got, batch.Lanes, batch.More)
	}
	if batch, err = f.Claim(t.Context(), ClaimRequest{Budget: 0, Lanes: 10, PerLane: 5, Lease: time.Minute}); err != nil || len(batch.Claims) != 0 {
		t.Errorf("without a budget: claimed %d, %v", len(batch.Claims), err)
	}
	batch, err = f.Claim(t.Context(), ClaimRequest{Budget: 10, Lanes: 10, Lease: time.Minute, Exclude: []int64{a.LaneID, b.LaneID, c.LaneID}})
	if err != nil || batch.Lanes != 0 || batch.More {
		t.Errorf("with every lane left to others: %+v, %v", batch, err)
	}
}

func TestExtendedLeasesStandAndOthersAreLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 3 })
	f.post("", 4, e)
	f.wake("", e)
	claims := f.claim(10)
	f.endLeases()
	leases := []Lease{
		{DeliveryID: claims[0].DeliveryID, LaneID: e.LaneID, Token: claims[0].Token},
		{DeliveryID: claims[1].DeliveryID, LaneID: e.LaneID, Token: uuid.New()}, // another's
		{DeliveryID: 1 << 40, LaneID: e.LaneID, Token: claims[0].Token},         // ended
	}
	extended, _, err := f.Extend(t.Context(), leases, time.Minute)
	if err != nil || len(extended) != 1 || !extended[claims[0].DeliveryID] {
		t.Fatalf("extended %v, %v; want the first alone", extended, err)
	}
	next := f.claim(10)
	if len(next) != 2 {
		t.Errorf("claimed %d deliveries, want the two whose leases ended", len(next))
	}
	for _, c := range next {
		if c.DeliveryID == claims[0].DeliveryID {
			t.Error("an extended lease was reaped")
		}
	}
	f.checkInFlight()
	f.complete(Delivered, claims[0])
	if extended, _, err = f.Extend(t.Context(), leases, time.Minute); err != nil || len(extended) != 0 {
		t.Errorf("extended %v, %v; want none after the end", extended, err)
	}
	if extended, _, err = f.Extend(t.Context(), nil, time.Minute); err != nil || len(extended) != 0 {
		t.Errorf("extended %v, %v", extended, err)
	}
}

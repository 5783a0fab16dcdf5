package store

import (
	"testing"
	"time"
)

func perHour(requests, burst int) *Rate {
	return &Rate{Requests: requests, Per: time.Hour, Burst: burst}
}

// A rate is changed while deliveries wait, again and again. From each change on there are no more requests than the new
// rate and one burst allow, a bucket that was just emptied is not full again, and the next token comes in its time. The
// rates are so low that the test's own seconds are nothing.
func TestARateChangedUnderLoadIsKeptFromThenOn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.Rate, p.MaxConcurrency = perHour(6, 3), 1_000_000 })
	f.due(1000, e)
	if got := len(f.claim(100)); got != 3 {
		t.Fatalf("claimed %d deliveries, want the burst of 3", got)
	}
	for i, rate := range []*Rate{
		perHour(60, 3),     // faster
		perHour(60, 10),    // a larger burst
		perHour(60, 2),     // a smaller one
		perHour(1, 2),      // slower by far
		perHour(1, 50),     // slow, with a large burst
		perHour(30, 5),     // both
		nil,                // none
		perHour(2, 4),      // anew
		nil, perHour(6, 1), // none and anew
		{Requests: 20, Per: time.Minute, Burst: 20}, // in another unit
		perHour(1, 1),
	} {
		t.Logf("change %d: to %+v", i, rate)
		e = f.apply(e, func(p *EndpointSpec) { p.Rate = rate })
		if rate == nil {
			if got := len(f.claim(20)); got != 20 {
				t.Errorf("change %d: claimed %d deliveries without a rate, want all 20", i, got)
			}
			continue
		}
		token := rate.Per / time.Duration(rate.Requests)
		if got := len(f.claim(100)); got > 1 {
			t.Errorf("change %d: claimed %d deliveries right after a bucket was emptied", i, got)
		}
		// In steps of a third of a token, and then after longer than the bucket needs to be full.
		got := 0
		for step := range 30 {
			f.pass(e, token/3)
			got += len(f.claim(100))
			if most := 2 + (step+1)/3; got > most {
				t.Fatalf("change %d: claimed %d deliveries in %v, want %d at most", i, got, token/3*time.Duration(step+1), most)
			}
		}
		if got < 9 {
			t.Errorf("change %d: claimed %d deliveries in the time of ten", i, got)
		}
		f.pass(e, token*time.Duration(rate.Burst)*3)
		if got := len(f.claim(100)); got != rate.Burst {
			t.Errorf("change %d: claimed %d deliveries after a quiet time, want the burst of %d", i, got, rate.Burst)
		}
		// From a full bucket into the next change: it was emptied just now.
	}
}

// A burst is a size and no gift: a change of it alone gives what a quiet time has earned, and takes what is too much.
func TestAChangedBurstCountsWhatAQuietTimeEarned(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		was, is     int
		quietTokens int // tokens' time since the bucket was emptied
		want        int
	}{
		{"raised with an empty bucket", 3, 30, 0, 0},
		{"raised with a token there", 3, 30, 1, 1},
		{"raised after a quiet time", 3, 5, 40, 5},
		{"lowered with a full bucket", 8, 2, 40, 2},
		{"lowered with less than it there", 8, 5, 3, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", func(p *EndpointSpec) { p.Rate = perHour(6, test.was) })
			f.due(100, e)
			f.claim(test.was)
			f.pass(e, 10*time.Minute*time.Duration(test.quietTokens))
			f.apply(e, func(p *EndpointSpec) { p.Rate.Burst = test.is })
			if got := len(f.claim(50)); got != test.want {
				t.Errorf("claimed %d deliveries, want %d", got, test.want)
			}
			if got := len(f.claim(50)); got != 0 {
				t.Errorf("claimed %d deliveries right afterwards", got)
			}
		})
	}
}

// An endpoint that gets its first rate has just been sent to without one: it begins with an empty bucket.
func TestANewRateBeginsWithAnEmptyBucket(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.due(50, e)
	if got := len(f.claim(10)); got != 10 {
		t.Fatalf("claimed %d deliveries without a rate", got)
	}
	e = f.apply(e, func(p *EndpointSpec) { p.Rate = perHour(6, 5) })
	for i, want := range []int{0, 1, 1} {
		if got := len(f.claim(50)); got != want {
			t.Errorf("claimed %d deliveries after %d tokens' time, want %d", got, i, want)
		}
		f.pass(e, 10*time.Minute)
	}
}

// Lowered below what is in flight, the limit lets these end and nothing new begin until there is room under it; raised, it
// is used at once. No lane is left waiting for more than a result.
func TestMaxConcurrencyLoweredBelowWhatIsInFlight(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(*fixture, Claim){
		"delivered": func(f *fixture, c Claim) { f.complete(Delivered, c) },
		"released":  func(f *fixture, c Claim) { f.complete(Released, c) },
		"lost with its lease": func(f *fixture, c Claim) {
			f.exec(`WITH d AS (UPDATE postrider.delivery SET lease_until = now() - interval '1 s' WHERE id = $1)
				UPDATE postrider.lane SET lease_end = now() - interval '1 s'`, c.DeliveryID)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 6 })
			f.due(40, e)
			flying := f.claim(40)
			if len(flying) != 6 {
				t.Fatalf("claimed %d deliveries, want 6", len(flying))
			}
			limit := 6
			for step, next := range []int{2, 2, 2, 2, 2, 2, 5, 5, 1, 1, 1, 1, 1, 1, 3} {
				if next != limit {
					limit = next
					e = f.apply(e, func(p *EndpointSpec) { p.MaxConcurrency = limit })
				}
				end(f, flying[0])
				flying = flying[1:]
				want := max(0, limit-len(flying))
				got := f.claim(40)
				if len(got) != want {
					t.Fatalf("step %d: claimed %d deliveries with %d in flight and a limit of %d, want %d", step, len(got), len(flying), limit, want)
				}
				flying = append(flying, got...)
				f.checkInFlight()
			}
			for f.waiting() > 0 && len(flying) > 0 {
				f.complete(Delivered, flying...)
				if flying = f.claim(40); len(flying) > limit {
					t.Fatalf("claimed %d deliveries, want %d at most", len(flying), limit)
				}
			}
			if n := f.waiting(); n != 0 {
				t.Errorf("%d deliveries are stuck", n)
			}
		})
	}
}

// All limits at once: the least of them counts, and which one that is changes from claim to claim.
func TestTheLeastLimitCounts(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.Rate, p.MaxConcurrency = perHour(6, 4), 3 })
	f.due(100, e)
	var flying []Claim
	for i, step := range []struct {
		ended, tokens, budget int
		want                  int
		why                   string
	}{
		{0, 0, 50, 3, "maxConcurrency"},
		{2, 0, 50, 1, "the one token that is left"},
		{0, 3, 50, 1, "maxConcurrency"},
		{3, 0, 1, 1, "the claimer's budget"},
		{0, 0, 50, 1, "the last token"},
		{0, 40, 50, 1, "maxConcurrency"},
		{3, 0, 50, 3, "maxConcurrency and tokens"},
		{3, 0, 50, 0, "no token"},
	} {
		f.complete(Delivered, flying[:step.ended]...)
		flying = flying[step.ended:]
		f.pass(e, 10*time.Minute*time.Duration(step.tokens))
		got := f.claim(step.budget)
		if len(got) != step.want {
			t.Errorf("step %d: claimed %d deliveries, want %d: %s", i, len(got), step.want, step.why)
		}
		flying = append(flying, got...)
	}
}

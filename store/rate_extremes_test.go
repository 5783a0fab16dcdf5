package store

import (
	"fmt"
	"testing"
	"time"
)

// bucket is what a lane knows of its rate.
func (f *fixture) bucket(e Endpoint) (tokenAt time.Time, readyAt time.Time) {
	f.t.Helper()
	if err := f.pool.QueryRow(f.t.Context(), `SELECT token_at, ready_at FROM postrider.lane WHERE lane_id = $1`, e.LaneID).Scan(&tokenAt, &readyAt); err != nil {
		f.t.Fatal(err)
	}
	return tokenAt, readyAt
}

// limited makes an endpoint that has a rate and n deliveries due, and holds nothing back but for the rate.
func (f *fixture) limited(r Rate, n int) Endpoint {
	f.t.Helper()
	e := f.endpoint("a", func(p *EndpointSpec) { p.Rate, p.MaxConcurrency = &r, 1_000_000 })
	f.due(n, e)
	return e
}

// After a quiet time there are as many tokens as the burst says, whatever their number does to a fraction.
func TestAFullBucketHoldsItsBurst(t *testing.T) {
	t.Parallel()
	for _, r := range []Rate{
		{1, time.Hour, 1},
		{1, time.Hour, 2},
		{1, time.Hour, 50},
		{13, time.Hour, 13},
		{7, time.Hour, 3},
		{10_000, time.Hour, 7},
		{9, time.Minute, 9},
		{3, time.Second, 2},
		{6, time.Second, 6},
		{7, time.Second, 5},
		{999, time.Second, 999},
		{10_000, time.Second, 1},
		{10_000, time.Second, 10_000},
	} {
		t.Run(fmt.Sprintf("%d per %v, burst %d", r.Requests, r.Per, r.Burst), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.limited(r, r.Burst+50)
			for _, quiet := range []string{"never claimed", "idle for years"} {
				if got := len(f.claim(r.Burst + 50)); got != r.Burst {
					t.Errorf("%s: claimed %d deliveries at once, want the burst of %d", quiet, got, r.Burst)
				}
				f.exec(`UPDATE postrider.lane SET token_at = '2000-01-01Z'`)
				f.due(r.Burst, e)
			}
		})
	}
}

// Two days at one request an hour: each is there when the hour is over and not before, a late claim earns no more than the
// burst, and nothing drifts.
func TestOneRequestAnHour(t *testing.T) {
	t.Parallel()
	for _, burst := range []int{1, 2} {
		t.Run(fmt.Sprint("burst ", burst), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.limited(Rate{1, time.Hour, burst}, 100)
			if got := len(f.claim(10)); got != burst {
				t.Fatalf("claimed %d deliveries, want the burst of %d", got, burst)
			}
			first, _ := f.bucket(e)
			passed := time.Duration(0)
			for hour := range 48 {
				tokenAt, readyAt := f.bucket(e)
				if !readyAt.Equal(tokenAt) {
					t.Fatalf("hour %d: ready at %v, want it when the token is there, %v", hour, readyAt, tokenAt)
				}
				// The test's own seconds are within the last minute.
				f.pass(e, 59*time.Minute)
				if got := len(f.claim(10)); got != 0 {
					t.Fatalf("hour %d: claimed %d deliveries a minute early", hour, got)
				}
				f.exec(`UPDATE postrider.lane SET token_at = now()`)
				now, _ := f.bucket(e)
				passed += tokenAt.Sub(now)
				if got := len(f.claim(10)); got != 1 {
					t.Fatalf("hour %d: claimed %d deliveries when it was over, want 1", hour, got)
				}
			}
			last, _ := f.bucket(e)
			// A bucket of one forfeits what a claim comes late; one of two does not.
			late := map[int]time.Duration{1: patience, 2: 50 * time.Microsecond}[burst]
			if got, want := last.Add(passed).Sub(first), 48*time.Hour; got < want || got > want+late {
				t.Errorf("48 requests took up %v of the rate, want %v", got, want)
			}
			f.pass(e, 10*time.Hour+30*time.Minute)
			if got := len(f.claim(10)); got != burst {
				t.Errorf("claimed %d deliveries ten hours later, want the burst of %d", got, burst)
			}
			if got := len(f.claim(10)); got != 0 {
				t.Errorf("claimed %d deliveries right afterwards, want none", got)
			}
		})
	}
}

// At 10,000 a second a token costs 100 µs: each claim gets exactly what has dripped into the bucket by its own time, and
// the bucket forgets no fraction.
func TestTenThousandRequestsASecond(t *testing.T) {
	t.Parallel()
	const token, burst = 100 * time.Microsecond, 400
	f := newFixture(t)
	e := f.limited(Rate{10_000, time.Second, burst}, 60_000)
	f.claim(burst)
	from, _ := f.bucket(e)
	claimed, forfeited := 0, time.Duration(0)
	for i := range 60 {
		// At times more than is there, at times less, at times after so long that the bucket is full.
		if i%20 == 19 {
			f.pass(e, time.Second)
			forfeited -= time.Second
		}
		want := []int{1000, 7, 1000, 63, 1}[i%5]
		before, _ := f.bucket(e)
		b, err := f.Claim(t.Context(), ClaimRequest{Budget: want, Lanes: 1, PerLane: want, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if b.Lanes == 0 { // the next token is not there yet
			if !b.At.Before(before) {
				t.Fatalf("claim %d: nothing at %v, though a token was there at %v", i, b.At, before)
			}
			continue
		}
		bucket := b.At.Sub(before)
		if full := (burst - 1) * token; bucket > full {
			forfeited += bucket - full
			bucket = full
		}
		// To the microsecond of a token's due time, a product of floating-point numbers may fall short of it.
		short := bucket%token == 0 && len(b.Claims) == min(want, int(bucket/token))
		if got, want := len(b.Claims), min(want, 1+int(bucket/token)); got != want && !short {
			t.Fatalf("claim %d: got %d deliveries %v after the token, want %d", i, got, b.At.Sub(before), want)
		}
		claimed += len(b.Claims)
	}
	to, _ := f.bucket(e)
	spent, want := to.Sub(from)-forfeited, time.Duration(claimed)*token
	if drift := spent - want; drift < -500*time.Microsecond || drift > 500*time.Microsecond {
		t.Errorf("%d requests took up %v of the rate, want %v", claimed, spent, want)
	}
	if claimed < 500 {
		t.Errorf("claimed %d deliveries in all: too few to tell", claimed)
	}
}

// A claim has used its token whatever became of it: a request that was broken off at a dispatcher's stop, or whose lease
// ended, may have arrived, and the next one would then be above the rate.
func TestAClaimThatIsGivenBackHasUsedItsToken(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(f *fixture, claims []Claim){
		"released":               func(f *fixture, claims []Claim) { f.complete(Released, claims...) },
		"to be retried":          func(f *fixture, claims []Claim) { f.complete(Retry, claims...) },
		"lost with their leases": func(f *fixture, _ []Claim) { f.endLeases() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.limited(Rate{1, time.Hour, 3}, 20)
			claims := f.claim(20)
			if len(claims) != 3 {
				t.Fatalf("claimed %d deliveries, want the burst", len(claims))
			}
			end(f, claims)
			if got := len(f.claim(20)); got != 0 {
				t.Errorf("claimed %d deliveries with no token there", got)
			}
			f.pass(e, time.Hour)
			if got := len(f.claim(20)); got != 1 {
				t.Errorf("claimed %d deliveries an hour later, want 1", got)
			}
		})
	}
}

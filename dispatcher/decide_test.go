package dispatcher

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

var twelveAttempts = retryPolicy{maxAttempts: 12, maxDuration: 24 * time.Hour, base: 10 * time.Second, factor: 2, cap: 6 * time.Hour}

func TestDecideByStatus(t *testing.T) {
	t.Parallel()
	retry := func(r Reason) decision { return decision{verdict: store.Retry, reason: r, failing: true} }
	for _, test := range []struct {
		statuses []int
		want     decision
	}{
		{[]int{200, 201, 202, 204, 226, 299}, decision{verdict: store.Delivered}},
		{[]int{300, 301, 302, 303, 304, 307, 308, 399}, retry(Redirect)},
		{[]int{408}, retry(RequestTimeout)},
		{[]int{425}, retry(TooEarly)},
		{[]int{429}, retry(TooManyRequests)},
		{[]int{500, 501, 502, 503, 504, 599}, retry(ServerError)},
		{[]int{100, 101, 199, 600, 999}, retry(InvalidResponse)},
		{[]int{410}, decision{verdict: store.Dead, reason: Gone, deadReason: Gone, gone: true}},
		{[]int{400, 401, 402, 403, 404, 405, 406, 407, 409, 411, 413, 422, 451, 499}, decision{verdict: store.Dead, reason: Rejected, deadReason: Rejected}},
	} {
		for _, status := range test.statuses {
			if got := decide(1, 0, outcome{status: status}, twelveAttempts, 0); got != test.want {
				t.Errorf("decide after status %d: got %+v, want %+v", status, got, test.want)
			}
		}
	}
}

func TestDecideRetriesEveryFailureOfTheTransport(t *testing.T) {
	t.Parallel()
	for _, reason := range []Reason{
		Timeout, DNSNotFound, DNSFailure, DestinationNotAllowed, ConnectionRefused, HostUnreachable, ConnectionReset,
		ConnectionClosed, ConnectionFailed, GoAway, TLSFailure, TruncatedResponse, InvalidResponse, LeaseEnding,
	} {
		want := decision{verdict: store.Retry, reason: reason, delay: 5 * time.Second, failing: true}
		if got := decide(1, 0, outcome{failed: reason}, twelveAttempts, 0.5); got != want {
			t.Errorf("decide after %s: got %+v, want %+v", reason, got, want)
		}
	}
	// The status of an answer that was cut is no success.
	if got := decide(1, 0, outcome{status: 200, failed: TruncatedResponse}, twelveAttempts, 0); got.verdict != store.Retry {
		t.Errorf("decide after a cut 200: got %+v, want a retry", got)
	}
}

// D4, D5: exactly as many attempts as asked for, without a hidden cap, and the last one's own reason beside the death's.
func TestDecideCountsAttempts(t *testing.T) {
	t.Parallel()
	for _, most := range []int{1, 3, 12, 40, 100} {
		policy := twelveAttempts
		policy.maxAttempts, policy.cap = most, time.Second
		for attempt := 1; attempt <= most; attempt++ {
			got := decide(attempt, time.Hour, outcome{status: 500}, policy, 0.5)
			want := decision{verdict: store.Retry, reason: ServerError, delay: got.delay, failing: true}
			if attempt == most {
				want = decision{verdict: store.Dead, reason: ServerError, deadReason: AttemptsExhausted, failing: true}
			}
			if got != want {
				t.Errorf("attempt %d of %d after 500: got %+v, want %+v", attempt, most, got, want)
			}
		}
	}
	if got := decide(1, 0, outcome{status: 403}, twelveAttempts, 0.5); got.verdict != store.Dead || got.deadReason != Rejected {
		t.Errorf("attempt 1 of 12 after 403: got %+v, want dead, Rejected", got)
	}
}

func TestDecideByAge(t *testing.T) {
	t.Parallel()
	schedule := retryPolicy{maxAttempts: 100, maxDuration: time.Hour, schedule: []time.Duration{10 * time.Minute}}
	for _, test := range []struct {
		name   string
		age    time.Duration
		policy retryPolicy
		out    outcome
		want   Reason // of death; "": retried
	}{
		{"room for another attempt", 49 * time.Minute, schedule, outcome{status: 500}, ""},
		{"the next attempt is just in time", 50 * time.Minute, schedule, outcome{status: 500}, ""},
		{"the next attempt would be too late", 50*time.Minute + 1, schedule, outcome{status: 500}, Expired},
		{"too old already", 2 * time.Hour, schedule, outcome{status: 500}, Expired},
		{"what the receiver asked for is too late", 10 * time.Minute, schedule, outcome{status: 503, asked: true, retryAfter: 51 * time.Minute}, Expired},
		{"too old, and asked to come at once", time.Hour, schedule, outcome{status: 503, asked: true}, Expired},
		{"0s is one attempt", 0, retryPolicy{maxAttempts: 12, base: time.Second, factor: 2, cap: time.Hour}, outcome{status: 500}, Expired},
		{"0s is one attempt, whatever is asked for", 0, retryPolicy{maxAttempts: 12}, outcome{status: 429, asked: true}, Expired},
		{"delivered late is delivered", 2 * time.Hour, schedule, outcome{status: 200}, ""},
		{"a clock that ran back", -time.Hour, schedule, outcome{status: 500}, ""},
	} {
		got := decide(1, test.age, test.out, test.policy, 0.5)
		if got.deadReason != test.want {
			t.Errorf("%s: got %+v, want death by %q", test.name, got, test.want)
		}
	}
}

func TestDecideByRetryAfter(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		status int
		asked  bool
		after  time.Duration
		want   time.Duration
	}{
		{429, true, 30 * time.Second, 30 * time.Second},
		{503, true, 30 * time.Second, 30 * time.Second},
		{503, true, 0, 0},                        // below the backoff
		{503, true, time.Millisecond, 1_000_000}, // below the backoff
		{429, true, 100 * time.Hour, 6 * time.Hour},
		{429, true, -time.Hour, 0},
		{503, false, 0, 5 * time.Second},
		{500, true, 30 * time.Second, 5 * time.Second}, // only 429 and 503 may ask
		{301, true, 30 * time.Second, 5 * time.Second},
	} {
		out := outcome{status: test.status, asked: test.asked, retryAfter: test.after}
		if got := decide(1, 0, out, twelveAttempts, 0.5); got.verdict != store.Retry || got.delay != test.want {
			t.Errorf("%d with Retry-After %v (asked %v): got %+v, want a retry in %v", test.status, test.after, test.asked, got, test.want)
		}
	}
}

func TestDecideBuriesNothingThatCouldNotBeSent(t *testing.T) {
	t.Parallel()
	out := outcome{failed: SigningKeyUnavailable, unsent: true}
	for _, random := range []float64{0, 0.5, 0.999} {
		got := decide(12, 48*time.Hour, out, twelveAttempts, random)
		if got.verdict != store.Retry || got.failing || got.delay < unsentPause/2 || got.delay > unsentPause {
			t.Errorf("decide(%+v): got %+v, want a retry within %v to %v that counts against nobody", out, got, unsentPause/2, unsentPause)
		}
	}
	want := decision{verdict: store.Dead, reason: BodyLost, deadReason: BodyLost}
	if got := decide(1, 0, outcome{lost: true}, twelveAttempts, 0); got != want {
		t.Errorf("decide without a body: got %+v, want %+v", got, want)
	}
}

// Full jitter: uniform in [0, min(cap, base · factorⁿ)].
func TestBackoffIsFullJitterWithinItsBound(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		policy retryPolicy
		bounds []time.Duration
	}{
		{
			retryPolicy{base: 10 * time.Second, factor: 2, cap: 6 * time.Hour},
			[]time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second},
		},
		{retryPolicy{base: time.Second, factor: 10, cap: 150 * time.Second}, []time.Duration{time.Second, 10 * time.Second, 100 * time.Second, 150 * time.Second, 150 * time.Second}},
		{retryPolicy{base: time.Second, factor: 1, cap: time.Hour}, []time.Duration{time.Second, time.Second, time.Second}},
		{retryPolicy{base: time.Hour, factor: 2, cap: time.Minute}, []time.Duration{time.Minute, time.Minute}},
		{retryPolicy{base: time.Minute, factor: 2, cap: time.Minute}, []time.Duration{time.Minute, time.Minute}},
	} {
		for i, bound := range test.bounds {
			retry := i + 1
			if got := test.policy.bound(retry); got != bound {
				t.Errorf("bound(%d) of %+v: got %v, want %v", retry, test.policy, got, bound)
			}
			if got := test.policy.delay(retry, 0); got != 0 {
				t.Errorf("delay(%d, 0) of %+v: got %v, want 0", retry, test.policy, got)
			}
			if got := test.policy.delay(retry, 0.25); got != bound/4 {
				t.Errorf("delay(%d, 0.25) of %+v: got %v, want %v", retry, test.policy, got, bound/4)
			}
		}
	}
}

// Whatever the policy and the attempt, no delay is negative, above the cap or above the bound of its schedule.
func TestDelaysNeverLeaveTheirRange(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	source := rand.New(rand.NewPCG(seed, 0))
	length := func() time.Duration { return time.Duration(source.Int64N(int64(168 * time.Hour))) }
	for range 200_000 {
		p := retryPolicy{base: length(), factor: source.IntN(11), cap: length()}
		retry, random := 1+source.IntN(100), source.Float64()
		if got := p.delay(retry, random); got < 0 || got > p.cap {
			t.Fatalf("seed %d: delay(%d, %v) of %+v: got %v, want 0 to %v", seed, retry, random, p, got, p.cap)
		}
		p.schedule = make([]time.Duration, 1+source.IntN(5))
		for i := range p.schedule {
			p.schedule[i] = length()
		}
		planned := p.schedule[min(retry, len(p.schedule))-1]
		got, tolerance := p.delay(retry, random), planned/5+1
		if got < planned-tolerance || got > planned+tolerance {
			t.Fatalf("seed %d: delay(%d, %v) of %+v: got %v, want %v ± 20 %%", seed, retry, random, p, got, planned)
		}
	}
}

func TestScheduleRepeatsItsLastDelay(t *testing.T) {
	t.Parallel()
	p := retryPolicy{schedule: []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}}
	for i, want := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 30 * time.Second, 30 * time.Second} {
		if got := p.delay(i+1, 0.5); got != want {
			t.Errorf("delay(%d) in the middle of the jitter: got %v, want %v", i+1, got, want)
		}
	}
	if low, high := p.delay(2, 0), p.delay(2, 1); low != 4*time.Second || high != 6*time.Second {
		t.Errorf("delay(2): got %v to %v, want 4s to 6s", low, high)
	}
}

func TestParseRetryAfter(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		value string
		want  time.Duration
		ok    bool
	}{
		{"30", 30 * time.Second, true},
		{" 30\t", 30 * time.Second, true},
		{"0", 0, true},
		{"000120", 2 * time.Minute, true},
		{"21599", 6*time.Hour - time.Second, true},
		{"21600", 6 * time.Hour, true},
		{"21601", 6 * time.Hour, true},
		{"99999999999999999999999999", 6 * time.Hour, true},
		{"Sat, 14 Mar 2026 12:00:30 GMT", 30 * time.Second, true},
		{"Saturday, 14-Mar-26 12:00:30 GMT", 30 * time.Second, true},
		{"Sat Mar 14 12:00:30 2026", 30 * time.Second, true},
		{"Sat, 14 Mar 2026 12:00:00 GMT", 0, true},
		{"Sun, 15 Mar 2026 12:00:00 GMT", 6 * time.Hour, true},
		{"Fri, 31 Dec 9999 23:59:59 GMT", 6 * time.Hour, true},
		{"Sat, 14 Mar 2026 11:59:59 GMT", 0, false}, // past
		{"Thu, 01 Jan 1970 00:00:00 GMT", 0, false},
		{"", 0, false},
		{" ", 0, false},
		{"-1", 0, false},
		{"+30", 0, false},
		{"1.5", 0, false},
		{"30s", 0, false},
		{"soon", 0, false},
		{"0x10", 0, false},
		{"٣٠", 0, false},
	} {
		got, ok := parseRetryAfter(test.value, at)
		if got != test.want || ok != test.ok {
			t.Errorf("parseRetryAfter(%q): got %v, %v, want %v, %v", test.value, got, ok, test.want, test.ok)
		}
	}
}

func FuzzParseRetryAfter(f *testing.F) {
	for _, seed := range []string{
		"", "0", "30", "21600", "18446744073709551616", "-1", "Sat, 14 Mar 2026 12:00:30 GMT", "Saturday, 14-Mar-26 12:00:30 GMT",
		"Sat Mar 14 12:00:30 2026", "Fri, 31 Dec 9999 23:59:59 GMT", "\x00", "30\r\nX: y",
	} {
		f.Add(seed, int64(1_773_489_600))
	}
	f.Add("Sat, 14 Mar 2026 12:00:30 GMT", int64(-1<<62))
	f.Fuzz(func(t *testing.T, value string, unix int64) {
		got, ok := parseRetryAfter(value, time.Unix(unix, 0))
		if got < 0 || got > maxRetryAfter || !ok && got != 0 {
			t.Errorf("parseRetryAfter(%q, %d): got %v, %v, want 0 to %v", value, unix, got, ok, maxRetryAfter)
		}
	})
}

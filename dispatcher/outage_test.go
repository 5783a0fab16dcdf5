package dispatcher

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/store"
)

// intervals between the ends of attempts, as recorded.
func intervals(attempts []memoryAttempt) []time.Duration {
	var between []time.Duration
	for i := 1; i < len(attempts); i++ {
		between = append(between, attempts[i].at.Sub(attempts[i-1].at))
	}
	return between
}

// A receiver that fails with 503 for six hours, then 200.
func TestSixHourOutageIsOutlastedOnSchedule(t *testing.T) {
	t.Parallel()
	const outage = 6 * time.Hour
	for _, test := range []struct {
		name   string
		change func(*store.EndpointSpec)
	}{
		{"backoff", func(s *store.EndpointSpec) { s.MaxAttempts, s.BackoffCap = 100, time.Hour }},
		{"schedule", func(s *store.EndpointSpec) {
			s.MaxAttempts = 100
			s.Schedule = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second, 5 * time.Minute, 30 * time.Minute}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				endpoint := testEndpoint(t, 1)
				test.change(&endpoint.Spec)
				m.add(m.apply(endpoint))
				recovers := time.Now().Add(outage)
				d := startWithoutChores(t, Config{Senders: 4, PollMax: time.Minute}, testDependencies(t, m), outside{transport: receiver(func(*http.Request) (*http.Response, error) {
					if time.Now().Before(recovers) {
						return answers(503)
					}
					return answers(200)
				})})
				for m.pending() > 0 && time.Since(recovers) < 2*time.Hour {
					time.Sleep(time.Minute)
				}
				d.end()
				checkOutage(t, m.recorded(), newEndpoints(Config{}.WithDefaults(), testDependencies(t, m)).prepare(&endpoint).retry)
			})
			// A fraction of a second; the allowance is for a machine that is busy with other tests and the race detector.
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("six simulated hours took %v, want under a second or so", took)
			}
		})
	}
}

func checkOutage(t *testing.T, attempts []memoryAttempt, policy retryPolicy) {
	t.Helper()
	if len(attempts) < 5 {
		t.Fatalf("got %d attempts, want several", len(attempts))
	}
	last := attempts[len(attempts)-1]
	if last.result.Verdict != store.Delivered {
		t.Fatalf("last of %d attempts: got %s %s, want delivered", len(attempts), last.result.Verdict, last.result.Reason)
	}
	between := intervals(attempts)
	for i, got := range between {
		asked, number := attempts[i].result.Delay, attempts[i].result.Claim.Attempt
		if number != i+1 {
			t.Errorf("attempt number: got %d, want %d", number, i+1)
		}
		if late := got - asked; late < 0 || late > time.Second {
			t.Errorf("interval %d: got %v, want %v and a second at most", number, got, asked)
		}
		low, high := policy.delay(number, 0), policy.delay(number, 1)
		if asked < low || asked > high {
			t.Errorf("delay %d: got %v, want %v to %v", number, asked, low, high)
		}
		if i > 0 && got == between[i-1] {
			t.Errorf("intervals %d and %d: both %v, want different ones", number-1, number, got)
		}
	}
}

// Receiver down past the budget: every delivery is dead with a readable reason, none stuck.
func TestReceiverDownPastTheBudgetLeavesNothingPending(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		change func(*store.EndpointSpec)
		reason Reason
		least  int // attempts of each
		most   int
		within time.Duration
	}{
		{"attempts run out", func(s *store.EndpointSpec) { s.MaxAttempts = 3 }, AttemptsExhausted, 3, 3, time.Minute},
		{"forty attempts are forty", func(s *store.EndpointSpec) { s.MaxAttempts, s.BackoffCap = 40, time.Minute }, AttemptsExhausted, 40, 40, time.Hour},
		{"a day is over", func(s *store.EndpointSpec) { s.MaxAttempts, s.BackoffCap = 100, time.Hour }, Expired, 10, 99, 24 * time.Hour},
		{"0s is one attempt", func(s *store.EndpointSpec) { s.MaxDuration = 0 }, Expired, 1, 1, time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				endpoint := testEndpoint(t, 1)
				test.change(&endpoint.Spec)
				endpoint = m.apply(endpoint)
				const deliveries = 5
				for range deliveries {
					m.add(endpoint)
				}
				accepted := m.now()
				d := startWithoutChores(t, Config{Senders: 4, PollMax: time.Minute}, testDependencies(t, m), outside{transport: receiver(func(*http.Request) (*http.Response, error) {
					return answers(500)
				})})
				for m.pending() > 0 && time.Since(accepted) < 30*time.Hour {
					time.Sleep(time.Minute)
				}
				d.end()
				dead := m.buried()
				if len(dead) != deliveries {
					t.Fatalf("dead letters: got %d, want %d; %d are pending", len(dead), deliveries, m.pending())
				}
				for _, r := range dead {
					if r.DeadReason != string(test.reason) || r.Reason != string(ServerError) || !r.Failing {
						t.Errorf("dead: got %q after %q (failing %v), want %q after %q", r.DeadReason, r.Reason, r.Failing, test.reason, ServerError)
					}
					if n := r.Claim.Attempt; n < test.least || n > test.most {
						t.Errorf("attempts: got %d, want %d to %d", n, test.least, test.most)
					}
				}
				for _, a := range m.recorded() {
					if age := a.at.Sub(accepted); age > test.within {
						t.Errorf("attempt %d: at the age of %v, want none after %v", a.result.Claim.Attempt, age, test.within)
					}
				}
			})
		})
	}
}

// Restart in the middle of a backoff: the retry still happens, when it is due.
func TestRestartMidBackoffKeepsTheRetry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		endpoint := testEndpoint(t, 1)
		endpoint.Spec.Schedule = []time.Duration{time.Hour}
		m.add(m.apply(endpoint))
		world := outside{transport: failsOnce()}
		first := startWithoutChores(t, Config{Senders: 1}, testDependencies(t, m), world)
		time.Sleep(10 * time.Minute)
		first.end()
		time.Sleep(10 * time.Minute)
		second := startWithoutChores(t, Config{Senders: 1}, testDependencies(t, m), world)
		time.Sleep(time.Hour)
		second.end()
		attempts := m.recorded()
		if len(attempts) != 2 || attempts[1].result.Verdict != store.Delivered {
			t.Fatalf("attempts: got %+v, want a failed and a delivered one", attempts)
		}
		if got, want := intervals(attempts)[0], attempts[0].result.Delay; got < want || got > want+time.Second {
			t.Errorf("interval: got %v, want %v and a second at most", got, want)
		}
	})
}

// 429 with Retry-After: 30 gives about 30 s, whatever the backoff says.
func TestRetryAfterOutranksTheBackoff(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		status int
		value  func(database time.Time) string
		want   time.Duration
	}{
		{"seconds", 429, func(time.Time) string { return "30" }, 30 * time.Second},
		{"a date", 503, func(at time.Time) string { return at.Add(30 * time.Second).Format(http.TimeFormat) }, 30 * time.Second},
		{"at once", 503, func(time.Time) string { return "0" }, 0},
		{"a week", 429, func(time.Time) string { return "604800" }, 6 * time.Hour},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := newMemory()
				m.offset = 3 * time.Hour // the receiver's clock is the database's and not ours
				endpoint := testEndpoint(t, 1)
				endpoint.Spec.Schedule = []time.Duration{10 * time.Hour}
				m.add(m.apply(endpoint))
				calls := 0
				d := startWithoutChores(t, Config{Senders: 1, PollMax: time.Minute}, testDependencies(t, m), outside{transport: receiver(func(*http.Request) (*http.Response, error) {
					if calls++; calls == 1 {
						return answers(test.status, "Retry-After", test.value(m.now().UTC()))
					}
					return answers(200)
				})})
				for m.pending() > 0 {
					time.Sleep(time.Minute)
				}
				d.end()
				got := intervals(m.recorded())
				if len(got) != 1 || got[0] < test.want-time.Second || got[0] > test.want+time.Second {
					t.Errorf("intervals: got %v, want about %v", got, test.want)
				}
			})
		})
	}
}

package dispatcher

import (
	"net/http"
	"time"

	"github.com/postrider/postrider/store"
)

// unsentPause bounds the wait of a delivery that could not be sent for a reason of ours: it is soon enough after the
// remedy, and no load before it.
const unsentPause = time.Minute

// retryPolicy says how long and how often a delivery is attempted.
type retryPolicy struct {
	maxAttempts int             // the first one counted
	maxDuration time.Duration   // how old a delivery may be at an attempt; 0: one attempt
	base        time.Duration   // backoff: bound of the first delay
	factor      int             // by which the bound grows with each retry
	cap         time.Duration   // which the bound never exceeds
	schedule    []time.Duration // instead of backoff: the delay before each retry, the last one repeating
}

// outcome is what came of an attempt: either the receiver answered, or failed says why it did not.
type outcome struct {
	status     int // of the whole answer; 0: there was none
	failed     Reason
	unsent     bool          // nothing was sent, for a reason of ours
	lost       bool          // the event is gone: nothing can be sent
	retryAfter time.Duration // what the receiver asked for, if asked
	asked      bool
}

// decision is what an outcome means.
type decision struct {
	verdict    store.Verdict
	delay      time.Duration // Retry: until the next attempt
	reason     Reason        // of the attempt; "" when delivered
	deadReason Reason        // Dead: of the dead letter
	failing    bool          // counts against the endpoint's circuit
	gone       bool          // the receiver wants nothing more
}

// decide says what becomes of a delivery after its attempt-th attempt (1 is the first) at an age. random is uniform in
// [0, 1). It is a pure function.
//
// A delivery whose next attempt would come after maxDuration dies at once: it could only wait to die, and every attempt
// that is made stays true to the schedule and to what the receiver asked for.
func decide(attempt int, age time.Duration, o outcome, p retryPolicy, random float64) decision {
	switch {
	case o.lost:
		return decision{verdict: store.Dead, reason: BodyLost, deadReason: BodyLost}
	case o.unsent:
		// The operator's mistake buries nothing.
		return decision{verdict: store.Retry, reason: o.failed, delay: unsentPause/2 + scale(unsentPause/2, random)}
	case o.failed == "" && o.status >= 200 && o.status <= 299:
		return decision{verdict: store.Delivered}
	}
	reason := o.failed
	if reason == "" {
		reason = reasonOf(o.status)
	}
	switch reason {
	case Rejected:
		return decision{verdict: store.Dead, reason: reason, deadReason: Rejected}
	case Gone:
		return decision{verdict: store.Dead, reason: reason, deadReason: Gone, gone: true}
	}
	if attempt >= p.maxAttempts {
		return decision{verdict: store.Dead, reason: reason, deadReason: AttemptsExhausted, failing: true}
	}
	delay := p.delay(attempt, random)
	if o.asked && (o.status == http.StatusTooManyRequests || o.status == http.StatusServiceUnavailable) {
		delay = min(max(o.retryAfter, 0), maxRetryAfter)
	}
	// The age alone first: a delay of nothing is no way around a budget that has run out.
	if age >= p.maxDuration || delay > p.maxDuration-age {
		return decision{verdict: store.Dead, reason: reason, deadReason: Expired, failing: true}
	}
	return decision{verdict: store.Retry, reason: reason, delay: delay, failing: true}
}

// reasonOf names a status that is no success. Rejected and Gone end a delivery, all others are tried again.
func reasonOf(status int) Reason {
	switch {
	case status == http.StatusRequestTimeout:
		return RequestTimeout
	case status == http.StatusTooEarly:
		return TooEarly
	case status == http.StatusTooManyRequests:
		return TooManyRequests
	case status == http.StatusGone:
		return Gone
	case status >= 300 && status <= 399:
		return Redirect
	case status >= 400 && status <= 499:
		return Rejected
	case status >= 500 && status <= 599:
		return ServerError
	}
	return InvalidResponse
}

// delay is the time before the retry-th retry: as scheduled, a fifth more or less, or by backoff with full jitter
// (https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/).
func (p retryPolicy) delay(retry int, random float64) time.Duration {
	if n := len(p.schedule); n > 0 {
		planned := p.schedule[min(retry, n)-1]
		return planned - planned/5 + scale(2*(planned/5), random)
	}
	return scale(p.bound(retry), random)
}

// bound is min(cap, base · factorʳᵉᵗʳʸ⁻¹), without overflow on the way.
func (p retryPolicy) bound(retry int) time.Duration {
	if p.factor <= 1 {
		return min(p.base, p.cap)
	}
	bound, most, factor := p.base.Nanoseconds(), p.cap.Nanoseconds(), int64(p.factor)
	for range retry - 1 {
		if bound > most/factor {
			return p.cap
		}
		bound *= factor
	}
	return time.Duration(min(bound, most))
}

// scale is d · random. Durations up to 104 days are exact in a float64.
func scale(d time.Duration, random float64) time.Duration { return time.Duration(float64(d) * random) }

package check

import (
	"fmt"
	"net/http"
	"slices"
	"time"
)

const clock = "15:04:05.000"

// traffic is what an endpoint saw.
type traffic struct {
	figures Figures
	open    []*call
	recent  []time.Time // requests of the last second
	circuit circuit
}

// enter counts a request, and holds it against what the endpoint's limits allow.
func (c *checker) enter(f Fact, this *call) {
	t := c.traffic[f.Endpoint]
	if t == nil {
		t = &traffic{}
		c.traffic[f.Endpoint] = t
	}
	t.figures.Requests++
	t.open = append(t.open, this)
	t.recent = append(t.recent, f.At)
	old := 0
	for f.At.Sub(t.recent[old]) >= time.Second {
		old++
	}
	t.recent = t.recent[old:]
	t.figures.Concurrency = max(t.figures.Concurrency, c.openAt(t, f.At))
	t.figures.PerSecond = max(t.figures.PerSecond, len(t.recent))
	c.withinLimits(t, f)
	c.circuitAllows(t, f)
}

func (c *checker) leave(f Fact, this *call) {
	t := c.traffic[f.Endpoint]
	if t == nil {
		return
	}
	if i := slices.Index(t.open, this); i >= 0 {
		t.open = slices.Delete(t.open, i, i+1)
	}
	c.circuitHears(t, f, this)
}

// openAt counts the requests that are open. That a sender has gone away is noticed a little later than it went.
func (c *checker) openAt(t *traffic, at time.Time) int {
	n := 0
	for _, call := range t.open {
		gone := call.answer != nil && call.answer.Problem == goneAway && !call.answer.At.Add(-c.options.Lag).After(at)
		if !gone {
			n++
		}
	}
	return n
}

// disrupted tells that something was killed, stopped or cut off at some moment of a time.
func (c *checker) disrupted(from, until time.Time) bool {
	return slices.ContainsFunc(c.disruptions, func(d Fact) bool { return !d.At.After(until) && !d.Until.Before(from) })
}

// lag is how much later than it was allowed a request may have come, or another one within the second before it.
func (c *checker) lag(at time.Time) time.Duration {
	lag := c.options.Lag
	for _, d := range c.disruptions {
		if d.Held && !d.At.After(at) && !d.Until.Before(at.Add(-time.Second-c.options.Lag)) {
			lag = max(lag, d.Until.Sub(d.At)+c.options.Lag)
		}
	}
	return lag
}

// inForce returns what an endpoint may have been like at some moment of a time. A change holds from when it was asked for
// at the earliest, until the next one was seen in the status at the latest.
func (c *checker) inForce(endpoint string, from, until time.Time) []Fact {
	changes := c.changes[endpoint]
	var may []Fact
	for i, change := range changes {
		replaced := i+1 < len(changes) && !changes[i+1].Until.IsZero() && changes[i+1].Until.Before(from)
		if !change.At.After(until) && !replaced {
			may = append(may, change)
		}
	}
	return may
}

// withinLimits judges a request by what its endpoint was like when it was claimed.
func (c *checker) withinLimits(t *traffic, f Fact) {
	lag := c.lag(f.At)
	// Those that are open now may have been claimed a whole timeout ago.
	longest := c.options.Timeout + lag
	most, limited := 0, true
	for _, l := range c.inForce(f.Endpoint, f.At.Add(-longest), f.At) {
		most, limited = max(most, l.Concurrency), limited && l.Concurrency > 0
	}
	if open := c.openAt(t, f.At); limited && most > 0 && open > most {
		c.violate(Crowded, "%s has %d requests at once at %s, over its %d", f.Endpoint, open, f.At.Format(clock), most)
	}

	allowed, limited := 0.0, true
	for _, l := range c.inForce(f.Endpoint, f.At.Add(-time.Second-lag), f.At) {
		allowed, limited = max(allowed, float64(l.Burst)+l.Rate*(1+lag.Seconds())), limited && l.Rate > 0
	}
	if limited && allowed > 0 && float64(len(t.recent)) > allowed {
		c.violate(Hurried, "%s has %d requests in the second until %s, over the %.0f allowed", f.Endpoint, len(t.recent), f.At.Format(clock), allowed)
	}

	now := c.inForce(f.Endpoint, f.At.Add(-lag), f.At)
	if len(now) == 0 {
		return
	}
	if !slices.ContainsFunc(now, func(l Fact) bool { return !l.Paused }) {
		c.violate(Unpaused, "event %s was sent to %s at %s, which was paused", f.Event, f.Endpoint, f.At.Format(clock))
	}
	if !slices.ContainsFunc(now, func(l Fact) bool { return l.Revision == f.Revision }) {
		c.violate(Stale, "event %s was sent to %s at %s by revision %d of its URL, when it was %s", f.Event, f.Endpoint, f.At.Format(clock), f.Revision, revisions(now))
	}
}

func revisions(of []Fact) string {
	var numbers []int
	for _, l := range of {
		numbers = append(numbers, l.Revision)
	}
	return fmt.Sprint(numbers)
}

// circuit follows an endpoint's failures. It is sure of itself: where a failure or a success may have been recorded in
// another order than they happened, the circuit counts as closed.
type circuit struct {
	failures int
	success  time.Time // the last one
	opened   time.Time // zero: closed, as far as is known
	last     time.Time // request since it opened
}

func (c *checker) circuitHears(t *traffic, f Fact, this *call) {
	breaker, ok := c.options.Circuits[f.Endpoint]
	if !ok {
		return
	}
	k := &t.circuit
	if this.delivered() {
		*k = circuit{success: f.At}
		return
	}
	if !f.Unheard && f.Status < 500 && f.Status != http.StatusTooManyRequests && f.Status != http.StatusRequestTimeout && f.Status != http.StatusTooEarly {
		return
	}
	if c.unsettled(f.Endpoint, this.arrived.Add(-c.options.Recording), f.At) {
		k.failures, k.opened = 0, time.Time{}
		return
	}
	if !this.arrived.After(k.success.Add(c.options.Recording)) {
		return // may have been recorded before the success was
	}
	if k.failures++; k.failures == breaker.Threshold {
		k.opened = f.At
	}
}

// unsettled tells that a circuit may have been told of late, or was made half open by a change.
func (c *checker) unsettled(endpoint string, from, until time.Time) bool {
	return c.disrupted(from, until) || slices.ContainsFunc(c.changes[endpoint], func(l Fact) bool {
		return !l.At.After(until) && !l.Until.Before(from)
	})
}

// circuitAllows looks at the time between two requests while the circuit is open: each comes after the one before it was
// recorded as a failure, and a cooldown later.
func (c *checker) circuitAllows(t *traffic, f Fact) {
	k := &t.circuit
	if k.opened.IsZero() || !f.At.After(k.opened.Add(c.options.Recording)) {
		return
	}
	if c.unsettled(f.Endpoint, k.opened, f.At) {
		k.failures, k.opened = 0, time.Time{}
		return
	}
	cooldown := c.options.Circuits[f.Endpoint].Cooldown
	if apart := f.At.Sub(k.last); !k.last.IsZero() && apart < cooldown {
		c.violate(Pestered, "event %s was sent to %s at %s, %s after the request before: its circuit is open since %s and its cooldown %s",
			f.Event, f.Endpoint, f.At.Format(clock), apart.Round(time.Millisecond), k.opened.Format(clock), cooldown)
	}
	k.last = f.At
}

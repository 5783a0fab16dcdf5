package check

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// Options say what a run was like.
type Options struct {
	// Ordered are the endpoints with `ordering: Key`.
	Ordered []string
	// Timeout is the longest timeout of the endpoints. A request that was open for so long, or that its sender gave up,
	// explains why the next one came. Zero: no request was to take that long, so it explains nothing.
	Timeout time.Duration
	// Recording is how long after an answer the sender may take to record it. A disruption later than that does not explain
	// that a delivery was repeated. Zero means two seconds.
	Recording time.Duration
	// Recovery is how long a post may go on failing before it is accepted, counted from the end of the disruptions in which
	// its first try failed. Zero: no bound.
	Recovery time.Duration
	// Circuits are the circuit breakers of endpoints. Their requests are judged while nothing is disrupted or changed.
	Circuits map[string]Circuit
	// Lag is how much later than usual a request may come after it was allowed, on a machine that is busy. Zero: 250 ms. A
	// disruption that held things up adds its length.
	Lag time.Duration
}

// Circuit is a circuit breaker: after Threshold failures in a row one request per Cooldown may come until one succeeds.
type Circuit struct {
	Threshold int
	Cooldown  time.Duration
}

const (
	defaultRecording = 2 * time.Second
	defaultLag       = 250 * time.Millisecond
)

// Check compares what was acknowledged with what arrived. It is a function of the journals alone.
func Check(record Record, o Options) Report {
	o.Recording, o.Lag = cmp.Or(o.Recording, defaultRecording), cmp.Or(o.Lag, defaultLag)
	c := &checker{
		options: o,
		report:  Report{Torn: record.Torn, Answers: map[string]int{}, Repeats: map[Cause]int{}, Violations: map[Violation]int{}, Endpoints: map[string]Figures{}},
		posts:   map[string]*post{}, events: map[string]*post{}, deliveries: map[delivery]*course{},
		calls: map[string]*call{}, sequences: map[sequence]*progress{}, traffic: map[string]*traffic{}, dead: map[delivery]bool{},
		changes: map[string][]Fact{}, gaveUp: map[attempt]bool{},
	}
	// What is needed before its turn: a post counts as accepted when its event arrives, though the producer heard of it later;
	// whether an answer was heard is known when the next request for the same delivery comes.
	for _, f := range record.Facts {
		c.about = f.Event
		c.foresee(f)
	}
	c.expect()
	for _, f := range record.Facts {
		c.about = f.Event
		switch f.Kind {
		case Arrived:
			c.arrived(f)
		case Answered:
			c.answered(f)
		case Failed:
			c.failed(f)
		case Sending, Accepted, Unknown, Refused, Disrupted, Died, Changed, GaveUp:
		}
	}
	c.finish()
	return c.report
}

type checker struct {
	options     Options
	report      Report
	posts       map[string]*post // by name
	order       []*post          // as posted
	events      map[string]*post // accepted ones, by event id
	deliveries  map[delivery]*course
	calls       map[string]*call
	disruptions []Fact
	changes     map[string][]Fact // by endpoint, as they were made
	dead        map[delivery]bool
	gaveUp      map[attempt]bool
	about       string // the event that is looked at
	sequences   map[sequence]*progress
	traffic     map[string]*traffic // by endpoint
	accepting   []time.Duration
	delivering  []time.Duration
}

type post struct {
	sending  Fact
	event    string // id; of an ambiguous post, that with which it arrived
	accepted Fact   // its Kind is empty where no acknowledgement is known
	refused  bool
	failing  time.Time // since when tries fail
	arrived  bool
}

type delivery struct{ event, endpoint string }

type attempt struct {
	delivery
	number int
}

// course is what happened to one delivery at the receiver.
type course struct {
	calls []*call
	done  time.Time // of the first answer 2xx that was heard; zero: none yet
}

type call struct {
	name     string
	attempt  attempt
	arrived  time.Time
	answer   *Fact // nil: none was given
	answered bool  // by now
}

func (c *call) delivered() bool {
	return c.answered && c.answer.Status/100 == 2 && !c.answer.Unheard
}

// foresee collects what has to be known beforehand.
func (c *checker) foresee(f Fact) {
	switch f.Kind {
	case Sending:
		if _, again := c.posts[f.Post]; again {
			c.violate(Foreign, "post %s was posted twice as a new one: the load's own mistake", f.Post)
			return
		}
		p := &post{sending: f}
		c.posts[f.Post] = p
		c.order = append(c.order, p)
	case Accepted:
		p := c.posts[f.Post]
		if p == nil { // its line was torn, or journals are missing
			p = &post{sending: f}
			c.posts[f.Post] = p
			c.order = append(c.order, p)
		}
		p.accepted, p.event = f, f.Event
		if other := c.events[f.Event]; other != nil {
			c.violate(Split, "posts %s and %s were both accepted as event %s", other.sending.Post, f.Post, f.Event)
		}
		c.events[f.Event] = p
	case Refused:
		if p := c.posts[f.Post]; p != nil {
			p.refused = true
		}
		c.report.Refused++
		c.violate(Answer, "post %s was refused with status %d", f.Post, f.Status)
	case Disrupted:
		if f.Until.IsZero() {
			f.Until = f.At
		}
		c.disruptions = append(c.disruptions, f)
	case Changed:
		c.changes[f.Endpoint] = append(c.changes[f.Endpoint], f)
	case GaveUp:
		c.gaveUp[attempt{delivery{f.Event, f.Endpoint}, f.Attempt}] = true
	case Died:
		c.dead[delivery{f.Event, f.Endpoint}] = true
	case Arrived:
		c.calls[f.Call] = &call{name: f.Call, attempt: attempt{delivery{f.Event, f.Endpoint}, f.Attempt}, arrived: f.At}
	case Answered:
		if call := c.calls[f.Call]; call != nil {
			call.answer = &f
		}
	case Unknown:
		if c.options.Recovery > 0 {
			c.violate(Slow, "post %s was given up: %s", f.Post, f.Problem)
		}
	case Failed:
	}
}

// failed looks at a try that was not accepted: 503 with Retry-After, or a broken connection, are all that may happen.
func (c *checker) failed(f Fact) {
	switch {
	case f.Status == 0:
		c.report.Answers["none"]++
	default:
		c.report.Answers[fmt.Sprint(f.Status)]++
	}
	switch {
	case f.Status == http.StatusServiceUnavailable && f.RetryAfter == "":
		c.violate(Answer, "post %s was answered 503 without Retry-After", f.Post)
	case f.Status != 0 && f.Status != http.StatusServiceUnavailable && f.Status != http.StatusTooManyRequests:
		c.violate(Answer, "post %s was answered %d", f.Post, f.Status)
	}
	if p := c.posts[f.Post]; p != nil && p.failing.IsZero() {
		p.failing = f.At
	}
}

func (c *checker) arrived(f Fact) {
	c.report.Arrivals++
	this := c.calls[f.Call]
	c.enter(f, this)
	if f.Problem != "" {
		c.violate(Unverified, "call %s for %s of event %s: %s", f.Call, f.Endpoint, f.Event, f.Problem)
	}
	p := c.posts[f.Post]
	if p == nil {
		c.violate(Foreign, "event %s arrived at %s and was never posted (post %q)", f.Event, f.Endpoint, f.Post)
		return
	}
	if p.refused {
		c.violate(Foreign, "event %s arrived at %s though its post %s was refused", f.Event, f.Endpoint, f.Post)
	}
	if p.event == "" {
		p.event = f.Event // its answer was lost: it is told by its first arrival
	}
	p.arrived = true
	if f.Event != p.event {
		c.violate(Split, "post %s is event %s and arrived at %s as event %s too", f.Post, p.event, f.Endpoint, f.Event)
	}
	if p.sending.Sum != "" && f.Sum != p.sending.Sum {
		c.violate(Altered, "the payload of event %s arrived at %s with other bytes than were posted", f.Event, f.Endpoint)
	}
	if p.accepted.Kind != "" && !slices.Contains(p.accepted.Endpoints, f.Endpoint) {
		c.violate(Foreign, "event %s arrived at %s, which is not among its endpoints %v", f.Event, f.Endpoint, p.accepted.Endpoints)
	}
	key := delivery{f.Event, f.Endpoint}
	d := c.deliveries[key]
	if d == nil {
		d = &course{}
		c.deliveries[key] = d
		c.inOrder(p, f)
	} else {
		c.repeated(d, f)
	}
	d.calls = append(d.calls, this)
}

// repeated finds the reason of a further request for a delivery. That the earlier ones failed is the usual one.
func (c *checker) repeated(d *course, f Fact) {
	worst, why := Cause(""), ""
	for _, earlier := range d.calls {
		if earlier.answered && !earlier.delivered() {
			continue
		}
		cause, reason := c.cause(earlier, f)
		if worst == "" || cause == Unexplained {
			worst, why = cause, fmt.Sprintf("call %s of %s: %s", earlier.name, earlier.arrived.Format(clock), reason)
		}
	}
	if worst == "" {
		c.report.Retries++
		return
	}
	c.report.Repeats[worst]++
	if len(c.report.Repeated) < maxRepeated {
		c.report.Repeated = append(c.report.Repeated, fmt.Sprintf("event %s at %s, attempt %d at %s, repeats %s", f.Event, f.Endpoint, f.Attempt, f.At.Format(clock), why))
	}
	if worst == Unexplained {
		c.violate(Duplicate, "event %s arrived at %s again (attempt %d, call %s, %s after the first) and nothing explains it",
			f.Event, f.Endpoint, f.Attempt, f.Call, f.At.Sub(d.calls[0].arrived))
	}
}

// cause says why a request came although the earlier one had succeeded, or was still open.
func (c *checker) cause(earlier *call, f Fact) (Cause, string) {
	if c.gaveUp[earlier.attempt] {
		return TimedOut, "the sender had no answer in time"
	}
	if !earlier.answered {
		// The sender's clock starts a little before ours.
		long := c.options.Timeout > 0 && f.At.Sub(earlier.arrived) >= c.options.Timeout*9/10
		unheard := earlier.answer != nil && earlier.answer.Unheard
		if long || (unheard && (c.options.Timeout > 0 || earlier.answer.Problem == onPurpose)) {
			return TimedOut, "it was open for too long, or given up"
		}
	}
	end := f.At
	if earlier.answered {
		if c.options.Timeout > 0 && earlier.answer.At.Sub(earlier.arrived) >= c.options.Timeout*9/10 {
			return TimedOut, "its answer came too late by a hair, which only the sender knows"
		}
		if recorded := earlier.answer.At.Add(c.options.Recording); recorded.Before(end) {
			end = recorded
		}
	}
	for _, d := range c.disruptions {
		// A request may wait to be read for as long as its sender waits for the answer, and longer than its sender lives.
		if !d.At.After(end) && !d.Until.Before(earlier.arrived.Add(-c.options.Timeout)) {
			return Disruption, d.Problem
		}
	}
	return Unexplained, "nothing explains it"
}

func (c *checker) answered(f Fact) {
	call := c.calls[f.Call]
	if call == nil {
		return // its arrival's line was torn
	}
	call.answered = true
	c.leave(f, call)
	if !call.delivered() {
		return
	}
	p, d := c.posts[f.Post], c.deliveries[delivery{f.Event, f.Endpoint}]
	if p == nil || d == nil || !d.done.IsZero() {
		return
	}
	d.done = f.At
	c.report.Delivered++
	if p.accepted.Kind != "" {
		c.delivering = append(c.delivering, f.At.Sub(p.accepted.At))
	}
}

// finish looks for what should have been there and is not.
func (c *checker) finish() {
	for _, p := range c.order {
		c.report.Posted++
		if p.accepted.Kind == "" {
			if !p.refused {
				c.report.Ambiguous++
				if p.arrived {
					c.report.AmbiguousArrived++
				}
			}
			continue
		}
		c.report.Accepted++
		if len(p.accepted.Endpoints) == 0 {
			c.report.Unmatched++
		}
		c.recovered(p)
		for _, endpoint := range p.accepted.Endpoints {
			key := delivery{p.event, endpoint}
			c.report.Owed++
			d := c.deliveries[key]
			if d != nil && !d.done.IsZero() {
				continue
			}
			if c.dead[key] {
				c.report.Dead++
				continue
			}
			calls := 0
			if d != nil {
				calls = len(d.calls)
			}
			c.about = p.event
			c.violate(Lost, "event %s (post %s), accepted at %s, was never delivered to %s (%d requests came)",
				p.event, p.sending.Post, p.accepted.At.Format(time.RFC3339Nano), endpoint, calls)
		}
	}
	if c.report.Accepted == 0 || c.report.Owed == 0 {
		c.violate(Empty, "nothing was accepted for any endpoint: this run shows nothing")
	}
	c.report.AcceptLatency, c.report.DeliveryLatency = spread(c.accepting), spread(c.delivering)
	c.about = ""
	for name, t := range c.traffic {
		c.report.Endpoints[name] = t.figures
	}
}

// recovered looks at how long a post took, and how long its tries failed.
func (c *checker) recovered(p *post) {
	begun := p.sending.At
	if !p.sending.Due.IsZero() {
		begun = p.sending.Due
	}
	c.accepting = append(c.accepting, p.accepted.At.Sub(begun))
	if p.failing.IsZero() {
		return
	}
	since := p.failing
	for _, d := range c.disruptions {
		if !d.At.After(p.failing) && d.Until.After(since) {
			since = d.Until
		}
	}
	took := max(0, p.accepted.At.Sub(since))
	c.report.Recovered++
	c.report.LongestRecovery = max(c.report.LongestRecovery, took)
	if c.options.Recovery > 0 && took > c.options.Recovery {
		c.violate(Slow, "post %s failed for %s before it was accepted, over the %s allowed", p.sending.Post, took, c.options.Recovery)
	}
}

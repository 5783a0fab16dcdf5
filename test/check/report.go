package check

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Violation is a kind of broken promise.
type Violation string

// All that Check may find.
const (
	Lost       Violation = "lost"       // acknowledged, neither delivered nor a dead letter
	Foreign    Violation = "foreign"    // arrived and was never posted, or not for this endpoint
	Split      Violation = "split"      // one post became several events, or several posts one
	Altered    Violation = "altered"    // other bytes arrived than were posted
	Unverified Violation = "unverified" // the signature does not verify
	Duplicate  Violation = "duplicate"  // delivered again without a reason
	Disorder   Violation = "disorder"   // sent before an earlier event of its key was delivered
	Answer     Violation = "answer"     // a producer was answered what it should not be
	Slow       Violation = "slow"       // posting failed for longer than allowed
	Empty      Violation = "empty"      // there was nothing to check
	Crowded    Violation = "crowded"    // more requests at once than maxConcurrency
	Hurried    Violation = "hurried"    // more requests in a second than rate and burst allow
	Pestered   Violation = "pestered"   // sent to an endpoint whose circuit is open
	Unpaused   Violation = "unpaused"   // sent to an endpoint that was paused
	Stale      Violation = "stale"      // sent by a URL that was no longer the endpoint's
)

// Cause is why a delivery was sent again after it had succeeded, or while it was under way.
type Cause string

// What explains a repeat.
const (
	TimedOut    Cause = "timeout"
	Disruption  Cause = "disruption"
	Unexplained Cause = "unexplained"
)

// maxDetails bounds the violations that are described; all are counted.
const maxDetails, maxRepeated, maxOffenders = 50, 10_000, 20

// Report is what Check found.
type Report struct {
	// Posted = Accepted + Refused + Ambiguous. Of the ambiguous posts, which never got an answer, some arrived.
	Posted, Accepted, Refused, Ambiguous, AmbiguousArrived int
	// Unmatched were accepted for no endpoint.
	Unmatched int
	// Owed are the deliveries of accepted posts; Dead those given up on. Delivered also counts those of ambiguous posts.
	Owed, Delivered, Dead int
	// Arrivals are requests; Retries those that followed a failure, Repeats those that followed a success or overlapped.
	Arrivals, Retries int
	Repeats           map[Cause]int
	// Repeated describes each repeat, and Offenders are the events of violations: the first ones of each.
	Repeated, Offenders []string
	// Keys counts the sequences whose order was checked.
	Keys int
	// Answers counts the tries that were not accepted by status, "none" for a broken connection.
	Answers map[string]int
	// Recovered posts were accepted after failures, which lasted LongestRecovery at most.
	Recovered       int
	LongestRecovery time.Duration
	// AcceptLatency is from when a post was due until its 202, DeliveryLatency from there until the first success.
	AcceptLatency, DeliveryLatency Spread
	Endpoints                      map[string]Figures
	// Torn lines were left by writers that were killed.
	Torn int
	// Violations has the number of each kind, Details describes the first ones.
	Violations map[Violation]int
	Details    []string
}

// Figures of an endpoint: all requests, the most at one time, the most within any second.
type Figures struct{ Requests, Concurrency, PerSecond int }

// Spread of durations.
type Spread struct{ P50, P99, Max time.Duration }

// OK says that no promise was broken. The zero Report, of no check, is not OK.
func (r Report) OK() bool { return r.Posted > 0 && len(r.Violations) == 0 }

// Print writes the report for people. Its last line begins with "check: ok" or "check: FAILED".
func (r Report) Print(w io.Writer) {
	line := func(format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }
	line("posted %d: accepted %d (%d for no endpoint), refused %d, without an answer %d, of which %d arrived",
		r.Posted, r.Accepted, r.Unmatched, r.Refused, r.Ambiguous, r.AmbiguousArrived)
	line("owed %d deliveries: delivered %d, dead letters %d, lost %d", r.Owed, r.Delivered, r.Dead, r.Violations[Lost])
	line("%d requests arrived: %d retries, repeated after a timeout %d, after a disruption %d, unexplained %d",
		r.Arrivals, r.Retries, r.Repeats[TimedOut], r.Repeats[Disruption], r.Repeats[Unexplained])
	line("order checked for %d keys: %d violations", r.Keys, r.Violations[Disorder])
	if len(r.Answers) > 0 {
		var answers []string
		for _, status := range slices.Sorted(maps.Keys(r.Answers)) {
			answers = append(answers, fmt.Sprintf("%s × %d", status, r.Answers[status]))
		}
		line("posting failed: %s; %d posts were accepted later, after %s at most", strings.Join(answers, ", "), r.Recovered, rounded(r.LongestRecovery))
	}
	line("post to 202: %s; 202 to delivered: %s", r.AcceptLatency, r.DeliveryLatency)
	for _, name := range slices.Sorted(maps.Keys(r.Endpoints)) {
		f := r.Endpoints[name]
		line("endpoint %s: %d requests, at most %d at a time and %d within a second", name, f.Requests, f.Concurrency, f.PerSecond)
	}
	if r.Torn > 0 {
		line("%d lines of the journals are torn", r.Torn)
	}
	for _, d := range r.Details {
		line("  %s", d)
	}
	if r.OK() {
		line("check: ok")
		return
	}
	var found []string
	for _, kind := range slices.Sorted(maps.Keys(r.Violations)) {
		found = append(found, fmt.Sprintf("%s %d", kind, r.Violations[kind]))
	}
	line("check: FAILED: %s", strings.Join(found, ", "))
}

// String is the spread in milliseconds.
func (s Spread) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, max %s", rounded(s.P50), rounded(s.P99), rounded(s.Max))
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

func spread(of []time.Duration) Spread {
	if len(of) == 0 {
		return Spread{}
	}
	slices.Sort(of)
	return Spread{P50: of[len(of)/2], P99: of[len(of)*99/100], Max: of[len(of)-1]}
}

func (c *checker) violate(kind Violation, format string, args ...any) {
	c.report.Violations[kind]++
	if len(c.report.Details) < maxDetails {
		c.report.Details = append(c.report.Details, string(kind)+": "+fmt.Sprintf(format, args...))
	}
	if c.about != "" && len(c.report.Offenders) < maxOffenders && !slices.Contains(c.report.Offenders, c.about) {
		c.report.Offenders = append(c.report.Offenders, c.about)
	}
}

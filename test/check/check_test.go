package check

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// story tells a run fact by fact, a second each unless `later` says otherwise.
type story struct {
	facts []Fact
	now   time.Time
	calls int
}

func newStory() *story { return &story{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (s *story) later(d time.Duration) *story {
	s.now = s.now.Add(d)
	return s
}

func (s *story) tell(f Fact) *story {
	s.now = s.now.Add(time.Second)
	f.At = s.now
	s.facts = append(s.facts, f)
	return s
}

func (s *story) send(post, key string, number int) *story {
	return s.tell(Fact{Kind: Sending, Post: post, Key: key, Number: number, Sum: "sum-" + post})
}

// accept acknowledges a post as event e-<post>.
func (s *story) accept(post string, endpoints ...string) *story {
	return s.tell(Fact{Kind: Accepted, Post: post, Event: "e-" + post, Endpoints: endpoints})
}

func (s *story) post(post, key string, number int, endpoints ...string) *story {
	return s.send(post, key, number).accept(post, endpoints...)
}

func (s *story) arrive(post, endpoint string) *story {
	s.calls++
	return s.tell(Fact{Kind: Arrived, Call: fmt.Sprint("c", s.calls), Post: post, Event: "e-" + post, Endpoint: endpoint, Sum: "sum-" + post, Attempt: 1})
}

// answer answers the call that came last, or the one that is named.
func (s *story) answer(status int, call ...int) *story {
	name := fmt.Sprint("c", s.calls)
	if len(call) > 0 {
		name = fmt.Sprint("c", call[0])
	}
	i := slices.IndexFunc(s.facts, func(f Fact) bool { return f.Kind == Arrived && f.Call == name })
	f := s.facts[i]
	return s.tell(Fact{Kind: Answered, Call: f.Call, Post: f.Post, Event: f.Event, Endpoint: f.Endpoint, Status: status})
}

func (s *story) deliver(post, endpoint string) *story { return s.arrive(post, endpoint).answer(204) }

func (s *story) change(change func(*Fact)) *story {
	change(&s.facts[len(s.facts)-1])
	return s
}

func TestEachViolationIsFound(t *testing.T) {
	t.Parallel()
	const second = time.Second
	ordered := Options{Ordered: []string{"x"}}
	for name, test := range map[string]struct {
		story   *story
		options Options
		want    map[Violation]int
	}{
		"an acknowledged event that never arrived is lost": {
			story: newStory().post("a", "", 0, "x").post("b", "", 0, "x").deliver("a", "x"),
			want:  map[Violation]int{Lost: 1},
		},
		"an event is lost for one of its endpoints": {
			story: newStory().post("a", "", 0, "x", "y").deliver("a", "x"),
			want:  map[Violation]int{Lost: 1},
		},
		"an event that only ever failed is lost": {
			story: newStory().post("a", "", 0, "x").post("b", "", 0, "x").deliver("b", "x").arrive("a", "x").answer(503),
			want:  map[Violation]int{Lost: 1},
		},
		"a request that was never answered delivers nothing": {
			story: newStory().post("a", "", 0, "x").arrive("a", "x"),
			want:  map[Violation]int{Lost: 1},
		},
		"an answer that the sender did not get delivers nothing": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").change(func(f *Fact) { f.Unheard = true }),
			want:  map[Violation]int{Lost: 1},
		},
		"what nobody posted is foreign": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").deliver("b", "x"),
			want:  map[Violation]int{Foreign: 1},
		},
		"what arrives at an endpoint that was not matched is foreign": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").deliver("a", "y"),
			want:  map[Violation]int{Foreign: 1},
		},
		"what was refused and arrives is foreign, and a refusal is no right answer": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").send("b", "", 0).tell(Fact{Kind: Refused, Post: "b", Status: 409}).deliver("b", "x"),
			want:  map[Violation]int{Foreign: 1, Answer: 1},
		},
		"a post that became two events is split": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").arrive("a", "x").change(func(f *Fact) { f.Event = "other" }).answer(204),
			want:  map[Violation]int{Split: 1},
		},
		"an ambiguous post that became two events is split": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").send("b", "", 0).deliver("b", "x").arrive("b", "x").change(func(f *Fact) { f.Event = "other" }).answer(204),
			want:  map[Violation]int{Split: 1},
		},
		"two posts that became one event are split": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").send("b", "", 0).accept("b", "x").change(func(f *Fact) { f.Event = "e-a" }),
			want:  map[Violation]int{Split: 1},
		},
		"other bytes are altered": {
			story: newStory().post("a", "", 0, "x").arrive("a", "x").change(func(f *Fact) { f.Sum = "other" }).answer(204),
			want:  map[Violation]int{Altered: 1},
		},
		"a bad signature is unverified": {
			story: newStory().post("a", "", 0, "x").arrive("a", "x").change(func(f *Fact) { f.Problem = "no match" }).answer(401).deliver("a", "x"),
			want:  map[Violation]int{Unverified: 1},
		},
		"a second delivery without a reason is a duplicate": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").deliver("a", "x"),
			want:  map[Violation]int{Duplicate: 1},
		},
		"a request while another is open is a duplicate": {
			story: newStory().post("a", "", 0, "x").arrive("a", "x").deliver("a", "x").answer(204, 1),
			want:  map[Violation]int{Duplicate: 1},
		},
		"a request that was not open for a whole timeout explains nothing": {
			story:   newStory().post("a", "", 0, "x").arrive("a", "x").deliver("a", "x").answer(204, 1),
			options: Options{Timeout: 10 * second},
			want:    map[Violation]int{Duplicate: 1},
		},
		"a disruption before the first delivery explains no duplicate": {
			story: newStory().tell(Fact{Kind: Disrupted}).post("a", "", 0, "x").deliver("a", "x").deliver("a", "x"),
			want:  map[Violation]int{Duplicate: 1},
		},
		"a disruption long after a delivery was recorded explains no duplicate": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").later(10*second).tell(Fact{Kind: Disrupted}).deliver("a", "x"),
			want:  map[Violation]int{Duplicate: 1},
		},
		"a disruption after the second delivery explains no duplicate": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").deliver("a", "x").tell(Fact{Kind: Disrupted}),
			want:  map[Violation]int{Duplicate: 1},
		},
		"a later event of a key that comes first is out of order": {
			story:   newStory().post("a", "k", 1, "x").post("b", "k", 2, "x").deliver("b", "x").deliver("a", "x"),
			options: ordered,
			want:    map[Violation]int{Disorder: 1},
		},
		"an event that overtakes a failing one of its key is out of order": {
			story:   newStory().post("a", "k", 1, "x").post("b", "k", 2, "x").arrive("a", "x").answer(503).deliver("b", "x").deliver("a", "x"),
			options: ordered,
			want:    map[Violation]int{Disorder: 1},
		},
		"an event that overtakes an open one of its key is out of order": {
			story:   newStory().post("a", "k", 1, "x").post("b", "k", 2, "x").arrive("a", "x").arrive("b", "x").answer(204, 1).answer(204, 2),
			options: ordered,
			want:    map[Violation]int{Disorder: 1},
		},
		"every event that overtakes is counted": {
			story:   newStory().post("a", "k", 1, "x").post("b", "k", 2, "x").post("c", "k", 3, "x").deliver("c", "x").deliver("b", "x").deliver("a", "x"),
			options: ordered,
			want:    map[Violation]int{Disorder: 2},
		},
		"503 without Retry-After, and any other failure, is no right answer": {
			story: newStory().send("a", "", 0).tell(Fact{Kind: Failed, Post: "a", Status: 503}).tell(Fact{Kind: Failed, Post: "a", Status: 500}).
				tell(Fact{Kind: Failed, Post: "a", Status: 503, RetryAfter: "1"}).tell(Fact{Kind: Failed, Post: "a"}).accept("a", "x").deliver("a", "x"),
			want: map[Violation]int{Answer: 2},
		},
		"a post that fails for too long is slow": {
			story: newStory().send("a", "", 0).tell(Fact{Kind: Failed, Post: "a"}).later(10*second).accept("a", "x").deliver("a", "x").
				send("b", "", 0).tell(Fact{Kind: Unknown, Post: "b"}),
			options: Options{Recovery: 10 * second},
			want:    map[Violation]int{Slow: 2},
		},
		"a post that fails for too long after an outage is slow": {
			story: newStory().tell(Fact{Kind: Disrupted}).change(func(f *Fact) { f.Until = f.At.Add(30 * second) }).
				send("a", "", 0).tell(Fact{Kind: Failed, Post: "a"}).later(40*second).accept("a", "x").deliver("a", "x"),
			options: Options{Recovery: 10 * second},
			want:    map[Violation]int{Slow: 1},
		},
		"a run without acknowledged deliveries shows nothing": {
			story: newStory().post("a", "", 0),
			want:  map[Violation]int{Empty: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Check(Record{Facts: test.story.facts}, test.options)
			if fmt.Sprint(report.Violations) != fmt.Sprint(test.want) {
				t.Errorf("violations: got %v, want %v; details: %s", report.Violations, test.want, strings.Join(report.Details, "\n"))
			}
			if report.OK() {
				t.Error("OK: got true")
			}
		})
	}
}

func TestWhatIsAllowedIsNoViolation(t *testing.T) {
	t.Parallel()
	const second = time.Second
	for name, test := range map[string]struct {
		story   *story
		options Options
		shows   func(Report) bool
	}{
		"a failure that is repeated": {
			story: newStory().post("a", "", 0, "x").arrive("a", "x").answer(503).arrive("a", "x").answer(0).deliver("a", "x"),
			shows: func(r Report) bool { return r.Retries == 2 && r.Delivered == 1 && len(r.Repeats) == 0 },
		},
		"a post without an answer that arrives": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").send("b", "", 0).deliver("b", "x"),
			shows: func(r Report) bool { return r.Ambiguous == 1 && r.AmbiguousArrived == 1 && r.Delivered == 2 },
		},
		"a post without an answer that does not arrive": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").send("b", "", 0).tell(Fact{Kind: Unknown, Post: "b"}),
			shows: func(r Report) bool { return r.Ambiguous == 1 && r.AmbiguousArrived == 0 },
		},
		"an event that arrives before its producer hears of it": {
			story: newStory().send("a", "k", 1).deliver("a", "x").accept("a", "x"),
			shows: func(r Report) bool { return r.Delivered == 1 },
		},
		"a dead letter, and what comes after it": {
			story:   newStory().post("a", "k", 1, "x").post("b", "k", 2, "x").arrive("a", "x").answer(400).deliver("b", "x").tell(Fact{Kind: Died, Event: "e-a", Endpoint: "x"}),
			options: Options{Ordered: []string{"x"}},
			shows:   func(r Report) bool { return r.Dead == 1 && r.Keys == 1 },
		},
		"a repeat after a timeout": {
			story:   newStory().post("a", "", 0, "x").arrive("a", "x").later(10*second).deliver("a", "x").answer(204, 1),
			options: Options{Timeout: 10 * second},
			shows:   func(r Report) bool { return r.Repeats[TimedOut] == 1 },
		},
		"a repeat of what was answered in the last moment": {
			story:   newStory().post("a", "", 0, "x").arrive("a", "x").later(9*second).answer(204).deliver("a", "x"),
			options: Options{Timeout: 10 * second},
			shows:   func(r Report) bool { return r.Repeats[TimedOut] == 1 },
		},
		"a repeat after a crash between answer and record": {
			story: newStory().post("a", "", 0, "x").deliver("a", "x").tell(Fact{Kind: Disrupted}).later(60*second).deliver("a", "x"),
			shows: func(r Report) bool { return r.Repeats[Disruption] == 1 },
		},
		"a repeat after a crash during the request": {
			story: newStory().post("a", "", 0, "x").arrive("a", "x").tell(Fact{Kind: Disrupted}).deliver("a", "x").answer(204, 1),
			shows: func(r Report) bool { return r.Repeats[Disruption] == 1 },
		},
		"a repeat after an outage that had begun before": {
			story: newStory().tell(Fact{Kind: Disrupted}).change(func(f *Fact) { f.Until = f.At.Add(30 * second) }).
				post("a", "", 0, "x").deliver("a", "x").later(40*second).deliver("a", "x"),
			shows: func(r Report) bool { return r.Repeats[Disruption] == 1 },
		},
		"a repeat of what was sent before is no disorder": {
			story: newStory().post("a", "k", 1, "x").post("b", "k", 2, "x").deliver("a", "x").
				tell(Fact{Kind: Disrupted}).change(func(f *Fact) { f.Until = f.At.Add(5 * second) }).deliver("b", "x").deliver("a", "x").deliver("b", "x"),
			options: Options{Ordered: []string{"x"}, Recording: 10 * second},
			shows:   func(r Report) bool { return r.Repeats[Disruption] == 2 },
		},
		"other keys and endpoints without order overtake": {
			story: newStory().post("a", "k", 1, "x", "y").post("b", "k", 2, "x", "y").post("c", "l", 1, "x").deliver("c", "x").
				deliver("b", "y").deliver("a", "y").deliver("a", "x").deliver("b", "x"),
			options: Options{Ordered: []string{"x"}},
			shows:   func(r Report) bool { return r.Keys == 2 && r.Endpoints["x"].Requests == 3 },
		},
		"an ambiguous post has no place in the order": {
			story:   newStory().send("a", "k", 1).tell(Fact{Kind: Unknown, Post: "a"}).post("b", "k", 2, "x").deliver("b", "x").deliver("a", "x"),
			options: Options{Ordered: []string{"x"}},
			shows:   func(r Report) bool { return r.AmbiguousArrived == 1 },
		},
		"a post that is accepted after an outage": {
			story:   newStory().send("a", "", 0).tell(Fact{Kind: Failed, Post: "a"}).tell(Fact{Kind: Failed, Post: "a", Status: 503, RetryAfter: "1"}).accept("a", "x").deliver("a", "x"),
			options: Options{Recovery: 10 * second},
			shows: func(r Report) bool {
				return r.Recovered == 1 && r.LongestRecovery == 2*second && r.Answers["none"] == 1 && r.Answers["503"] == 1
			},
		},
		"the time of an outage is not that of the recovery": {
			story: newStory().tell(Fact{Kind: Disrupted}).change(func(f *Fact) { f.Until = f.At.Add(30 * second) }).
				send("a", "", 0).tell(Fact{Kind: Failed, Post: "a"}).later(30*second).accept("a", "x").deliver("a", "x"),
			options: Options{Recovery: 10 * second},
			shows:   func(r Report) bool { return r.Recovered == 1 && r.LongestRecovery == 3*second },
		},
		"concurrency and rate are those of the worst moment": {
			story: newStory().post("a", "", 0, "x").post("b", "", 0, "x").arrive("a", "x").arrive("b", "x").answer(204, 1).answer(204, 2),
			shows: func(r Report) bool { return r.Endpoints["x"] == Figures{Requests: 2, Concurrency: 2, PerSecond: 1} },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Check(Record{Facts: test.story.facts}, test.options)
			if !report.OK() {
				t.Errorf("violations: got %v, want none; details: %s", report.Violations, strings.Join(report.Details, "\n"))
			}
			if !test.shows(report) {
				t.Errorf("figures are not as told: %+v", report)
			}
		})
	}
}

func TestTheReportSaysWhatWasFound(t *testing.T) {
	t.Parallel()
	if (Report{}).OK() {
		t.Error("a report of no check is OK")
	}
	var good, bad strings.Builder
	Check(Record{Facts: newStory().post("a", "", 0, "x").deliver("a", "x").facts}, Options{}).Print(&good)
	if !strings.HasSuffix(good.String(), "check: ok\n") {
		t.Errorf("got %s", good.String())
	}
	s := newStory()
	for i := range 100 {
		s.post(fmt.Sprint(i), "", 0, "x")
	}
	report := Check(Record{Facts: s.facts, Torn: 1}, Options{})
	report.Print(&bad)
	if !strings.HasSuffix(bad.String(), "check: FAILED: lost 100\n") || !strings.Contains(bad.String(), "1 lines of the journals are torn") {
		t.Errorf("got %s", bad.String())
	}
	if len(report.Details) != maxDetails {
		t.Errorf("details: got %d, want %d", len(report.Details), maxDetails)
	}
}

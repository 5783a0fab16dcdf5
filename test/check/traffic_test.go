package check

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// now tells the next fact at the same time as the last one.
func (s *story) soon(d time.Duration) *story { return s.later(d - time.Second) }

func (s *story) changed(f Fact, took time.Duration) *story {
	f.Kind = Changed
	s.tell(f)
	if took > 0 {
		s.change(func(f *Fact) { f.Until = f.At.Add(took) }).later(took)
	}
	return s
}

// rush posts and delivers n events to x at once.
func (s *story) rush(n int) *story {
	for range n {
		post := strconv.Itoa(s.calls)
		s.soon(0).send(post, "", 0).soon(0).accept(post, "x").soon(0).arrive(post, "x").soon(0).answer(204)
	}
	return s
}

// fail sends a post of x once, which fails.
func (s *story) fail(after time.Duration) *story {
	return s.soon(after).arrive("f", "x").soon(0).answer(503)
}

func TestEachLimitIsHeldAgainstWhatArrives(t *testing.T) {
	t.Parallel()
	const second, ms = time.Second, time.Millisecond
	two := Fact{Endpoint: "x", Concurrency: 2}
	rate := Fact{Endpoint: "x", Rate: 2, Burst: 3}
	three := func(s *story) *story {
		s.post("a", "", 0, "x").post("b", "", 0, "x").post("c", "", 0, "x")
		return s.arrive("a", "x").arrive("b", "x").arrive("c", "x").answer(204, 1).answer(204, 2).answer(204, 3)
	}
	breaker := Options{Circuits: map[string]Circuit{"x": {Threshold: 3, Cooldown: 10 * second}}}
	for name, test := range map[string]struct {
		story   *story
		options Options
		want    map[Violation]int
	}{
		"three at once where two may be are crowded": {
			story: three(newStory().changed(two, 0)), want: map[Violation]int{Crowded: 1},
		},
		"three at once where three may be are not": {
			story: three(newStory().changed(Fact{Endpoint: "x", Concurrency: 3}, 0)),
		},
		"three at once are crowded long after three might be": {
			story: three(newStory().changed(Fact{Endpoint: "x", Concurrency: 3}, 0).changed(two, second).later(10 * second)), want: map[Violation]int{Crowded: 1},
		},
		"three at once may be from when it was asked for": {
			story: three(newStory().changed(two, 0).changed(Fact{Endpoint: "x", Concurrency: 3}, 5*second)),
		},
		"a sender that had gone away a moment ago is not counted": {
			story: newStory().changed(Fact{Endpoint: "x", Concurrency: 1}, 0).post("a", "", 0, "x").arrive("a", "x").
				soon(0).arrive("a", "x").soon(100*ms).answer(204, 1).change(func(f *Fact) { f.Unheard, f.Problem = true, goneAway }).answer(204, 2),
			options: Options{Timeout: second},
		},
		"six in a second where two a second and a burst of three may be are hurried": {
			story: newStory().changed(rate, 0).rush(6), want: map[Violation]int{Hurried: 1},
		},
		"five in a second are not": {
			story: newStory().changed(rate, 0).rush(5).later(2 * second).rush(5),
		},
		"a silence may have held requests up": {
			story: newStory().changed(rate, 0).tell(Fact{Kind: Disrupted, Held: true}).change(func(f *Fact) { f.Until = f.At.Add(second) }).later(second).rush(6),
		},
		"a kill holds up nothing": {
			story: newStory().changed(rate, 0).tell(Fact{Kind: Disrupted}).rush(6), want: map[Violation]int{Hurried: 1},
		},
		"what arrives while an endpoint is paused is found": {
			story: newStory().changed(Fact{Endpoint: "x"}, 0).changed(Fact{Endpoint: "x", Paused: true}, second).post("a", "", 0, "x").later(10*second).deliver("a", "x"),
			want:  map[Violation]int{Unpaused: 1},
		},
		"what was sent just before may arrive": {
			story: newStory().changed(Fact{Endpoint: "x"}, 0).post("a", "", 0, "x").changed(Fact{Endpoint: "x", Paused: true}, second).soon(100*ms).deliver("a", "x"),
		},
		"an old URL is stale": {
			story: newStory().changed(Fact{Endpoint: "x", Revision: 1}, 0).changed(Fact{Endpoint: "x", Revision: 2}, second).later(10*second).
				post("a", "", 0, "x").arrive("a", "x").change(func(f *Fact) { f.Revision = 1 }).answer(204),
			want: map[Violation]int{Stale: 1},
		},
		"the new URL is not": {
			story: newStory().changed(Fact{Endpoint: "x", Revision: 1}, 0).changed(Fact{Endpoint: "x", Revision: 2}, second).
				post("a", "", 0, "x").arrive("a", "x").change(func(f *Fact) { f.Revision = 2 }).answer(204),
		},
		"two requests within a cooldown pester an open circuit": {
			story:   newStory().post("f", "", 0, "x").fail(second).fail(second).fail(second).fail(5*second).fail(9*second).later(20*second).deliver("f", "x"),
			options: breaker, want: map[Violation]int{Pestered: 1},
		},
		"one request per cooldown does not": {
			story:   newStory().post("f", "", 0, "x").fail(second).fail(second).fail(second).fail(10*second).fail(10*second).later(20*second).deliver("f", "x"),
			options: breaker,
		},
		"a change lets a probe go": {
			story:   newStory().post("f", "", 0, "x").fail(second).fail(second).fail(second).fail(10*second).changed(Fact{Endpoint: "x"}, second).fail(second).later(20*second).deliver("f", "x"),
			options: breaker,
		},
		"fewer failures than the threshold open nothing": {
			story:   newStory().post("f", "", 0, "x").fail(second).fail(second).fail(second).fail(second).fail(second).deliver("f", "x"),
			options: Options{Circuits: map[string]Circuit{"x": {Threshold: 6, Cooldown: 10 * second}}},
		},
		"order counts from when it was in force": {
			story: newStory().changed(Fact{Endpoint: "x"}, 0).post("a", "k", 1, "x").post("b", "k", 2, "x").changed(Fact{Endpoint: "x", Ordered: true}, second).
				post("c", "k", 3, "x").post("d", "k", 4, "x").deliver("b", "x").deliver("d", "x").deliver("c", "x").deliver("a", "x"),
			want: map[Violation]int{Disorder: 1},
		},
		"before that it does not": {
			story: newStory().changed(Fact{Endpoint: "x"}, 0).post("a", "k", 1, "x").post("b", "k", 2, "x").changed(Fact{Endpoint: "x", Ordered: true}, second).
				post("c", "k", 3, "x").deliver("c", "x").deliver("b", "x").deliver("a", "x"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := Check(Record{Facts: test.story.facts}, test.options)
			for kind := range report.Violations {
				if report.Violations[kind] != test.want[kind] {
					t.Errorf("%s: got %d, want %d\n%s", kind, report.Violations[kind], test.want[kind], strings.Join(report.Details, "\n"))
				}
			}
			for kind, n := range test.want {
				if report.Violations[kind] != n {
					t.Errorf("%s: got %d, want %d\n%s", kind, report.Violations[kind], n, strings.Join(report.Details, "\n"))
				}
			}
		})
	}
}

func TestARepeatIsListedWithItsCauseAndAnOffenderByItsEvent(t *testing.T) {
	t.Parallel()
	s := newStory().post("a", "", 0, "x").deliver("a", "x").soon(0).tell(Fact{Kind: Disrupted, Problem: "kill -9 of somebody"}).deliver("a", "x").
		post("b", "", 0, "x").deliver("b", "x").later(time.Minute).deliver("b", "x")
	report := Check(Record{Facts: s.facts}, Options{})
	if len(report.Repeated) != 2 || !strings.Contains(report.Repeated[0], "e-a") || !strings.Contains(report.Repeated[0], "kill -9 of somebody") {
		t.Errorf("repeated: got %q", report.Repeated)
	}
	s.tell(Fact{Kind: GaveUp, Event: "e-b", Endpoint: "x", Attempt: 1})
	if again := Check(Record{Facts: s.facts}, Options{}); !again.OK() || again.Repeats[TimedOut] != 1 {
		t.Errorf("a sender that gave up: got %v, repeats %v", again.Violations, again.Repeats)
	}
	s.change(func(f *Fact) { f.Attempt = 2 })
	if again := Check(Record{Facts: s.facts}, Options{}); again.OK() {
		t.Error("that another attempt was given up explains a repeat")
	}
	late := newStory().post("a", "", 0, "x").tell(Fact{Kind: Disrupted}).arrive("a", "x").soon(0).answer(204).later(time.Minute).deliver("a", "x")
	if early := Check(Record{Facts: late.facts}, Options{Timeout: 500 * time.Millisecond}); early.OK() {
		t.Error("a kill more than a timeout before a request was read explains that it came again")
	}
	if unread := Check(Record{Facts: late.facts}, Options{Timeout: 3 * time.Second}); unread.Repeats[Disruption] != 1 {
		t.Errorf("a kill while a request waited to be read: got %v", unread.Violations)
	}
	if len(report.Offenders) != 1 || report.Offenders[0] != "e-b" {
		t.Errorf("offenders: got %q, want e-b", report.Offenders)
	}
}

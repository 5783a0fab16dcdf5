package chaos

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/postrider/postrider/test/check"
)

// Plan is all that is going to be done to an installation, made beforehand from a seed. How long each thing really takes
// differs from run to run.
type Plan struct {
	Seed    uint64
	Actions []Action
	Script  check.Script
}

// Action is one disturbance.
type Action struct {
	// At is when, from the beginning of the load; For is how long it lasts. Zero: it is over at once.
	At, For time.Duration
	// Who it happens to: a process, "postgres", "wire", "kubernetes", or an endpoint.
	Who string
	Do  deed
	// To is the new value where an endpoint is changed; Burst goes with a rate.
	To, Burst int
}

type deed string

const (
	kill       deed = "is killed"
	stop       deed = "is told to stop"
	crash      deed = "crashes"
	cutAll     deed = "is cut for everybody"
	cutOne     deed = "is cut for one process"
	delayAll   deed = "holds everything back"
	delayOne   deed = "holds back what is one process's"
	swallowAll deed = "swallows everything"
	swallowOne deed = "swallows what is one process's"
	readdress  deed = "gets another URL"
	crowd      deed = "gets another maxConcurrency"
	hurry      deed = "gets another rate"
	pause      deed = "is paused"
	keepOrder  deed = "is made to keep order"
)

// String tells the action in a line.
func (a Action) String() string {
	text := fmt.Sprintf("%8s  %-14s %s", a.At.Round(time.Millisecond), a.Who, a.Do)
	switch {
	case a.Do == hurry:
		text += fmt.Sprintf(": %d a second, burst %d", a.To, a.Burst)
	case a.Do == cutOne || a.Do == delayOne || a.Do == swallowOne:
		text += fmt.Sprintf(" (%d)", a.To)
	case a.To != 0:
		text += fmt.Sprintf(": %d", a.To)
	}
	if a.For > 0 {
		text += fmt.Sprintf(", for %s", a.For.Round(time.Millisecond))
	}
	return text
}

// Print writes the plan.
func (p Plan) Print(out io.Writer) {
	for _, a := range p.Actions {
		_, _ = fmt.Fprintln(out, "  "+a.String())
	}
}

// Faults say how often something happens: the mean time between two of a kind. Zero: never.
type Faults struct {
	// Dispatchers, Ingest and Controller: that one process of it is killed, or told to stop.
	Dispatchers, Ingest, Controller time.Duration
	// Postgres is stopped or crashes, the Wire to it is cut or silenced, the Kubernetes API is stopped.
	Postgres, Wire, Kubernetes time.Duration
	// Gently: processes are only told to stop, never killed.
	Gently bool
	// Specs: that one endpoint that may change is changed.
	Specs time.Duration
}

// planner draws a plan.
type planner struct {
	*rand.Rand
	scenario Scenario
	lasting  time.Duration
	actions  []Action
}

// MakePlan makes the plan of a scenario for a load that lasts so long. It is a function of its arguments.
func MakePlan(s Scenario, seed uint64, lasting time.Duration) Plan {
	p := &planner{Rand: rand.New(rand.NewPCG(seed, 0)), scenario: s, lasting: lasting}
	for i := range s.Dispatchers {
		p.each(s.Faults.Dispatchers, p.end(fmt.Sprintf("dispatcher-%d", i)))
	}
	for i := range s.Ingests {
		p.each(s.Faults.Ingest, p.end(fmt.Sprintf("ingest-%d", i)))
	}
	p.each(s.Faults.Controller, p.end("controller-0"))
	p.each(s.Faults.Postgres, func() Action {
		return Action{Who: "postgres", Do: p.either(stop, crash), For: p.between(0, 3*time.Second)}
	})
	p.each(s.Faults.Wire, p.wire)
	p.each(s.Faults.Kubernetes, func() Action { return Action{Who: "kubernetes", Do: stop, For: p.between(time.Second, 6*time.Second)} })
	for _, e := range s.Endpoints {
		if e.Changes {
			p.each(s.Faults.Specs, func() Action { return p.change(e) })
		}
		if e.Turns {
			p.actions = append(p.actions, Action{At: p.between(lasting/4, lasting/2), Who: e.Name, Do: keepOrder})
		}
	}
	slices.SortStableFunc(p.actions, func(a, b Action) int { return cmp.Compare(a.At, b.At) })
	return Plan{Seed: seed, Actions: p.actions, Script: p.script()}
}

// each draws actions of one actor one after the other, all of which end before the load does.
func (p *planner) each(mean time.Duration, draw func() Action) {
	if mean <= 0 {
		return
	}
	at := p.between(0, mean)
	for {
		a := draw()
		a.At = at
		if a.At+a.For > p.lasting {
			return
		}
		p.actions = append(p.actions, a)
		at += a.For + p.between(mean/4, mean*7/4)
	}
}

func (p *planner) between(least, most time.Duration) time.Duration {
	return least + time.Duration(p.Int64N(int64(most-least)+1))
}

func (p *planner) either(of ...deed) deed { return of[p.IntN(len(of))] }

// end of a process, which is started again some time later.
func (p *planner) end(who string) func() Action {
	return func() Action {
		if p.scenario.Faults.Gently {
			return Action{Who: who, Do: stop, For: p.between(0, time.Second)}
		}
		return Action{Who: who, Do: p.either(kill, kill, stop), For: p.between(0, 3*time.Second)}
	}
}

// wire is cut, or silent for a time that is longer than a lease every other time.
func (p *planner) wire() Action {
	a := Action{Who: "wire", Do: p.either(cutAll, cutOne, cutOne, delayAll, delayOne, swallowAll, swallowOne)}
	switch a.Do {
	case cutOne, delayOne, swallowOne:
		a.To = p.IntN(p.scenario.Dispatchers + p.scenario.Ingests + 1)
	}
	switch a.Do {
	case cutAll, cutOne:
	default:
		a.For = p.between(time.Second, 3*time.Second)
		if p.IntN(2) == 0 {
			a.For = 10 * time.Second
		}
	}
	return a
}

func (p *planner) change(e Endpoint) Action {
	deeds := []deed{readdress, crowd}
	if e.Rate > 0 {
		deeds = append(deeds, hurry, hurry)
	}
	if !e.Ordered || e.Turns {
		deeds = append(deeds, pause)
	}
	a := Action{Who: e.Name, Do: p.either(deeds...)}
	switch a.Do {
	case crowd:
		a.To = 1 + p.IntN(2*e.Concurrency)
	case hurry:
		a.To, a.Burst = e.Rate/2+p.IntN(2*e.Rate), 1+p.IntN(2*e.Burst)
	case pause:
		a.For = p.between(time.Second, 3*time.Second)
	}
	return a
}

// script says how the receivers fail: some all the time, and the dead ones altogether for a part of the time.
func (p *planner) script() check.Script {
	s := check.Script{Seed: p.Uint64()}
	for _, e := range p.scenario.Endpoints {
		if e.Dead > 0 {
			from := time.Duration(float64(p.lasting) * e.DeadFrom)
			s.Rules = append(s.Rules, check.Rule{
				Endpoint: e.Name, From: check.Duration(from), Until: check.Duration(from + time.Duration(float64(p.lasting)*e.Dead)), Status: 503,
			})
		}
	}
	for _, e := range p.scenario.Endpoints {
		for _, rule := range e.trouble() {
			rule.Endpoint = e.Name
			s.Rules = append(s.Rules, rule)
		}
	}
	return s
}

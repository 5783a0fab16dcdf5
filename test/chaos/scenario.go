package chaos

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/test/check"
)

// Scenario is an installation, what is posted into it, what happens to it, and what is looked at afterwards beside what
// [check.Check] looks at.
type Scenario struct {
	Name string
	// Title says what is shown.
	Title       string
	Dispatchers int
	Ingests     int
	Endpoints   []Endpoint
	Load        Load
	Faults      Faults
	// Shifted is how far the clock of the last dispatcher is off. Zero: not at all.
	Shifted time.Duration
	// Durable puts the database on disk, as in production.
	Durable bool
	// Before is done when everything is set up and before the load begins. Nil: nothing.
	Before func(ctx context.Context, w *world) error
	// During is done while the load runs, beside the plan. Nil: nothing.
	During func(ctx context.Context, w *world) error
	// After looks at what came of it and returns what is wrong. Nil: nothing more is looked at.
	After func(ctx context.Context, w *world, record check.Record, report check.Report) ([]string, error)
}

// Load is what the producers do.
type Load struct {
	Workers, Keys int
	// Rate of posts per second; zero: as fast as they are answered. Count bounds the posts; zero: only time does.
	Rate  float64
	Count int
	Types []string
}

// Endpoint is a WebhookEndpoint and its receiver.
type Endpoint struct {
	Name  string
	Types []string
	// Concurrency is maxConcurrency. Rate is in requests a second, zero for none.
	Concurrency, Rate, Burst int
	Ordered                  bool
	// Timeout zero means a second.
	Timeout time.Duration
	// Threshold zero means 1000: a circuit that stays closed. Cooldown doubles once.
	Threshold int
	Cooldown  time.Duration
	// Retry is the bound of the backoff, zero means half a second. MaxDuration zero means a week; else deliveries may die.
	Retry       time.Duration
	MaxDuration time.Duration

	// Changes: the spec may be changed under load. Turns: its ordering is turned from None to Key.
	Changes, Turns bool
	// Trouble is how much the receiver errs and lies: 1 spoils about a tenth of the requests.
	Trouble float64
	// Slow is what every other answer takes.
	Slow time.Duration
	// Dead is the part of the load's time during which the receiver answers 503 and nothing else, from DeadFrom on.
	Dead, DeadFrom float64
}

func (e Endpoint) timeout() time.Duration {
	if e.Timeout == 0 {
		return time.Second
	}
	return e.Timeout
}

// lastChance is up to which attempt chance may spoil a request, so that a run comes to its end.
const lastChance = 5

// trouble returns the rules by which the receiver answers.
func (e Endpoint) trouble() []check.Rule {
	var rules []check.Rule
	if e.Trouble > 0 {
		late := check.Duration(e.timeout() + e.timeout()/4)
		rules = []check.Rule{
			{Percent: 3, Status: 500},
			{Percent: 1, Status: 503, RetryAfter: "1"},
			{Percent: 1, Status: 429, RetryAfter: "1"},
			{Percent: 1, Drop: true},
			{Percent: 1, Reset: true},
			{Percent: 1, Truncate: true},
			{Percent: 0.5, Hang: true},
			{Percent: 0.5, Trickle: check.Duration(100 * time.Millisecond)},
			{Percent: 0.5, Delay: late},
			{Percent: 10, Delay: check.Duration(50 * time.Millisecond)},
		}
		for i := range rules {
			rules[i].Percent *= e.Trouble
			rules[i].Attempts = lastChance
		}
	}
	if e.Slow > 0 {
		rules = append(rules, check.Rule{Percent: 50, Delay: check.Duration(e.Slow)})
	}
	return rules
}

// everything is the chaos itself: all kinds of endpoints and all kinds of trouble at once.
func everything() Scenario {
	return Scenario{
		Name: "everything", Title: "all kinds of trouble at once",
		Dispatchers: 4, Ingests: 2, Shifted: time.Hour,
		Endpoints: []Endpoint{
			{Name: "plain", Types: []string{"a.*"}, Concurrency: 16, Trouble: 1, Changes: true},
			{Name: "ordered", Types: []string{"a.*"}, Concurrency: 16, Ordered: true, Trouble: 1},
			{Name: "narrow", Types: []string{"b.*"}, Concurrency: 3, Ordered: true, Slow: 40 * time.Millisecond, Trouble: 0.5, Changes: true},
			{Name: "rated", Types: []string{"b.*"}, Concurrency: 16, Rate: 30, Burst: 5, Trouble: 0.5, Changes: true},
			{Name: "crowded", Types: []string{"a.*"}, Concurrency: 4, Slow: 60 * time.Millisecond, Trouble: 0.5, Changes: true},
			{Name: "failing", Types: []string{"b.*"}, Concurrency: 8, Threshold: 5, Cooldown: time.Second, Dead: 0.3, DeadFrom: 0.2},
			{Name: "turning", Types: []string{"b.*"}, Concurrency: 8, Turns: true, Trouble: 1},
		},
		Load: Load{Workers: 16, Keys: 40, Rate: 40, Types: []string{"a.one", "b.two"}},
		Faults: Faults{
			Dispatchers: 15 * time.Second, Ingest: 15 * time.Second, Controller: 45 * time.Second,
			Postgres: 20 * time.Second, Wire: 12 * time.Second, Kubernetes: 40 * time.Second, Specs: 12 * time.Second,
		},
	}
}

// Scenarios are all there are.
func Scenarios() []Scenario {
	return []Scenario{everything(), rate(), concurrency(), circuitScenario(), ordering(), rolling(), alone()}
}

// Names of all scenarios.
func Names() []string {
	var names []string
	for _, s := range Scenarios() {
		names = append(names, s.Name)
	}
	return names
}

// Choose returns the scenarios of some names, separated by commas or spaces; "all" are all of them.
func Choose(names string) ([]Scenario, error) {
	if names == "all" {
		return Scenarios(), nil
	}
	var chosen []Scenario
	for _, name := range strings.FieldsFunc(names, func(r rune) bool { return r == ',' || r == ' ' }) {
		i := slices.IndexFunc(Scenarios(), func(s Scenario) bool { return s.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no scenario %q; there are %s", name, strings.Join(Names(), ", "))
		}
		chosen = append(chosen, Scenarios()[i])
	}
	return chosen, nil
}

package main

import (
	"context"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"
)

// plan is how much of everything a run does.
type plan struct {
	scale  string
	rounds int

	log      int           // MiB that Postgres has written to its log before anything is measured
	baseline time.Duration // of each baseline that runs for a time
	singles  int           // commits and POSTs one after another

	drain        int // deliveries in a loaded queue
	river        int // jobs for River tuned
	riverDefault int // and by its defaults, which are much slower

	warm, closed, half, low, beside time.Duration
	due                             int // deliveries due at the dead endpoint
	unheld, held                    time.Duration
	pending, history                int
	idle                            time.Duration
	endpoints, inFlight             int // remembered, and requests held, when memory is measured
}

// The scales. full is what is published: it takes about half an hour on two cores. small shows in about three minutes that
// everything runs; its figures are too short to be told to anybody. test is what `make test` affords.
var scales = map[string]plan{
	"full": {
		scale: "full", rounds: 5, log: 3072, baseline: 3 * time.Second, singles: 400,
		drain: 60_000, river: 30_000, riverDefault: 5_000,
		warm: 2 * time.Second, closed: 5 * time.Second, half: 5 * time.Second, low: 10 * time.Second, beside: 12 * time.Second, due: 1_000_000,
		unheld: 15 * time.Second, held: 60 * time.Second, pending: 3_000_000, history: 20_000_000, idle: 8 * time.Second,
		endpoints: 10_000, inFlight: 1_000,
	},
	"small": {
		scale: "small", rounds: 1, log: 512, baseline: time.Second, singles: 100,
		drain: 10_000, river: 5_000, riverDefault: 1_000,
		warm: time.Second, closed: 2 * time.Second, half: 2 * time.Second, low: 3 * time.Second, beside: 3 * time.Second, due: 50_000,
		unheld: 3 * time.Second, held: 8 * time.Second, pending: 100_000, history: 500_000, idle: 2 * time.Second,
		endpoints: 2_000, inFlight: 1_000,
	},
	"test": {
		scale: "test", rounds: 1, log: 16, baseline: 200 * time.Millisecond, singles: 20, drain: 500, river: 200, riverDefault: 100,
		warm: 200 * time.Millisecond, closed: 300 * time.Millisecond, half: 300 * time.Millisecond, low: 500 * time.Millisecond, beside: 500 * time.Millisecond,
		due: 1_000, unheld: 500 * time.Millisecond, held: time.Second, pending: 1_000, history: 2_000, idle: 200 * time.Millisecond,
		endpoints: 100, inFlight: 50,
	},
}

// unit is one thing that is measured in each round.
type unit struct {
	name string
	run  func(context.Context, *run) error
}

func units() []unit {
	all := []unit{
		{"baseline_http", baselineHTTP},
		{"baseline_commit", baselineCommit},
		{"baseline_paced", baselinePaced},
		{"baseline_db", baselineDB},
		{"baseline_insert", baselineInsert},
		{"drain", drain(hundred, func(p plan) int { return p.drain }, noteHundred)},
	}
	for _, c := range riverTuned {
		all = append(all, unit{fmt.Sprintf("river_%d", c.Workers), drainRiver(c, riverKey(c), func(p plan) int { return p.river })})
	}
	return append(all,
		unit{"river_default", drainRiver(riverDefault, "drain_per_s_river_default", func(p plan) int { return p.riverDefault })},
		unit{"drain_thousand", drain(thousand, func(p plan) int { return p.drain }, noteThousand)},
		unit{"drain_hot", drain(hot, func(p plan) int { return p.drain }, noteHot)},
		unit{"drain_flaky", drain(flaky, func(p plan) int { return p.drain / 2 }, noteFlaky)},
		unit{"many_pending", manyPending},
		unit{"long_history", longHistory},
		unit{"accept_deliver", throughHTTP},
		unit{"latency", lowRate},
		unit{"fan_out", fanOutTen},
		unit{"healthy_alone", healthyAlone},
		unit{"healthy_beside_dead", besideDead},
		unit{"healthy_beside_hanging", besideHanging},
		unit{"held_snapshot", heldSnapshot},
		unit{"idle", idle},
		unit{"memory", memoryInFlight},
	)
}

// choose returns the units that a list of names stands for, in which * stands for anything. "" means all.
func choose(list string) ([]unit, error) {
	all := units()
	if list == "" {
		return all, nil
	}
	wanted := strings.Split(list, ",")
	var chosen []unit
	for _, u := range all {
		if slices.ContainsFunc(wanted, func(w string) bool { fits, err := path.Match(w, u.name); return err == nil && fits }) {
			chosen = append(chosen, u)
		}
	}
	if len(chosen) == 0 {
		names := make([]string, len(all))
		for i, u := range all {
			names[i] = u.name
		}
		return nil, fmt.Errorf("-only: nothing is named %q; there are %s", list, strings.Join(names, ", "))
	}
	return chosen, nil
}

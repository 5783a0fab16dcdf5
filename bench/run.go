package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/postrider/postrider/bench/report"
	"github.com/postrider/postrider/bench/sink"
)

// run measures all chosen units, round by round.
type run struct {
	*stage

	plan   plan
	rounds []map[string]float64 // figures by key, of each round
	totals map[string]float64   // over all rounds
	claims float64              // per delivery, in the last drain
	unit   string               // that runs now
}

// unitPatience bounds one unit, the filling of its database included.
const unitPatience = 10 * time.Minute

// all runs the rounds. A unit that fails is told of at the end and has no figure in that round; the others go on.
func (r *run) all(ctx context.Context, chosen []unit) error {
	r.totals = map[string]float64{"lost_total": 0, "duplicates_total": 0, "lost_total_river": 0, "duplicates_total_river": 0}
	var failed error
	for n := range r.plan.rounds {
		r.rounds = append(r.rounds, map[string]float64{})
		order := slices.Clone(chosen)
		if n%2 == 1 {
			slices.Reverse(order)
		}
		for i, u := range order {
			began := time.Now()
			r.unit = u.name
			err := r.one(ctx, u)
			say(r.progress, "round %d of %d, %2d of %d: %s took %s%s", n+1, r.plan.rounds, i+1, len(order), u.name,
				time.Since(began).Round(100*time.Millisecond), outcome(err))
			if ctx.Err() != nil {
				r.rounds = r.rounds[:n] // half a round would weigh some units more than others
				return ctx.Err()
			}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s, round %d: %w", u.name, n+1, err))
			}
		}
		report.AddRatios(r.rounds[n])
	}
	return failed
}

func (r *run) one(ctx context.Context, u unit) error {
	ctx, cancel := context.WithTimeout(ctx, unitPatience)
	defer cancel()
	return u.run(ctx, r)
}

func outcome(err error) string {
	if err != nil {
		return ": FAILED: " + err.Error()
	}
	return ""
}

// note keeps a figure of this round.
func (r *run) note(key string, value float64) { r.rounds[len(r.rounds)-1][key] = value }

// latest returns a figure of this round, or of the last one that has it: backwards, a unit may come before what it needs.
func (r *run) latest(key string) (float64, bool) {
	for _, round := range slices.Backward(r.rounds) {
		if value, ok := round[key]; ok {
			return value, true
		}
	}
	return 0, false
}

// capacity is how many deliveries a second the machine could accept and deliver if each had only the work of the
// baselines. 0: they are not known.
func (r *run) capacity() float64 {
	sum := 0.0
	for _, key := range []string{"baseline_http_per_s", "baseline_db_per_s", "baseline_insert_per_s"} {
		value, ok := r.latest(key)
		if !ok || value == 0 {
			return 0
		}
		sum += 1 / value
	}
	return 1 / sum
}

func (r *run) lose(by whose, n int) { r.totals["lost_total"+string(by)] += float64(n) }

// double counts what the sink has seen twice. Where several kinds matter, each is asked for once.
func (r *run) double(by whose, s sink.Stats) {
	r.totals["duplicates_total"+string(by)] += float64(s.Duplicates)
}

// with runs a function on a copy of a layout's database.
func (r *run) with(ctx context.Context, l layout, f func(*database) error) error {
	t, err := r.lay(ctx, l)
	if err != nil {
		return err
	}
	db, err := r.copyOf(ctx, t)
	if err != nil {
		return err
	}
	return errors.Join(f(db), db.drop(ctx))
}

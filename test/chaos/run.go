package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/test/check"
	"github.com/postrider/postrider/test/localstack"
)

// Options of a run.
type Options struct {
	Scenario Scenario
	Seed     uint64
	// Lasting is how long the load and the faults last. Settling comes after.
	Lasting time.Duration
	// Out takes the seed, the plan and the report.
	Out io.Writer
	// Patience is how long the installation may take to deliver what is left when all faults are over. Zero: two minutes.
	Patience time.Duration
}

// Run plays a scenario and returns an error that says what is wrong, if anything is. In that case journals and logs are
// kept in .cache/chaos.
func Run(ctx context.Context, o Options) (err error) {
	top, err := localstack.Root()
	if err != nil {
		return err
	}
	folder := filepath.Join(top, ".cache/chaos", fmt.Sprintf("%s-%d", o.Scenario.Name, o.Seed))
	plan := MakePlan(o.Scenario, o.Seed, o.Lasting)
	say := func(format string, args ...any) { _, _ = fmt.Fprintf(o.Out, "chaos: "+format+"\n", args...) }
	say("%s: %s", o.Scenario.Name, o.Scenario.Title)
	say("seed %d, load and faults for %s; again: make chaos SCENARIOS=%s SEED=%d DURATION=%s", o.Seed, o.Lasting, o.Scenario.Name, o.Seed, o.Lasting)
	say("the plan, %d actions:", len(plan.Actions))
	plan.Print(o.Out)

	w, err := newWorld(ctx, o.Scenario, folder, o.Out)
	if err != nil {
		return fmt.Errorf("%s: set up: %w", o.Scenario.Name, err)
	}
	found, err := w.play(ctx, plan, o)
	if err != nil || len(found) > 0 {
		err = errors.Join(err, w.keepLogs())
	}
	err = errors.Join(err, w.close())
	if err == nil && len(found) == 0 {
		say("%s, seed %d: ok", o.Scenario.Name, o.Seed)
		return os.RemoveAll(folder)
	}
	if err != nil {
		say("%v", err)
	}
	for _, problem := range found {
		say("WRONG: %s", problem)
	}
	say("%s, seed %d: FAILED; journals and logs are in %s", o.Scenario.Name, o.Seed, folder)
	if len(found) > 0 {
		err = errors.Join(fmt.Errorf("%s, seed %d: %d things are wrong, the first: %s", o.Scenario.Name, o.Seed, len(found), found[0]), err)
	}
	return err
}

// play lets the load and the plan run, then everything settle, and returns what is wrong.
func (w *world) play(ctx context.Context, plan Plan, o Options) ([]string, error) {
	load := check.Load{
		Name: fmt.Sprint("seed-", o.Seed), URL: "http://" + w.service.address(), TokenFile: w.token, Namespace: namespace, Types: w.scenario.Load.Types,
		Workers: w.scenario.Load.Workers, Keys: w.scenario.Load.Keys, Rate: w.scenario.Load.Rate, Count: w.scenario.Load.Count,
		For: o.Lasting, Bytes: 200, Patience: 3 * time.Minute, Journal: w.posts,
	}
	if w.scenario.Before != nil {
		if err := w.scenario.Before(ctx, w); err != nil {
			return w.problems, err
		}
	}
	w.receiver.Play(plan.Script)
	w.say("the load begins")
	began := time.Now()
	loading, over := context.WithCancel(ctx)
	defer over()
	if err := together(ctx,
		func(ctx context.Context) error {
			defer over()
			return load.Run(ctx)
		},
		func(ctx context.Context) error { return w.act(ctx, loading, plan) },
		func(ctx context.Context) error {
			if w.scenario.During == nil {
				return nil
			}
			return w.scenario.During(ctx, w)
		},
	); err != nil {
		return w.problems, err
	}
	w.say("load and faults are over after %s; waiting for what is left", time.Since(began).Round(time.Second))
	began = time.Now()
	w.receiver.Play(check.Script{})
	for _, r := range w.replicas {
		if r.part == "controller" {
			continue // it is not needed for delivering, and the Kubernetes API may be away
		}
		if err := r.ready(ctx); err != nil {
			w.wrong("after all faults: %v", err)
		}
	}
	left, err := w.drain(ctx, orElse(o.Patience, 2*time.Minute))
	if err != nil {
		return w.problems, err
	}
	w.say("%d deliveries are left after %s", left, time.Since(began).Round(100*time.Millisecond))
	return w.verdict(ctx)
}

// together runs functions side by side. The first error ends them all.
func together(ctx context.Context, run ...func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range run {
		group.Go(func() error { return f(ctx) })
	}
	return group.Wait()
}

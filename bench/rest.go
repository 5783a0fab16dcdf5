package main

import (
	"context"
	"time"

	"github.com/postrider/postrider/bench/sink"
)

// What a dispatcher costs that has nothing to do, and how much memory one that has much in hand.

// idle watches ingest and a dispatcher with a thousand endpoints and nothing to deliver.
func idle(ctx context.Context, r *run) error {
	t, err := r.lay(ctx, thousand)
	if err != nil {
		return err
	}
	return r.onStack(ctx, t, sink.OK, eachIn(1), 1, func(s *stack) error {
		if err := rest(ctx, r.plan.warm); err != nil { // what a start costs is over
			return err
		}
		m, err := s.db.measure(ctx, s.dispatcher.child, s.ingest.child)
		if err != nil {
			return err
		}
		if err := rest(ctx, r.plan.idle); err != nil {
			return err
		}
		used, err := m.read(ctx)
		if err != nil {
			return err
		}
		percent := func(d time.Duration) float64 { return 100 * d.Seconds() / used.wall.Seconds() }
		r.note("idle_cpu_percent", percent(used.cpu["dispatcher"]))
		r.note("idle_cpu_percent_ingest", percent(used.cpu["ingest"]))
		r.note("idle_cpu_percent_postgres", percent(used.cpu["postgres"]))
		return nil
	})
}

// memoryInFlight delivers to many endpoints, so that the dispatcher remembers them, and then has a thousand requests in
// flight.
func memoryInFlight(ctx context.Context, r *run) error {
	many := layout{name: "many", groups: []endpoints{{kind: sink.Hold, count: r.plan.endpoints}}}
	return r.with(ctx, many, func(db *database) error {
		if err := db.load(ctx, db.endpoints, r.plan.endpoints); err != nil {
			return err
		}
		if err := r.sink.Reset(ctx); err != nil {
			return err
		}
		p, err := db.dispatch(ctx, "--senders", "1000")
		if err != nil {
			return err
		}
		defer p.stop()
		if err := r.arrived(ctx, db, p.child, ours, sink.Hold, r.plan.endpoints); err != nil {
			return err
		}
		if err := r.sink.Hold(ctx); err != nil {
			return err
		}
		defer func() { _ = r.sink.Release(context.WithoutCancel(ctx)) }()
		if err := db.load(ctx, db.endpoints, r.plan.inFlight); err != nil {
			return err
		}
		if err := p.poll(ctx, func() (bool, error) {
			stats, err := r.sink.Stats(ctx, sink.Hold)
			return stats.InFlight >= int64(r.plan.inFlight), err
		}); err != nil {
			return err
		}
		resident, err := memory(p.cmd.Process.Pid, "VmRSS")
		if err != nil {
			return err
		}
		most, err := memory(p.cmd.Process.Pid, "VmHWM")
		if err != nil {
			return err
		}
		r.note("dispatcher_rss_mib", resident)
		r.note("dispatcher_rss_peak_mib", most)
		if err := r.sink.Release(ctx); err != nil {
			return err
		}
		return r.arrived(ctx, db, p.child, ours, sink.Hold, r.plan.endpoints+r.plan.inFlight)
	})
}

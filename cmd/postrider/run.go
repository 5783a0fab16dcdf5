package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"sync"

	"github.com/KimMachineGun/automemlimit/memlimit"
	"golang.org/x/sync/errgroup"
)

var errStarting = errors.New("starting")

// process runs some parts side by side.
type process struct {
	log     *slog.Logger
	metrics registry
	schema  *schemaWatch
	first   *site // that of the start: what does not change

	mutex   sync.Mutex
	now     *assembly // what is in force
	running []runner  // nil: not built yet
}

// memoryShare of the container's memory is what the garbage collector tries to stay below: at its usual pace it lets the
// heap double, and large events in flight would have the container killed long before they need all of it.
const memoryShare = 0.9

// limitMemory sets that limit and returns it in bytes, or what GOMEMLIMIT says; math.MaxInt64: there is none.
func limitMemory(log *slog.Logger) int64 {
	limit, err := memlimit.Set(memlimit.WithRatio(memoryShare))
	if err != nil && !errors.Is(err, memlimit.ErrCgroupsNotSupported) && !errors.Is(err, memlimit.ErrNoCgroup) {
		log.Warn("the container's memory limit cannot be read; set GOMEMLIMIT", "reason", err.Error())
	}
	return limit
}

// garbagePercent is how much the heap may grow, as a part of what is in use, before its garbage is collected, unless GOGC says
// otherwise. The runtime's own 100 costs a tenth more of the CPU of ingest and of a small dispatcher, and saves some 10 MiB.
const garbagePercent = 150

func paceGarbage() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
}

// run runs the parts, with probes and metrics, until the context ends or one of them fails: then the others stop too.
// again reads the settings anew, with those of the file given.
func (p *process) run(ctx context.Context, again func([]byte) (*assembly, error)) error {
	paceGarbage()
	p.log.Info("starting", "version", version, "memory_limit", limitMemory(p.log))
	by, err := p.first.kube.guard(p.log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, groupCtx := errgroup.WithContext(ctx)
	// Probes answer until the last part has ended, not only until the stop begins.
	probing, endProbing := context.WithCancel(context.WithoutCancel(ctx))
	defer endProbing()
	probed := make(chan error, 1)
	go func() { probed <- p.first.watch.serve(probing, p.log, p.metrics, by, p.ready) }()
	var following sync.WaitGroup
	defer following.Wait()
	defer stop()
	following.Go(func() { p.follow(ctx, again) })
	p.metrics.MustRegister(p.schema)
	following.Go(func() { p.schema.follow(ctx, p.log, &p.first.db) })
	for i := range p.running {
		group.Go(func() error { return p.runPart(groupCtx, i) })
	}
	ended := make(chan error, 1)
	go func() { ended <- group.Wait() }()
	select {
	case err := <-ended:
		endProbing()
		return errors.Join(withoutCancel(err), <-probed)
	case err := <-probed: // the address is taken, say
		stop()
		return errors.Join(err, withoutCancel(<-ended))
	}
}

func (p *process) runPart(ctx context.Context, i int) error {
	p.mutex.Lock()
	part := p.now.parts[i]
	p.mutex.Unlock()
	on, err := p.first.prepare(ctx, p.log, p.metrics, p.schema, part)
	if err != nil {
		return err
	}
	defer on.store.Close()
	r, err := p.build(ctx, i, on)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

// build makes a part of what is in force now, which may have changed while the database was waited for.
func (p *process) build(ctx context.Context, i int, on ground) (runner, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var err error
	if on.policy, err = p.now.site.to.policy(); err != nil {
		return nil, err
	}
	r, err := p.now.parts[i].build(ctx, on)
	if err != nil {
		return nil, err
	}
	p.running[i] = r
	return r, nil
}

// change puts another assembly in force.
func (p *process) change(next *assembly) error {
	policy, err := next.site.to.policy()
	if err != nil {
		return err
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for i, r := range p.running {
		if r == nil {
			continue
		}
		if err := next.parts[i].change(r, policy); err != nil {
			return err
		}
	}
	p.now = next
	p.first.log.follow(&next.site.log)
	return nil
}

func withoutCancel(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// ready answers /readyz.
func (p *process) ready() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, r := range p.running {
		if r == nil {
			return errStarting
		}
		if err := r.Ready(); err != nil {
			return fmt.Errorf("not ready: %w", err)
		}
	}
	return nil
}

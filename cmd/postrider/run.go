package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// runner is a part that is ready to run.
type runner interface {
	Run(context.Context) error
	Ready() error
}

// part makes a runner once what it needs is there, and says what to do after it has ended. It may wait for the database.
type part func(context.Context, *slog.Logger, prometheus.Registerer) (runner, func(), error)

var errStarting = errors.New("starting")

// runParts runs parts side by side, with probes and metrics, until the context ends or one of them fails: then the
// others stop too.
func runParts(ctx context.Context, log *slog.Logger, watch *observing, metrics registry, parts ...part) error {
	log.Info("starting", "version", version)
	ready := make([]atomic.Pointer[runner], len(parts))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, groupCtx := errgroup.WithContext(ctx)
	// Probes answer until the last part has ended, not only until the stop begins.
	probing, endProbing := context.WithCancel(context.WithoutCancel(ctx))
	defer endProbing()
	probed := make(chan error, 1)
	go func() { probed <- watch.serve(probing, log, metrics, func() error { return allReady(ready) }) }()
	for i, p := range parts {
		group.Go(func() error {
			r, done, err := p(groupCtx, log, metrics)
			if err != nil {
				return err
			}
			defer done()
			ready[i].Store(&r)
			return r.Run(groupCtx)
		})
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

func withoutCancel(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func allReady(parts []atomic.Pointer[runner]) error {
	for i := range parts {
		r := parts[i].Load()
		if r == nil {
			return errStarting
		}
		if err := (*r).Ready(); err != nil {
			return fmt.Errorf("not ready: %w", err)
		}
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

var errStarting = errors.New("starting")

// runParts runs parts side by side, with probes and metrics, until the context ends or one of them fails: then the
// others stop too.
func runParts(ctx context.Context, log *slog.Logger, s *site, metrics registry, parts ...part) error {
	log.Info("starting", "version", version)
	ready := make([]atomic.Pointer[runner], len(parts))
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, groupCtx := errgroup.WithContext(ctx)
	// Probes answer until the last part has ended, not only until the stop begins.
	probing, endProbing := context.WithCancel(context.WithoutCancel(ctx))
	defer endProbing()
	probed := make(chan error, 1)
	go func() { probed <- s.watch.serve(probing, log, metrics, func() error { return allReady(ready) }) }()
	for i, p := range parts {
		group.Go(func() error {
			r, opened, err := s.prepare(groupCtx, log, metrics, p)
			if err != nil {
				return err
			}
			defer opened.Close()
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

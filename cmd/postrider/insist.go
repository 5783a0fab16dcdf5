package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"
)

// insist repeats, each second, what fails in a way that passes, such as a database that is away. Anything else it returns,
// and when the context ends, the last failure beside the context's.
func insist(ctx context.Context, log *slog.Logger, passes func(error) bool, try func(context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil || !passes(err) {
			return err
		}
		log.Warn("waiting for the database", "reason", err.Error())
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(time.Second):
		}
	}
}

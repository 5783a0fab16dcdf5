package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// untilExactly waits for a moment and is some 50 µs late. A timer of the Go runtime in an idle process is late by up to a
// millisecond, since that is the unit in which it sleeps: whoever measures less would measure that.
func untilExactly(ctx context.Context, at time.Time) error {
	const coarse = 2 * time.Millisecond
	if wait := time.Until(at) - coarse; wait > 0 {
		if err := rest(ctx, wait); err != nil {
			return err
		}
	}
	for wait := time.Until(at); wait > 0; wait = time.Until(at) {
		left := unix.NsecToTimespec(int64(wait))
		if err := unix.Nanosleep(&left, nil); err != nil && !errors.Is(err, unix.EINTR) { // the runtime's own signals interrupt it
			return err
		}
	}
	return nil
}

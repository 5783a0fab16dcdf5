package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
)

// patience bounds the whole demonstration once everything is built; building has its own bounds.
const patience = 4 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logr.Discard()) // what the client library would log is not part of the story
	run := demonstrate
	if len(os.Args) > 1 && os.Args[1] == "up" {
		run = stayUp
	}
	if err := run(ctx); err != nil {
		fmt.Fprintf(os.Stderr, "demo: FAILED: %v\n", err)
		stop()
		os.Exit(1)
	}
}

// demonstrate plays all scenes and reports how many checks passed.
func demonstrate(ctx context.Context) (err error) {
	started := time.Now()
	s, err := newStage(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			s.showLogs()
		}
		err = errors.Join(err, s.close())
		if err == nil {
			fmt.Printf("\nThat took %s.\n", time.Since(started).Round(time.Second))
			fmt.Printf("demo: %d checks passed\n", s.passed)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, scene := range scenes {
		fmt.Printf("\n%s\n", scene.title)
		if err := scene.play(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", scene.title, err)
		}
	}
	return nil
}

package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"github.com/postrider/postrider/test/localstack"
)

// TestMain also plays the processes that the benchmarks start, for which they start this binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "sink" || os.Args[1] == "river") {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		defer stop()
		if err := command(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
			_, _ = fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	localstack.Main(m)
}

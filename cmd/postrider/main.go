package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the build: -ldflags "-X main.version=v0.1.0".
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the process at once.
	context.AfterFunc(ctx, stop)
	if err := root().ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "postrider: "+err.Error())
		os.Exit(1)
	}
}

func root() *cobra.Command {
	c := &cobra.Command{
		Use:   "postrider",
		Short: "Webhook delivery for Kubernetes",
		Long: `Postrider delivers webhooks from a Kubernetes cluster.

Each part is a subcommand. Every flag may also be given as a variable of the environment: --database-url as
POSTRIDER_DATABASE_URL. A flag wins over its variable. Those of pause and resume that say what is meant have none.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	c.AddCommand(controllerCommand(), dispatcherCommand(), ingestCommand(), allCommand(), migrateCommand(),
		pauseCommand(), resumeCommand(), keyringCommand(), secretsCommand(), selfTestCommand())
	return c
}

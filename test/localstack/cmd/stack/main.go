// Command stack starts a Postgres and an API server, runs a command beside them, and stops them:
//
//	go run ./test/localstack/cmd/stack -- go test ./...
//
// Every test process of the command then uses these two instead of starting its own. The exit status is the command's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/postrider/postrider/test/localstack"
)

// grace is how long the command may take to end after a signal.
const grace = 20 * time.Second

func main() {
	log.SetLogger(logr.Discard()) // what controller-runtime's client has to say
	runtime.LockOSThread()        // the command ends with the thread that starts it, see Pdeathsig below
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: stack -- <command> [argument…]")
	}
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	status, err := run(flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "stack:", err)
		status = max(status, 1)
	}
	os.Exit(status)
}

func run(args []string) (status int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	servers, err := localstack.NewStack(ctx, os.Stderr)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, servers.Close()) }()
	return command(ctx, args, servers.Environment())
}

// command runs in our process group, where a terminal's Ctrl-C reaches it without our help.
func command(ctx context.Context, args, environment []string) (int, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), environment...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil // -1 after a signal
	}
	if err != nil {
		return 1, err
	}
	return 0, nil
}

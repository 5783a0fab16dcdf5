// Command cluster brings a Kubernetes of one node up and down on this machine: `make cluster-up`, `make cluster-down`.
//
//	cluster up                 until `cluster down`; prints how to use it
//	cluster down               also what a killed one left
//	cluster import TARBALL…    makes images known to the node
//	cluster exec PROGRAM …     runs a program inside the node, for example ctr or nft
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/postrider/postrider/test/cluster"
	"github.com/postrider/postrider/test/localstack"
)

func main() {
	cluster.BeNode()
	log.SetLogger(logr.Discard()) // what controller-runtime's client has to say
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	usage := errors.New("usage: cluster up | down | import TARBALL… | exec PROGRAM [ARGUMENT…]")
	if len(args) == 0 {
		return usage
	}
	top, err := localstack.Root()
	if err != nil {
		return err
	}
	folder := filepath.Join(top, ".cache/cluster")
	switch {
	case args[0] == "up" && len(args) == 1:
		return up(ctx, folder)
	case args[0] == "down" && len(args) == 1:
		return cluster.Down(ctx, folder)
	case args[0] == "import" && len(args) > 1:
		c, err := cluster.Open(folder)
		if err != nil {
			return err
		}
		for _, tarball := range args[1:] {
			if err := c.Import(ctx, tarball); err != nil {
				return err
			}
		}
		return nil
	case args[0] == "exec" && len(args) > 1:
		c, err := cluster.Open(folder)
		if err != nil {
			return err
		}
		cmd, err := c.Command(ctx, args[1], args[2:]...)
		if err != nil {
			return err
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		return cmd.Run()
	}
	return usage
}

func up(ctx context.Context, folder string) error {
	c, err := cluster.Up(ctx, cluster.Options{Folder: folder})
	if errors.Is(err, cluster.ErrRunning) {
		c, err = cluster.Open(folder)
	}
	if err != nil {
		return err
	}
	kubectl, err := localstack.Kubectl(ctx, os.Stderr)
	if err != nil {
		return err
	}
	fmt.Printf("export KUBECONFIG=%s\nalias kubectl=%s\n", c.Kubeconfig(), kubectl)
	return nil
}

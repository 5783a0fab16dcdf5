package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/postrider/postrider/test/cluster"
	"github.com/postrider/postrider/test/localstack"
)

const scenarioPatience = 10 * time.Minute

func main() {
	cluster.BeNode()
	log.SetLogger(logr.Discard()) // what controller-runtime's client has to say
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx)
	stop()
	if err != nil {
		say("%v", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	keep := flag.Bool("keep", false, "leave the cluster up when a scenario fails")
	down := flag.Bool("down", false, "only take down what an earlier run left")
	pattern := flag.String("run", "", "play those scenarios whose name matches this `regular expression`, after the first two, which all need")
	flag.Parse()
	chosen, err := regexp.Compile(*pattern)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	top, err := localstack.Root()
	if err != nil {
		return err
	}
	folder := filepath.Join(top, ".cache/e2e")
	// This one is nobody's but ours, so whatever is there was left by an earlier run.
	if err := cluster.Down(ctx, folder); err != nil || *down {
		return err
	}
	links, err := filepath.Glob(networkLinks)
	if err != nil {
		return err
	}
	begun := time.Now()
	w := &world{top: top, progress: os.Stdout}
	if err := w.provide(ctx, chosen.MatchString(upgrading)); err != nil {
		return err
	}
	if w.cluster, err = cluster.Up(ctx, cluster.Options{Folder: folder, Tied: !*keep, Progress: os.Stdout}); err != nil {
		return err
	}
	defer func() {
		if err != nil && *keep {
			say("the cluster stays up: export KUBECONFIG=%s; to end it: e2e -down", w.cluster.Kubeconfig())
			return
		}
		// Also after an interrupt.
		err = errors.Join(err, w.cluster.Down(context.WithoutCancel(ctx)), nothingLeft(folder, links))
	}()
	if err := w.begin(ctx); err != nil {
		return err
	}
	passed := 0
	for _, s := range scenarios {
		if !s.base && !chosen.MatchString(s.name) {
			continue
		}
		if err := w.play(ctx, s); err != nil {
			return err
		}
		passed++
	}
	say("%d scenarios passed in %s", passed, time.Since(begun).Round(time.Second))
	return nil
}

const networkLinks = "/sys/class/net/*"

// nothingLeft looks whether the machine is as it was.
func nothingLeft(folder string, links []string) error {
	found, err := cluster.Remains(folder)
	if err != nil {
		return err
	}
	now, err := filepath.Glob(networkLinks)
	if err != nil {
		return err
	}
	for _, link := range now {
		if !slices.Contains(links, link) {
			found = append(found, "network device "+link)
		}
	}
	if len(found) > 0 {
		return fmt.Errorf("the cluster is down and left: %v", found)
	}
	say("the cluster is down and nothing of it is left")
	return nil
}

// play runs a scenario and says how it went. What a failed one looked like is printed.
func (w *world) play(ctx context.Context, s scenario) error {
	say("=== %s", s.name)
	began := time.Now()
	playing, cancel := context.WithTimeout(ctx, scenarioPatience)
	defer cancel()
	err := s.play(playing, w)
	took := time.Since(began).Round(100 * time.Millisecond)
	if err == nil {
		say("PASS %s (%s)", s.name, took)
		return nil
	}
	say("FAIL %s (%s): %v", s.name, took, err)
	if ctx.Err() == nil {
		w.describe(ctx)
	}
	return fmt.Errorf("scenario %q failed", s.name)
}

func say(format string, args ...any) {
	_, _ = fmt.Fprintf(os.Stdout, "e2e: "+format+"\n", args...)
}

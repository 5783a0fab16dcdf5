package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/postrider/postrider/bench/report"
	"github.com/postrider/postrider/bench/sink"
)

func main() {
	// As Postrider's own: neither the opponent nor the baselines shall have more garbage to collect than it.
	debug.SetGCPercent(150)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "bench: "+err.Error())
		os.Exit(1)
	}
}

// command runs a subcommand: the benchmarks themselves without one, the report, or one of the processes that the
// benchmarks start.
func command(ctx context.Context, args []string, out, progress io.Writer) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		return measure(ctx, args, progress)
	}
	switch args[0] {
	case "sink":
		return sink.Serve(ctx, out)
	case "river":
		return workRiver(ctx, out)
	case "report":
		return writeReport(args[1:])
	}
	return fmt.Errorf("%q is no subcommand; there are none (measure), report, sink and river", args[0])
}

// options of a run.
type options struct {
	scale, only, out string
	rounds           int
	profile          bool
}

const latest, partial = "results/latest.json", "results/partial.json"

func measure(ctx context.Context, args []string, progress io.Writer) error {
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(progress)
	flags.StringVar(&o.scale, "scale", "full", "how much of everything: full, small or test")
	flags.StringVar(&o.only, "only", "", "names of units to run, separated by commas, * for anything (default: all)")
	flags.IntVar(&o.rounds, "rounds", 0, "how often each unit runs (default: what the scale says)")
	flags.StringVar(&o.out, "out", "", "file for the results (default: "+latest+" for a whole run at full scale, else "+partial+")")
	flags.BoolVar(&o.profile, "profile", false, "write CPU profiles, and Postgres' wait events, statements and plans, to the folder profile beside the results; the figures suffer")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if o.out == "" {
		o.out = partial
		if o.scale == "full" && o.only == "" {
			o.out = latest
		}
	}
	figures, err := execute(ctx, o, progress)
	if figures == nil {
		return err
	}
	if ctx.Err() != nil {
		o.out = partial
	}
	if err := errors.Join(err, figures.Write(o.out)); err != nil {
		return err
	}
	say(progress, "results are in %s", o.out)
	return nil
}

// execute runs what the options ask for. Where some units failed, or the run was broken off after a whole round, there are
// figures and an error.
func execute(ctx context.Context, o options, progress io.Writer) (figures report.Figures, err error) {
	p, ok := scales[o.scale]
	if !ok {
		return nil, fmt.Errorf("-scale: %q is not full, small or test", o.scale)
	}
	if o.rounds > 0 {
		p.rounds = o.rounds
	}
	chosen, err := choose(o.only)
	if err != nil {
		return nil, err
	}
	s, err := newStage(ctx, progress, filepath.Join(filepath.Dir(o.out), "profile"), o.profile)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.fillLog(ctx, p.log); err != nil {
		return nil, err
	}
	before, err := s.load()
	if err != nil {
		return nil, err
	}
	r := &run{stage: s, plan: p}
	err = r.all(ctx, chosen)
	if len(r.rounds) == 0 {
		return nil, err
	}
	p.rounds = len(r.rounds)
	return report.NewFigures(r.rounds, r.totals, s.facts(p, before)), err
}

// facts are what the figures depend on, without a name of any machine.
func (s *stage) facts(p plan, before load) map[string]any {
	return map[string]any{
		"scale": p.scale, "rounds": p.rounds, "cores": cores(), "memory_gib": machineMemory(), "postgres_version": s.version, "go_version": goVersion(),
		"river_version": moduleVersion("github.com/riverqueue/river"), "deliveries_drained": p.drain, "deliveries_pending": p.pending,
		"attempts_history": p.history, "deliveries_due_dead": p.due, "snapshot_held_s": p.held.Seconds(),
		"memory_endpoints": p.endpoints, "memory_in_flight": p.inFlight, "cpu_percent_others": s.othersPercent(before),
	}
}

func writeReport(args []string) error {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	from := flags.String("from", latest, "file with the results")
	docs := flags.String("docs", "../docs", "folder of the documentation")
	if err := flags.Parse(args); err != nil {
		return err
	}
	figures, err := report.Read(*from)
	if err != nil {
		return err
	}
	files, err := report.Files(figures)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		file := filepath.Join(*docs, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return fmt.Errorf("make the folder of the report: %w", err)
		}
		if err := os.WriteFile(file, files[name], 0o644); err != nil {
			return fmt.Errorf("write the report: %w", err)
		}
	}
	return nil
}

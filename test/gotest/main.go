// Command gotest runs `go test` with the given arguments and says in the end how many tests passed, failed and were
// skipped. It prints what failed, and nothing of what passed but a line per package. A skipped test is a failure here:
// a test that needs something absent has to say so by failing.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	runtime.LockOSThread() // go test ends with the thread that starts it, see Pdeathsig below
	// Ctrl-C reaches `go test` by itself; we stay to report.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	signal.Ignore(os.Interrupt)
	ok, err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "gotest:", err)
	}
	if !ok || err != nil {
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) (bool, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	events, err := cmd.StdoutPipe()
	if err != nil {
		return false, err
	}
	started := time.Now()
	if err := cmd.Start(); err != nil {
		return false, fmt.Errorf("start go test: %w", err)
	}
	report := newReport(out)
	readErr := report.read(events)
	waitErr := cmd.Wait()
	ok := report.summary(time.Since(started))
	if exit := (*exec.ExitError)(nil); errors.As(waitErr, &exit) {
		return false, readErr // which the report has explained
	}
	return ok, errors.Join(readErr, waitErr)
}

// event is what `go test -json` prints (go doc test2json), as far as it is used.
type event struct {
	Action     string
	Package    string
	ImportPath string // instead of Package, for builds
	Test       string
	Output     string
	Elapsed    float64 // seconds
}

type report struct {
	out      io.Writer
	output   map[string][]string // of what is still running: package, or package and test
	counts   map[string]int      // tests by how they ended
	packages int
	skipped  []string
	failed   []string
}

func newReport(out io.Writer) *report {
	return &report{out: out, output: map[string][]string{}, counts: map[string]int{}}
}

func (r *report) read(events io.Reader) error {
	decoder := json.NewDecoder(events)
	for {
		var e event
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			_, copyErr := io.Copy(r.out, io.MultiReader(decoder.Buffered(), events)) // not JSON, so it is for people
			return errors.Join(fmt.Errorf("read the events of go test: %w", err), copyErr)
		}
		r.take(e)
	}
}

func (r *report) take(e event) {
	name := strings.TrimSpace(e.Package + " " + e.Test)
	switch e.Action {
	case "output":
		r.output[name] = append(r.output[name], e.Output)
	case "build-output":
		r.print(e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
		} else {
			r.endTest(e, name)
		}
		delete(r.output, name)
	}
}

func (r *report) endTest(e event, name string) {
	r.counts[e.Action]++
	switch e.Action {
	case "fail":
		r.failed = append(r.failed, name)
		r.print(r.output[name]...)
	case "skip":
		r.skipped = append(r.skipped, name)
	}
}

func (r *report) endPackage(e event) {
	switch e.Action {
	case "fail":
		r.packages++
		r.failed = append(r.failed, e.Package)
		for name, lines := range r.output { // of tests that did not get to their end
			if strings.HasPrefix(name, e.Package+" ") {
				r.print(lines...)
				delete(r.output, name)
			}
		}
		r.print(r.output[e.Package]...)
	case "pass":
		r.packages++
		r.print(fmt.Sprintf("ok    %-60s %6.1fs\n", e.Package, e.Elapsed))
	}
}

// summary prints the last lines, and returns whether all is well.
func (r *report) summary(took time.Duration) bool {
	slices.Sort(r.failed)
	for _, name := range slices.Compact(r.failed) {
		r.print("FAIL  " + name + "\n")
	}
	for _, name := range r.skipped {
		r.print("SKIP  " + name + " (a test that needs something absent has to fail and say so)\n")
	}
	r.print(fmt.Sprintf("tests: %d passed, %d failed, %d skipped, in %d packages and %s\n",
		r.counts["pass"], r.counts["fail"], r.counts["skip"], r.packages, took.Round(time.Second)))
	return len(r.failed) == 0 && len(r.skipped) == 0
}

func (r *report) print(lines ...string) {
	for _, line := range lines {
		_, _ = io.WriteString(r.out, line)
	}
}

package main

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/destination"
)

// A settings file fills what neither a flag nor a variable gives, and nothing that is read at the start alone.
func TestASettingsFileFillsWhatWasGivenNowhereElse(t *testing.T) {
	t.Parallel()
	s := &site{}
	d := &dispatching{site: s}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	declare(flags, []settings{&s.to, &s.log, d})
	if err := flags.Parse([]string{"--attempt-retention=5h"}); err != nil {
		t.Fatal(err)
	}
	environment := func(name string) (string, bool) {
		return "6h", name == "POSTRIDER_DEAD_LETTER_RETENTION"
	}
	text := `
destination-allowed-cidrs: [10.1.0.0/16, "fd00::/8"]
destination-denied-cidrs: 10.1.2.0/24
destination-allowed-ports: [443, 1000000]
destination-allow-http: true
log-level: warn
event-retention: 100h
attempt-retention: 9h
dead-letter-retention: 9h
`
	if err := errors.Join(fromEnvironment(flags, environment), fileOf([]byte(text))(flags)); err != nil {
		t.Fatal(err)
	}
	want := destination.Config{AllowedCIDRs: []string{"10.1.0.0/16", "fd00::/8"}, DeniedCIDRs: []string{"10.1.2.0/24"}, AllowedPorts: []int{443, 1_000_000}, AllowHTTP: true}
	if difference := cmp.Diff(want, s.to.config); difference != "" {
		t.Error(difference)
	}
	c := d.config
	if s.log.level != "warn" || c.EventRetention != 100*time.Hour || c.AttemptRetention != 5*time.Hour || c.DeadLetterRetention != 6*time.Hour {
		t.Errorf("got level %s, retention %v, %v, %v", s.log.level, c.EventRetention, c.AttemptRetention, c.DeadLetterRetention)
	}
}

func TestAllProblemsOfASettingsFileAreNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		text string
		says []string
	}{
		"no YAML":    {"a: [", []string{"is no YAML"}},
		"no mapping": {"- a", []string{"is no mapping"}},
		"twice":      {"log-level: info\nlog-level: warn", []string{"log-level"}},
		"nested":     {"destination: {allow-http: true}", []string{"destination: is neither a value nor a list"}},
		"several": {"no-such: 1\nsenders: 5\nevent-retention: soon\nlog-level: [a, b]", []string{
			`there is no setting "no-such"`, "senders is read at the start alone; give it as --senders or POSTRIDER_SENDERS",
			"event-retention: the value is no duration", "log-level: the value is no string",
		}},
	} {
		s := &site{}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		declare(flags, []settings{&s.to, &s.log, &dispatching{site: s}})
		err := fileOf([]byte(c.text))(flags)
		if err == nil {
			t.Errorf("%s: it was taken", name)
			continue
		}
		for _, want := range c.says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %q is not named in:\n%v", name, want, err)
			}
		}
	}
	if err := fileOf(nil)(pflag.NewFlagSet("", pflag.ContinueOnError)); err != nil {
		t.Errorf("an empty file: got %v", err)
	}
}

// noted is a part that takes note of what is put in force.
type noted struct {
	limit int

	mutex  sync.Mutex
	forced []int
	said   strings.Builder
}

// Write takes what is logged.
func (n *noted) Write(line []byte) (int, error) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return n.said.Write(line)
}

func (n *noted) so() (forced []int, said string) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return slices.Clone(n.forced), n.said.String()
}

func (n *noted) flags(f *pflag.FlagSet) {
	f.IntVar(&n.limit, "limit", 1, "")
	mayChange(f, "limit")
}

func (n *noted) validate() error {
	if n.limit > 100 {
		return errors.New("limit: is above 100; lower it")
	}
	return nil
}

func (*noted) name() string                                  { return "noted" }
func (*noted) needs() needs                                  { return needs{} }
func (*noted) build(context.Context, ground) (runner, error) { return nil, errors.ErrUnsupported }
func (*noted) Run(context.Context) error                     { return nil }
func (*noted) Ready() error                                  { return nil }

func (n *noted) change(running runner, _ *destination.Policy) error {
	first := running.(*noted) //nolint:errcheck,forcetypeassert // the test's own
	first.mutex.Lock()
	defer first.mutex.Unlock()
	first.forced = append(first.forced, n.limit)
	return nil
}

// A good file is put in force, a bad one is refused as a whole, said so once, and shown, until it is good again.
func TestAChangedSettingsFileIsPutInForceOrRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "settings.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("limit: 2\n")
	synctest.Test(t, func(t *testing.T) {
		first := &noted{}
		s := &site{follow: following{file: path}}
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		declare(flags, []settings{first})
		if err := s.follow.begin(flags); err != nil || first.limit != 2 {
			t.Fatalf("at the start: limit %d, %v", first.limit, err)
		}
		metrics := prometheus.NewRegistry()
		p := &process{log: slog.New(slog.NewTextHandler(first, nil)), metrics: metrics, first: s, now: &assembly{site: s, parts: []part{first}}, running: []runner{first}}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.follow(ctx, func(text []byte) (*assembly, error) {
				next := &noted{}
				flags := pflag.NewFlagSet("", pflag.ContinueOnError)
				declare(flags, []settings{next})
				return &assembly{site: &site{log: logging{level: "info"}}, parts: []part{next}}, resolve(flags, []settings{next}, fileOf(text))
			})
		}()
		for _, step := range []struct {
			text    string // "": the file is deleted
			forced  []int
			refused float64
			said    int // refusals in the log so far
		}{
			{"limit: 2\n", nil, 0, 0},
			{"limit: 3\n", []int{3}, 0, 0},
			{"limit: 101\n", []int{3}, 1, 1},
			{"limit: 101\n", []int{3}, 1, 1},
			{"", []int{3}, 1, 2},
			{"limit: 3\n", []int{3, 3}, 0, 2},
			{"limit: 4\n", []int{3, 3, 4}, 0, 2},
		} {
			if step.text == "" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			} else {
				write(step.text)
			}
			time.Sleep(3 * followEvery / 2)
			synctest.Wait()
			forced, said := first.so()
			if difference := cmp.Diff(step.forced, forced); difference != "" {
				t.Errorf("after %q: %s", step.text, difference)
			}
			if got := gauge(t, metrics, "postrider_settings_refused"); got != step.refused {
				t.Errorf("after %q: postrider_settings_refused is %v, want %v", step.text, got, step.refused)
			}
			if got := strings.Count(said, "cannot be used"); got != step.said {
				t.Errorf("after %q: %d refusals were logged, want %d", step.text, got, step.said)
			}
		}
		if _, said := first.so(); !strings.Contains(said, "is above 100; lower it") {
			t.Errorf("the log does not say what is wrong:\n%s", said)
		}
		stop()
		<-ended
	})
}

func gauge(t *testing.T, from prometheus.Gatherer, name string) float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

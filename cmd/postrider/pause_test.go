package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/destination"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

func TestMain(m *testing.M) { localstack.Main(m) }

// command runs one on a database and returns what it prints.
func command(t *testing.T, dsn string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := root()
	c.SetArgs(append(args, "--database-url="+dsn, "--log-level=error"))
	c.SetOut(&out)
	err := c.ExecuteContext(t.Context())
	return out.String(), err
}

func openStore(t *testing.T, dsn string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// The commands run in a pod of the controller, whose variables are about the release and not about what is to be paused.
func TestPauseAndResume(t *testing.T) {
	t.Setenv("POSTRIDER_NAMESPACE", "postrider-system")
	t.Setenv("POSTRIDER_REASON", "of something else")
	dsn := localstack.Database(t)
	s := openStore(t, dsn)
	for _, name := range []string{"billing", "orders"} {
		if _, err := s.ApplyEndpoint(t.Context(), endpointIn(name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, step := range []struct {
		args string
		want []string // a line each begins so
	}{
		{"pause --show", []string{"nothing is paused"}},
		{"pause --reason=leaked", []string{"the installation is paused since 20"}},
		{"pause --namespace=billing", []string{"namespace billing is paused since 20"}},
		{"pause --namespace=billign", []string{"namespace billign is paused since 20", "namespace billign has no endpoints that get events; those that come are held too"}},
		{"pause --show", []string{"the installation is paused since 20", "namespace billign is", "namespace billing is"}},
		{"resume --namespace=billign", []string{"namespace billign is resumed", "the installation is paused since 20", "namespace billing is paused since 20"}},
		{"resume", []string{"the installation is resumed", "namespace billing is paused since 20"}},
		{"resume", []string{"the installation was not paused", "namespace billing is paused since 20"}},
		{"resume --namespace=orders", []string{"namespace orders was not paused", "namespace billing is paused since 20"}},
		{"resume --namespace=billing", []string{"namespace billing is resumed"}},
	} {
		out, err := command(t, dsn, strings.Fields(step.args)...)
		lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
		if err != nil || len(lines) != len(step.want) {
			t.Fatalf("%s: got %q, %v; want %q", step.args, lines, err, step.want)
		}
		for i, want := range step.want {
			if !strings.HasPrefix(lines[i], want) {
				t.Errorf("%s: got %q, want %q", step.args, lines[i], want)
			}
		}
		if step.args == "pause --reason=leaked" && !strings.HasSuffix(lines[0], "Z: leaked") {
			t.Errorf("the reason is not repeated in %q", lines[0])
		}
	}
}

func endpointIn(namespace string) store.EndpointChange {
	return store.EndpointChange{
		PublicID: uuid.New(), Namespace: namespace, Name: "a", NamespaceUID: "uid-" + namespace, UID: namespace, Generation: 1,
		Spec: store.EndpointSpec{
			State: store.Enabled, URL: "https://hooks.example.com", EventTypes: []string{"*"}, Timeout: time.Second, MaxConcurrency: 1, Payload: "Raw",
			MaxAttempts: 1, BackoffFactor: 1, FailureThreshold: 1,
		},
	}
}

func TestAPauseThatIsNotMeantIsRefused(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"pause --namespace=":                          "--namespace",
		"pause --namespace=Billing":                   "--namespace",
		"pause billing":                               "billing",
		"pause --show --namespace=billing":            "--show",
		"pause --show --reason=x":                     "--show",
		"pause --reason=" + strings.Repeat("x", 257):  "--reason: has 257 characters",
		"pause --reason=a\u0007b":                     "--reason",
		"resume --namespace=":                         "--namespace",
		"resume --timeout=0s":                         "--timeout",
		"dispatcher --start-paused=a\u0007b":          "--start-paused",
		"pause --database-url-file=/there/is/nothing": "--database-url",
	} {
		_, err := command(t, "postgres://127.0.0.1:1/none", strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want it to name %s", args, err, want)
		}
	}
}

// A database that is away is waited for, and not for ever.
func TestAPauseGivesUpOnADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	_, err := command(t, "postgres://127.0.0.1:1/none", "pause", "--timeout=300ms")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want that its time is over", err)
	}
}

// The installation is paused before there is a dispatcher, once for each token.
func TestADispatcherStartsPaused(t *testing.T) {
	t.Parallel()
	s := openStore(t, localstack.Database(t))
	text, err := keyring.Generate("a")
	if err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	policy, err := destination.New(destination.Config{})
	if err != nil {
		t.Fatal(err)
	}
	start := func(token string) {
		t.Helper()
		on := ground{log: slog.New(slog.DiscardHandler), metrics: prometheus.NewRegistry(), store: s, keyring: ring, policy: policy}
		if _, err := (&dispatching{start: token, site: &site{}}).build(t.Context(), on); err != nil {
			t.Fatal(err)
		}
	}
	paused := func() string {
		t.Helper()
		pauses, err := s.Pauses(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if len(pauses) == 0 {
			return ""
		}
		return pauses[0].Reason
	}
	start("")
	if got := paused(); got != "" {
		t.Errorf("without a token it is paused: %s", got)
	}
	start("2026-11-29")
	if got := paused(); !strings.Contains(got, "2026-11-29") {
		t.Errorf("it is paused for %q, want the token", got)
	}
	if _, err := s.Resume(t.Context(), store.WholeInstallation); err != nil {
		t.Fatal(err)
	}
	start("2026-11-29")
	if got := paused(); got != "" {
		t.Errorf("a restart paused it again: %s", got)
	}
}

// Who breaks it off must not take it for done.
func TestAnInterruptedPauseFails(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c := root()
	c.SetArgs([]string{"pause", "--database-url=postgres://127.0.0.1:1/none"})
	if err := c.ExecuteContext(ctx); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want an error that main reports", err)
	}
}

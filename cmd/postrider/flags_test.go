package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestAFlagWinsOverItsVariable(t *testing.T) {
	t.Parallel()
	var d database
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	d.flags(flags)
	if err := flags.Parse([]string{"--database-max-conns", "7"}); err != nil {
		t.Fatal(err)
	}
	environment := map[string]string{"POSTRIDER_DATABASE_URL": "postgres://db/x", "POSTRIDER_DATABASE_MAX_CONNS": "9"}
	if err := fromEnvironment(flags, func(name string) (string, bool) { v, ok := environment[name]; return v, ok }); err != nil {
		t.Fatal(err)
	}
	if d.url != "postgres://db/x" || d.maxConns != 7 {
		t.Errorf("got %+v", d)
	}
}

func TestAVariableOfTheWrongFormIsNamedAndNotShown(t *testing.T) {
	t.Parallel()
	var d database
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	d.flags(flags)
	err := fromEnvironment(flags, func(name string) (string, bool) { return "s3cret", name == "POSTRIDER_DATABASE_MAX_CONNS" })
	if err == nil || !strings.Contains(err.Error(), "POSTRIDER_DATABASE_MAX_CONNS") || strings.Contains(err.Error(), "s3cret") {
		t.Errorf("got %v", err)
	}
}

// All problems of a configuration are reported at once, before anything is started.
func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	for _, name := range []string{"POSTRIDER_DATABASE_URL", "POSTRIDER_NAMESPACE", "POSTRIDER_KEYRING_FILE"} {
		t.Setenv(name, "")
	}
	c := root()
	c.SetArgs([]string{"all", "--lease=1s", "--body-limit=1", "--log-level=loud", "--destination-allowed-cidrs=10.0.0.0/99", "--default-max-attempts=0"})
	c.SetOut(&bytes.Buffer{})
	err := c.ExecuteContext(t.Context())
	if err == nil {
		t.Fatal("a configuration full of problems was accepted")
	}
	for _, want := range []string{"--database-url", "--namespace", "--keyring-file", "lease", "body-limit", "--log-level", "10.0.0.0/99", "maxAttempts"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not named in:\n%v", want, err)
		}
	}
}

// A lease must outlast the longest request: the ceiling of both is one flag.
func TestALeaseShorterThanARequestIsRefused(t *testing.T) {
	t.Setenv("POSTRIDER_DATABASE_URL", "postgres://db/x")
	t.Setenv("POSTRIDER_NAMESPACE", "postrider-system")
	t.Setenv("POSTRIDER_KEYRING_FILE", "keyring")
	c := root()
	c.SetArgs([]string{"dispatcher", "--limit-timeout=30s", "--lease=30s"})
	err := c.ExecuteContext(t.Context())
	if err == nil || !strings.Contains(err.Error(), "lease: 30s would end while a request may still run") {
		t.Errorf("got %v", err)
	}
}

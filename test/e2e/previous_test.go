package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestThePreviousReleaseAndThePresentSchemaAreNamed(t *testing.T) {
	t.Parallel()
	if revision, err := previousRevision(); err != nil {
		t.Errorf("got %q, %v", revision, err)
	}
	if newest, err := newestMigration("../.."); err != nil || newest < 2 {
		t.Errorf("the newest migration is %d (%v)", newest, err)
	}
}

func TestAnOlderReleaseIsTakenOutOfGit(t *testing.T) {
	t.Parallel()
	w := &world{top: t.TempDir()}
	chart := filepath.Join(w.top, "charts/postrider/Chart.yaml")
	write(t, chart, "name: postrider\nversion: 0.1.0\nappVersion: 0.1.0\n")
	git(t, w.top, "init", "--quiet")
	git(t, w.top, "add", ".")
	git(t, w.top, "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "-m", "first")
	revision := git(t, w.top, "rev-parse", "HEAD")
	write(t, chart, "name: postrider\nversion: 0.2.0\nappVersion: 0.2.0\n")

	folder := filepath.Join(w.top, "cache", revision[:12])
	if err := w.checkOut(t.Context(), revision, folder); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(folder, "charts/postrider/Chart.yaml"))
	if want := "name: postrider\nversion: 0.0.0-previous\nappVersion: 0.0.0-previous\n"; err != nil || string(text) != want {
		t.Errorf("got %q, %v, want %q", text, err, want)
	}

	// As in a shallow clone.
	missing := strings.Repeat("0a", 20)
	err = w.checkOut(t.Context(), missing, filepath.Join(w.top, "cache", missing))
	if err == nil || !strings.Contains(err.Error(), "git fetch --depth=1 origin "+missing) {
		t.Errorf("got %v, want the command that gets the commit", err)
	}
	if left, err := os.ReadDir(filepath.Dir(folder)); err != nil || len(left) != 1 {
		t.Errorf("left are %v (%v), want the first release alone", left, err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func git(t *testing.T, folder string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "git", append([]string{"-C", folder}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

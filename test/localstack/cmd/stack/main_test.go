package main

import (
	"bufio"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheExitStatusIsTheCommands(t *testing.T) {
	t.Parallel()
	for script, want := range map[string]int{"exit 0": 0, "exit 7": 7, "kill -9 $$": 1} {
		status, err := command(t.Context(), []string{"sh", "-c", script}, nil)
		if status != want || err != nil {
			t.Errorf("%q: got status %d and %v, want %d", script, status, err, want)
		}
	}
	if status, err := command(t.Context(), []string{"/nonexistent"}, nil); status == 0 || err == nil {
		t.Errorf("a command that is not there: got status %d and %v, want an error", status, err)
	}
}

func TestTheCommandSeesTheServers(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "seen")
	if status, err := command(t.Context(), []string{"sh", "-c", `echo "$ADDRESS" > "$0"`, file}, []string{"ADDRESS=here"}); status != 0 || err != nil {
		t.Fatal(status, err)
	}
	if seen, err := os.ReadFile(file); strings.TrimSpace(string(seen)) != "here" {
		t.Errorf("variable in the command: got %q and %v, want here", seen, err)
	}
}

// A signal reaches the command, and the servers are stopped only after it has ended.
func TestASignalIsPassedOnAndTheCommandWaitedFor(t *testing.T) {
	t.Parallel()
	started, done := filepath.Join(t.TempDir(), "started"), filepath.Join(t.TempDir(), "done")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		deadline := time.Now().Add(30 * time.Second)
		for time.Now().Before(deadline) {
			if file, err := os.Open(started); err == nil {
				line, _ := bufio.NewReader(file).ReadString('\n')
				_ = file.Close()
				if line != "" {
					return
				}
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	script := `trap 'echo > "$1"; exit 3' TERM; echo started > "$0"; while :; do sleep 0.05; done`
	status, err := command(ctx, []string{"sh", "-c", script, started, done}, nil)
	if status != 3 || err != nil {
		t.Errorf("got status %d and %v, want the 3 with which the command answers TERM", status, err)
	}
	if _, err := os.Stat(done); err != nil {
		t.Errorf("the command had not finished: %v", err)
	}
}

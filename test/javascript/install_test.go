package javascript_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/postrider/postrider/test/localstack"
)

const installPatience = 2 * time.Minute // it takes a second when the registry answers

// program returns where node or npm is; both are installed where we may and one is missing.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}
	if err := localstack.InstallPackages(t.Context(), os.Stderr, "nodejs", "npm"); err != nil {
		t.Fatalf("%s is not in PATH: %v", name, err)
	}
	if path, err = exec.LookPath(name); err != nil {
		t.Fatalf("after installing nodejs and npm: %v", err)
	}
	return path
}

// library returns the folder in .cache in whose node_modules the official library is.
func library(t *testing.T) string {
	t.Helper()
	top, err := localstack.Root()
	if err != nil {
		t.Fatal(err)
	}
	files, sum := map[string][]byte{}, sha256.New()
	for _, name := range []string{"package.json", "package-lock.json"} {
		if files[name], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
		_, _ = sum.Write(files[name]) // which does not fail
	}
	cache := filepath.Join(top, ".cache/javascript")
	dir := filepath.Join(cache, hex.EncodeToString(sum.Sum(nil))[:12])
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	// Installed elsewhere and renamed, so that whatever has the name is complete.
	part, err := os.MkdirTemp(cache, "part-")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(part) }()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(part, name), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	npm := program(t, "npm")
	ctx, cancel := context.WithTimeout(t.Context(), installPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
	cmd.Dir, cmd.WaitDelay = part, 5*time.Second
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm ci of the official library, within %v: %v\n%s", installPatience, err, out)
	}
	if err := os.Rename(part, dir); err != nil && !errors.Is(err, fs.ErrExist) { // else another process was first
		t.Fatal(err)
	}
	return dir
}

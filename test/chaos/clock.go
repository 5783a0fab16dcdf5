package chaos

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/postrider/postrider/test/localstack"
)

// shiftVariable tells a process how far its wall clock is off, as in "1h".
const shiftVariable = "POSTRIDER_TEST_CLOCK_SHIFT"

const shiftSource = `package time

import "syscall"

var wallShift = func() int64 {
	text, _ := syscall.Getenv("` + shiftVariable + `")
	shift, _ := ParseDuration(text)
	return int64(shift / Second)
}()
`

// What time.Now begins with, and what it begins with in the shifted program.
const (
	nowBegins = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	nowShifts = nowBegins + "\tsec += wallShift\n"
)

// shiftedProgram builds Postrider with a wall clock that is wrong: the same sources over a package time that adds to what
// time.Now says. Rejected: preloading a library, since Go asks the kernel and not the C library; setting the machine's
// clock, which is everybody's; a time namespace, which has no wall clock.
func shiftedProgram(ctx context.Context, progress io.Writer) (string, error) {
	top, err := localstack.Root()
	if err != nil {
		return "", err
	}
	folder := filepath.Join(top, ".cache/chaos/clock")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", fmt.Errorf("make a folder for the shifted clock: %w", err)
	}
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("find Go's own sources: %w", err)
	}
	library := filepath.Join(strings.TrimSpace(string(out)), "src/time")
	text, err := os.ReadFile(filepath.Join(library, "time.go"))
	if err != nil {
		return "", fmt.Errorf("read Go's own sources: %w", err)
	}
	if !strings.Contains(string(text), nowBegins) {
		return "", fmt.Errorf("%s has another time.Now than %s expects: change nowBegins in test/chaos/clock.go", library, runtime.Version())
	}
	files := map[string]string{"time.go": strings.Replace(string(text), nowBegins, nowShifts, 1), "shift.go": shiftSource}
	replace := map[string]string{}
	for name, content := range files {
		path := filepath.Join(folder, name+".txt") // no Go package of this module
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return "", fmt.Errorf("write the shifted clock: %w", err)
		}
		replace[filepath.Join(library, name)] = path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("write the shifted clock: %w", err)
	}
	overlayFile, program := filepath.Join(folder, "overlay.json"), filepath.Join(folder, "postrider")
	if err := os.WriteFile(overlayFile, overlay, 0o644); err != nil {
		return "", fmt.Errorf("write the shifted clock: %w", err)
	}
	_, _ = fmt.Fprintln(progress, "chaos: building postrider with a shifted clock (2 to 4 minutes the first time, else seconds)")
	build := exec.CommandContext(ctx, "go", "build", "-overlay", overlayFile, "-o", program, "./cmd/postrider")
	build.Dir, build.Env = top, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build postrider with a shifted clock: %w\n%s", err, out)
	}
	return program, nil
}

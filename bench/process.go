package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// child is a process of ours. It dies with us, however we end; its output goes to a file.
type child struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended; err is set by then
	err  error
}

// launch starts a program with an environment of its own: nothing of ours reaches it but PATH.
func launch(dir, name, program string, args, env []string) (*child, error) {
	out, err := os.CreateTemp(dir, name+"-*.log")
	if err != nil {
		return nil, fmt.Errorf("make the log of %s: %w", name, err)
	}
	defer func() { _ = out.Close() }()
	cmd := exec.CommandContext(context.Background(), program, args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	c := &child{name: name, log: out.Name(), cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the kernel takes this thread for the parent, so it must live as long as the child
		err := cmd.Start()
		started <- err
		if err == nil {
			c.err = cmd.Wait()
			close(c.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// stop asks the child to end, and kills it when it does not.
func (c *child) stop() {
	if c == nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.done
	}
}

// line waits for a line of output that the function takes.
func (c *child) line(ctx context.Context, take func([]byte) bool) error {
	return c.poll(ctx, func() (bool, error) {
		text, err := os.ReadFile(c.log)
		if err != nil {
			return false, err
		}
		for line := range bytes.Lines(text) {
			if bytes.HasSuffix(line, []byte("\n")) && take(line) {
				return true, nil
			}
		}
		return false, nil
	})
}

// poll asks again and again until the answer is yes, the child has ended or a minute is over.
func (c *child) poll(ctx context.Context, ask func() (bool, error)) error {
	err := poll(ctx, time.Minute, 10*time.Millisecond, func() (bool, error) {
		select {
		case <-c.done:
			return false, fmt.Errorf("%s has ended: %w", c.name, errors.Join(c.err, errEnded))
		default:
		}
		return ask()
	})
	if err != nil {
		return fmt.Errorf("wait for %s: %w; its last lines:\n%s", c.name, err, tail(c.log))
	}
	return nil
}

var (
	errEnded = errors.New("it was not meant to")
	errSlow  = errors.New("it takes too long")
)

// poll asks every so often until the answer is yes.
func poll(ctx context.Context, patience, every time.Duration, ask func() (bool, error)) error {
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		if ok, err := ask(); err != nil || ok {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return errSlow
		case <-tick.C:
		}
	}
}

// rest waits, and reports the context's error if that ends first.
func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func tail(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// clockTick is what /proc counts CPU time in: the same on every Linux.
const clockTick = 10 * time.Millisecond

// cpuTime is what a process has used so far, and with children what those that it has waited for had.
func cpuTime(pid int, children bool) (time.Duration, error) {
	fields, err := statOf(pid)
	if err != nil {
		return 0, err
	}
	last := 15 // utime, stime; then those of waited-for children
	if children {
		last = 17
	}
	var ticks int64
	for _, field := range fields[14:min(last+1, len(fields))] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read the CPU time of a process: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// statOf returns the fields of /proc/PID/stat, numbered as in proc(5): the first is 1.
func statOf(pid int) ([]string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return nil, fmt.Errorf("read about a process: %w", err)
	}
	_, rest, ok := strings.Cut(string(text), ") ") // the name may hold blanks
	if !ok {
		return nil, fmt.Errorf("read about process %d: unknown form", pid)
	}
	fields := append([]string{"", "", ""}, strings.Fields(rest)...)
	if len(fields) < 18 {
		return nil, fmt.Errorf("read about process %d: unknown form", pid)
	}
	return fields, nil
}

// familyTime is the CPU time of a process and its children, the ended ones too.
func familyTime(pid int) (time.Duration, error) {
	total, err := cpuTime(pid, true)
	if err != nil {
		return 0, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, fmt.Errorf("list processes: %w", err)
	}
	for _, entry := range entries {
		one, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		if fields, err := statOf(one); err != nil || fields[4] != strconv.Itoa(pid) {
			continue // gone, or somebody else's
		}
		used, err := cpuTime(one, false)
		if err != nil {
			continue // gone
		}
		total += used
	}
	return total, nil
}

// memory returns a figure of /proc/PID/status in MiB: VmRSS is what is resident now, VmHWM the most that ever was.
func memory(pid int, field string) (float64, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return 0, fmt.Errorf("read the memory of a process: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		var kib float64
		if _, err := fmt.Sscanf(line, field+": %f kB", &kib); err == nil {
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("read the memory of a process: no %s", field)
}

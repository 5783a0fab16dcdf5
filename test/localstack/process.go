package localstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// command says how to start a server process.
type command struct {
	path string
	args []string
	dir  string              // working directory; empty means the current one
	env  []string            // whole environment
	user *syscall.Credential // nil means the current user
	log  string              // file that takes stdout and stderr, appended to

	// orphaned is what the kernel sends the child when this process is gone, however it went.
	orphaned syscall.Signal
}

// process is a running child. It dies with this process, it does not get the terminal's Ctrl-C (the owner decides
// when and in which order to stop), and a goroutine waits for it until it has ended.
type process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the child has been waited for; err is set by then
	err  error
}

// start takes no context: a child is ended by stop or kill, and its owner outlives the call that started it.
func start(c command) (*process, error) {
	out, err := os.OpenFile(c.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", filepath.Base(c.path), err)
	}
	defer func() { _ = out.Close() }()

	cmd := exec.CommandContext(context.Background(), c.path, c.args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = c.dir, c.env, io.Writer(out), io.Writer(out)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: c.user, Pdeathsig: c.orphaned}

	p := &process{name: filepath.Base(c.path), log: c.log, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		// The kernel takes the thread that forked for the parent, so that thread must live as long as the child. It is
		// not unlocked: it ends with this goroutine, when the child is gone.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		p.err = cmd.Wait()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.path, err)
	}
	return p, nil
}

// stop asks the child to end, kills it after the grace period, and returns when it is gone.
func (p *process) stop(ask syscall.Signal, grace time.Duration) {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(ask)
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
	}
}

// kill ends the child at once and returns when it is gone.
func (p *process) kill() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// children are the processes that the child has started and that are there now.
func (p *process) children() (pids []int) {
	if !p.running() {
		return nil
	}
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", p.cmd.Process.Pid)) // the pattern is well-formed
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func (p *process) running() bool {
	if p == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// await polls ready until it returns nil. It fails early when the child ends, and names the child's last words.
func (p *process) await(ctx context.Context, patience time.Duration, ready func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(25 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if err := ready(ctx); err == nil {
			return nil
		} else if ctx.Err() == nil {
			last = err
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was ready (%w); its last lines:\n%s", p.name, exitReason(p.err), tail(p.log, 20))
		case <-ctx.Done():
			return fmt.Errorf("%s was not ready: %w; its last lines:\n%s", p.name, errors.Join(context.Cause(ctx), last), tail(p.log, 20))
		case <-tick.C:
		}
	}
}

func exitReason(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// tail returns the last lines of a file, for messages, indented.
func tail(file string, lines int) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	return lastLines(string(text), lines)
}

func lastLines(text string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return "  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}

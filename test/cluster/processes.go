package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// children are the processes of the node, of which it is the first: those whose parent has ended become its own. So it waits
// for whichever ends, which os/exec cannot be used beside.
type children struct {
	mutex   sync.Mutex
	waiting map[int]chan syscall.WaitStatus
	started chan struct{}
}

func newChildren() *children {
	c := &children{waiting: map[int]chan syscall.WaitStatus{}, started: make(chan struct{}, 1)}
	go c.reap() // to the end of the process
	return c
}

func (c *children) reap() {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil: // there is none to wait for
			select {
			case <-c.started:
			case <-time.After(time.Second):
			}
			continue
		}
		c.mutex.Lock()
		if ended := c.waiting[pid]; ended != nil {
			ended <- status
			delete(c.waiting, pid)
		}
		c.mutex.Unlock()
	}
}

// start runs a program. Its output is appended to a log, and its end is told on the channel.
func (c *children) start(log, path string, args ...string) (<-chan syscall.WaitStatus, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log of %s: %w", filepath.Base(path), err)
	}
	defer func() { _ = out.Close() }()
	none, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = none.Close() }()

	c.mutex.Lock() // so that it cannot be waited for before it is known
	defer c.mutex.Unlock()
	pid, err := syscall.ForkExec(path, append([]string{path}, args...), &syscall.ProcAttr{
		Dir: "/", Env: []string{"PATH=" + programsFolder + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/run"},
		Files: []uintptr{none.Fd(), out.Fd(), out.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	ended := make(chan syscall.WaitStatus, 1)
	c.waiting[pid] = ended
	select {
	case c.started <- struct{}{}:
	default:
	}
	return ended, nil
}

// run runs a program to its end.
func (c *children) run(log, path string, args ...string) error {
	ended, err := c.start(log, path, args...)
	if err != nil {
		return err
	}
	if status := <-ended; status.ExitStatus() != 0 {
		return fmt.Errorf("%s %v: %s; see %s", path, args, describe(status), log)
	}
	return nil
}

func describe(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "ended by " + status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}

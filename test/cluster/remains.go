package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// end kills the node of a folder, if there is one, and removes what remains of it.
func end(folder string) error {
	s, up, err := running(folder)
	if err != nil {
		return err
	}
	if up {
		// With the first process the kernel ends all others of its namespace, before the lock is released.
		if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("end the node, process %d: %w", s.PID, err)
		}
		deadline := time.Now().Add(stopPatience)
		for up {
			if time.Now().After(deadline) {
				return fmt.Errorf("the node, process %d, does not end", s.PID)
			}
			time.Sleep(50 * time.Millisecond)
			if _, up, err = running(folder); err != nil {
				return err
			}
		}
	}
	return remove(folder)
}

// Remains lists what is there of a folder's node: files, cgroups, processes, mounts. After Down it is nothing.
func Remains(folder string) ([]string, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	var found []string
	if _, err := os.Lstat(folder); !errors.Is(err, fs.ErrNotExist) {
		found = append(found, "folder "+folder)
	}
	hierarchies, err := hierarchies()
	if err != nil {
		return nil, err
	}
	for _, h := range hierarchies {
		if dir := filepath.Join(h.path, cgroupName(folder)); exists(dir) {
			found = append(found, "cgroup "+dir)
		}
	}
	// Whoever is in the node's namespaces has its mounts, which name the folder.
	processes, err := filepath.Glob("/proc/[0-9]*/mountinfo")
	if err != nil {
		return nil, err
	}
	for _, process := range processes {
		mounts, err := os.ReadFile(process)
		if err == nil && strings.Contains(string(mounts), folder+"/") { // else it has ended meanwhile
			found = append(found, "process or mount "+process)
		}
	}
	return found, nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// running says whether a node runs in the folder: one holds the lock.
func running(folder string) (state, bool, error) {
	if _, err := os.Stat(filepath.Join(folder, lockName)); errors.Is(err, fs.ErrNotExist) {
		return state{}, false, nil
	}
	lock, err := lockFolder(folder)
	if err == nil {
		return state{}, false, lock.Close()
	}
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return state{}, false, err
	}
	// It has the lock a moment before it tells its number.
	for deadline := time.Now().Add(numberPatience); ; time.Sleep(20 * time.Millisecond) {
		s, err := readState(folder)
		if err == nil && isProcess(s) {
			return s, true, nil
		}
		if again, err := lockFolder(folder); err == nil { // it has ended meanwhile
			return state{}, false, again.Close()
		}
		if time.Now().After(deadline) {
			return state{}, false, errors.Join(fmt.Errorf("a node runs in %s and does not say which process it is", folder), err)
		}
	}
}

const numberPatience = 3 * time.Second

// isProcess says whether the process is the one that wrote the state, and not another that got its number.
func isProcess(s state) bool {
	started, err := startTime(s.PID)
	return err == nil && started == s.Started
}

// complete says that Up was not cut off.
func complete(folder string) bool {
	return exists(filepath.Join(folder, completeName))
}

func readState(folder string) (state, error) {
	text, err := os.ReadFile(filepath.Join(folder, "node", stateName))
	if err != nil {
		return state{}, fmt.Errorf("read the node's state: %w", err)
	}
	var s state
	if err := json.Unmarshal(text, &s); err != nil {
		return state{}, fmt.Errorf("read the node's state: %w", err)
	}
	return s, nil
}

// startTime of a process, in clock ticks since boot.
func startTime(pid int) (string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", fmt.Errorf("look at process %d: %w", pid, err)
	}
	// The name may have spaces; what follows it has not.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 20 {
		return "", fmt.Errorf("look at process %d: %q", pid, text)
	}
	return fields[19], nil
}

// remove deletes what remains of a node that has ended.
func remove(folder string) error {
	if err := removeCgroups(cgroupName(folder)); err != nil {
		return err
	}
	// Its mounts were in a namespace that is gone. Should one be in ours by whatever mistake, deleting would go through it.
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	if strings.Contains(string(mounts), " "+folder+"/") {
		return fmt.Errorf("something is mounted below %s; nothing is deleted", folder)
	}
	if err := os.RemoveAll(folder); err != nil {
		return fmt.Errorf("delete the node's folder: %w", err)
	}
	return nil
}

// alone keeps Up and Down of one folder from meeting.
func alone(ctx context.Context, folder string) (func(), error) {
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(folder+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the cluster's folder: %w", err)
	}
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = lock.Close() }, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another process brings the cluster up or down: %w", ctx.Err()), lock.Close())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// lockFolder takes the lock that tells that a node runs in the folder. The kernel releases it however the node ends.
func lockFolder(folder string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(folder, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the node's lock: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", folder, err), lock.Close())
	}
	return lock, nil
}

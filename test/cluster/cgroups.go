package cluster

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// cgroupName is the cgroup that the pods of the node in a folder live below, in every hierarchy.
func cgroupName(folder string) string {
	sum := sha256.Sum256([]byte(folder))
	return "postrider-cluster-" + hex.EncodeToString(sum[:4])
}

// makeCgroups makes it: the kubelet wants to find it.
func makeCgroups(name string) error {
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range hierarchies {
		if h.unified {
			// Controllers must be passed down to be had below. Those that cannot be are missed by the kubelet, which says so.
			if controllers, err := os.ReadFile(filepath.Join(h.path, "cgroup.controllers")); err == nil {
				for controller := range strings.FieldsSeq(string(controllers)) {
					_ = os.WriteFile(filepath.Join(h.path, "cgroup.subtree_control"), []byte("+"+controller), 0)
				}
			}
		}
		dir := filepath.Join(h.path, name)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make a cgroup: %w", err)
		}
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} { // of the first version, where they are not inherited
			value, err := os.ReadFile(filepath.Join(h.path, file))
			if err == nil && !h.unified {
				err = os.WriteFile(filepath.Join(dir, file), bytes.TrimSpace(value), 0)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("give the cgroup its processors: %w", err)
			}
		}
	}
	return nil
}

const cgroupPatience = 10 * time.Second

// removeCgroups removes it and all below. Its processes are gone, but the kernel may still be at it.
func removeCgroups(name string) error {
	hierarchies, err := hierarchies()
	if err != nil {
		return err
	}
	deadline := time.Now().Add(cgroupPatience)
	for _, h := range hierarchies {
		for {
			err := removeCgroup(filepath.Join(h.path, name))
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("remove a cgroup: %w", err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	return nil
}

// removeCgroup removes the folders from the innermost on; the files in them are not files to remove.
func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.IsDir() {
			if err := removeCgroup(filepath.Join(dir, entry.Name())); err != nil {
				return err
			}
		}
	}
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: %w", dir, err)
	}
	return nil
}

type hierarchy struct {
	path    string
	unified bool // of the second version
}

func hierarchies() ([]hierarchy, error) {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return nil, fmt.Errorf("find the cgroups: %w", err)
	}
	var found []hierarchy
	for lines := bufio.NewScanner(bytes.NewReader(mounts)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) > 2 && strings.HasPrefix(fields[2], "cgroup") {
			found = append(found, hierarchy{fields[1], fields[2] == "cgroup2"})
		}
	}
	if len(found) == 0 {
		return nil, errors.New("this machine has no cgroups mounted, without which no container runs")
	}
	return found, nil
}

package localstack

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	folderPrefix = "postrider-stack-"
	lockName     = "lock"
	memoryDir    = "/dev/shm"

	// Less than a big test needs would make Postgres fail where a disk would have done.
	enoughMemory = 4 << 30
)

// folder is a temporary directory that belongs to this process. Whoever starts one removes those whose owner is gone:
// a killed test leaves no process behind, but cannot remove its files.
type folder struct {
	path string
	lock *os.File // held with flock, which the kernel releases however the owner ends
}

// newFolder makes a directory that every user may pass through, since Postgres runs as another user when we are root.
// What need not survive the machine goes to memory if there is plenty: copying a database means making 300 files, which
// takes 10 ms there and 300 ms on some disks.
func newFolder(inMemory bool) (*folder, error) {
	parent, err := passableTempDir()
	if err != nil {
		return nil, err
	}
	removeAbandoned(parent)
	removeAbandoned(memoryDir)
	if inMemory && roomInMemory() {
		parent = memoryDir
	}
	path, err := os.MkdirTemp(parent, folderPrefix)
	if err != nil {
		return nil, fmt.Errorf("make a temporary folder: %w", err)
	}
	f := &folder{path: path}
	if err := f.claim(); err != nil {
		_ = os.RemoveAll(path)
		return nil, err
	}
	return f, nil
}

// claim locks first and names the lock afterwards, so that nobody finds the lock unlocked in between.
func (f *folder) claim() error {
	if err := os.Chmod(f.path, 0o711); err != nil {
		return fmt.Errorf("open the temporary folder for other users: %w", err)
	}
	unnamed := filepath.Join(f.path, lockName+".new")
	lock, err := os.OpenFile(unnamed, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("make the folder's lock: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return fmt.Errorf("lock the folder: %w", err)
	}
	if err := os.Rename(unnamed, filepath.Join(f.path, lockName)); err != nil {
		_ = lock.Close()
		return fmt.Errorf("name the folder's lock: %w", err)
	}
	f.lock = lock
	return nil
}

func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	return errors.Join(err, f.lock.Close())
}

func removeAbandoned(parent string) {
	found, err := filepath.Glob(filepath.Join(parent, folderPrefix+"*", lockName))
	if err != nil {
		return
	}
	for _, name := range found {
		lock, err := os.OpenFile(name, os.O_RDWR, 0)
		if err != nil {
			continue // another user's, or just gone
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(name))
		}
		_ = lock.Close()
	}
}

// passableTempDir prefers the system's temporary directory. A unix socket's path may have 107 bytes, and an
// unprivileged user must be able to reach it, hence the others.
func passableTempDir() (string, error) {
	for _, dir := range []string{os.TempDir(), "/tmp", "/var/tmp"} {
		if len(dir) <= 40 && (os.Geteuid() != 0 || passable(dir)) {
			return dir, nil
		}
	}
	return "", fmt.Errorf("none of %s, /tmp and /var/tmp can be entered by an unprivileged user; set TMPDIR to a folder that can", os.TempDir())
}

// roomInMemory looks at the size of the file system (containers have a tiny one) and at what the machine has left.
func roomInMemory() bool {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memoryDir, &fs); err != nil || !passable(memoryDir) {
		return false
	}
	meminfo, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return false
	}
	var available uint64
	for line := range strings.Lines(string(meminfo)) {
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &available); err == nil {
			break
		}
	}
	return fs.Bavail*uint64(fs.Bsize) >= enoughMemory && available<<10 >= 2*enoughMemory
}

func passable(dir string) bool {
	for ; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == filepath.Dir(dir) {
			return true
		}
	}
}

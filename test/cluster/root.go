package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// settled are settings of the kernel that the kubelet would change for the whole machine. It finds them as it wants them and
// changes nothing: each is covered by a file with this content, in the node's mounts alone.
var settled = map[string]string{
	"/proc/sys/vm/overcommit_memory":      "1",
	"/proc/sys/vm/panic_on_oom":           "0",
	"/proc/sys/kernel/panic":              "10",
	"/proc/sys/kernel/panic_on_oops":      "1",
	"/proc/sys/kernel/keys/root_maxkeys":  "1000000",
	"/proc/sys/kernel/keys/root_maxbytes": "25000000",
}

// enterRoot gives the process a file system of its own: the machine's programs, read-only; its devices and cgroups; and
// folders of the node where servers keep theirs. It is private to the process's mount namespace and ends with it.
func enterRoot(folder string, programs map[string]string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("part from the machine's mounts: %w", err)
	}
	root := filepath.Join(folder, "root")
	if err := mount("tmpfs", root, "tmpfs", 0); err != nil {
		return err
	}
	inside := func(path string) string { return filepath.Join(root, path) }
	for _, path := range []string{"/usr", "/etc"} {
		if err := bind(path, inside(path)); err != nil {
			return err
		}
		if err := syscall.Mount("", inside(path), "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make %s read-only: %w", path, err)
		}
	}
	for _, path := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"} {
		if err := mirror(path, inside(path)); err != nil {
			return err
		}
	}
	for from, to := range map[string]string{
		"/dev": "/dev", "/sys": "/sys", filepath.Join(folder, "node"): inNode, filepath.Join(folder, "var"): "/var", filepath.Join(folder, "tmp"): "/tmp",
	} {
		if err := bind(from, inside(to)); err != nil {
			return err
		}
	}
	for name, path := range programs {
		if err := bind(path, inside(program(name))); err != nil {
			return err
		}
	}
	if err := mount("tmpfs", inside("/run"), "tmpfs", 0); err != nil {
		return err
	}
	if err := mount("proc", inside("/proc"), "proc", syscall.MS_NOSUID|syscall.MS_NODEV|syscall.MS_NOEXEC); err != nil {
		return err
	}
	if err := settle(inside); err != nil {
		return err
	}
	// The old root is put on top of the new one, and taken off.
	if err := os.Chdir(root); err != nil {
		return err
	}
	if err := syscall.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("change the root: %w", err)
	}
	if err := syscall.Unmount(".", syscall.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	return errors.Join(os.Chdir("/"), syscall.Sethostname([]byte(nodeName)))
}

func settle(inside func(string) string) error {
	for path, content := range settled {
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue // not in this kernel
		}
		file := inside("/run/settled" + path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, []byte(content+"\n"), 0o644); err != nil {
			return err
		}
		if err := syscall.Mount(file, inside(path), "", syscall.MS_BIND, ""); err != nil {
			return fmt.Errorf("cover %s: %w", path, err)
		}
	}
	return nil
}

// mirror binds a folder, or repeats a link.
func mirror(from, to string) error {
	info, err := os.Lstat(from)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode()&os.ModeSymlink == 0:
		return bind(from, to)
	}
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	return os.Symlink(target, to)
}

// bind shows a folder with all that is mounted in it, or a file, at another place too.
func bind(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return fmt.Errorf("show %s to the node: %w", from, err)
	}
	if info.IsDir() {
		err = os.MkdirAll(to, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(to), 0o755); err == nil {
		err = os.WriteFile(to, nil, 0o755)
	}
	if err == nil {
		err = syscall.Mount(from, to, "", syscall.MS_BIND|syscall.MS_REC, "")
	}
	if err != nil {
		return fmt.Errorf("show %s to the node: %w", from, err)
	}
	return nil
}

func mount(device, at, kind string, flags uintptr) error {
	if err := os.MkdirAll(at, 0o755); err != nil {
		return err
	}
	if err := syscall.Mount(device, at, kind, flags, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, at, err)
	}
	return nil
}

// lookPath finds a program of the machine, also where PATH leaves out the administrator's.
func lookPath(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for dir := range strings.SplitSeq("/usr/sbin:/sbin:/usr/local/sbin:/usr/bin", ":") {
		path := filepath.Join(dir, name)
		if info, err := os.Stat(path); err == nil && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not installed", name)
}

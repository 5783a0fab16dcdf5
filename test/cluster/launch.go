package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// write prepares the folder.
func (c *Cluster) write(hostPort string, built map[string]string) error {
	for _, dir := range []string{"root", "tmp", "node/pki", "node/cni", "node/log", "node/volumes", "var/lib/kubelet", "var/lib/cni", "var/log/pods", "var/log/containers"} {
		if err := os.MkdirAll(filepath.Join(c.folder, dir), 0o755); err != nil {
			return fmt.Errorf("make the node's folder: %w", err)
		}
	}
	if err := errors.Join(os.Symlink("/run", filepath.Join(c.folder, "var/run")), os.Chmod(filepath.Join(c.folder, "tmp"), 0o1777)); err != nil {
		return err
	}
	keys, kubeconfig, err := credentials(hostPort)
	if err != nil {
		return err
	}
	snapshotter, err := snapshotterFor(c.folder)
	if err != nil {
		return err
	}
	settings, err := json.Marshal(settings{Programs: built})
	if err != nil {
		return err
	}
	files := map[string][]byte{kubeconfigName: kubeconfig, settingsName: settings}
	for name, text := range configuration(cgroupName(c.folder), snapshotter) {
		files["node/"+name] = text
	}
	for name, text := range keys {
		files["node/pki/"+name] = text
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(c.folder, name), text, 0o600); err != nil {
			return fmt.Errorf("write the node's configuration: %w", err)
		}
	}
	return nil
}

// snapshotterFor avoids an overlay on an overlay, which the kernel refuses.
func snapshotterFor(folder string) (string, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil {
		return "", fmt.Errorf("look at the file system of %s: %w", folder, err)
	}
	if fs.Type == overlayFS {
		return "native", nil
	}
	return "overlayfs", nil
}

// launch starts the node: this program once more, as the first process of its namespaces.
func (c *Cluster) launch(listener net.Listener, tied bool) (<-chan error, error) {
	tcp, ok := listener.(*net.TCPListener)
	if !ok {
		return nil, fmt.Errorf("listen on loopback: got a %T", listener)
	}
	port, err := tcp.File()
	if err != nil {
		return nil, fmt.Errorf("hand over the port on loopback: %w", err)
	}
	defer func() { _ = port.Close() }()
	out, err := os.Create(filepath.Join(c.folder, "node/log/node.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }()
	cmd := exec.CommandContext(context.Background(), "/proc/self/exe", argument, c.folder)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = "/", []string{"PATH=" + os.Getenv("PATH")}, out, out, []*os.File{port}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Setsid:     true,
	}
	if tied {
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	started, died := make(chan error, 1), make(chan error, 1)
	go func() {
		// The kernel takes the thread that forked for the parent: it must live as long as the node. It ends with this goroutine.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			died <- errors.Join(errors.New("the node has ended"), cmd.Wait())
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start the node: %w", err)
	}
	return died, nil
}

// awaitNode waits until the node says that it is ready, and passes on how far it is.
func (c *Cluster) awaitNode(ctx context.Context, died <-chan error) error {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	last := ""
	for {
		s, err := readState(c.folder)
		switch {
		case err == nil && s.Phase == phaseReady:
			return nil
		case err == nil && s.Phase == phaseFailed:
			return fmt.Errorf("%s\n%s", s.Message, c.lastWords(s.Message))
		case err == nil && s.Message != last:
			last = s.Message
			say(c.progress, "starting %s", last)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the node was not ready: %w\n%s", context.Cause(ctx), c.lastWords(last))
		case err := <-died:
			return fmt.Errorf("%w\n%s", err, c.lastWords("node"))
		case <-tick.C:
		}
	}
}

// lastWords returns the end of the log of the server that a message names.
func (c *Cluster) lastWords(message string) string {
	logs, err := filepath.Glob(filepath.Join(c.folder, "node/log/*.log"))
	if err != nil {
		return ""
	}
	for _, log := range logs {
		name := strings.TrimSuffix(filepath.Base(log), ".log")
		if !strings.Contains(message, name) {
			continue
		}
		text, err := os.ReadFile(log)
		if err != nil {
			return err.Error()
		}
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		return "  " + strings.Join(lines[max(0, len(lines)-15):], "\n  ")
	}
	return ""
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Options of Up.
type Options struct {
	// Folder of the node: what it keeps, its logs, the kubeconfig. It is made, and must lie on a disk. Two nodes in two folders
	// do not meet.
	Folder string
	// Tied nodes end when this process does, even when it is killed. Others stay until Down.
	Tied bool
	// Progress receives lines for whoever waits. Nil means os.Stderr.
	Progress io.Writer
}

// Cluster is a running Kubernetes.
type Cluster struct {
	folder   string
	progress io.Writer
	config   *rest.Config
}

// ErrRunning says that a node runs in the folder already.
var ErrRunning = errors.New("a cluster is up in this folder already")

const (
	lockName       = "lock"
	stateName      = "state.json"
	settingsName   = "settings.json"
	kubeconfigName = "kubeconfig"
	completeName   = "complete" // is there when Up came to its end

	startPatience = 3 * time.Minute
	stopPatience  = 30 * time.Second
	overlayFS     = 0x794c7630
)

// Up brings a cluster up: node Ready and names resolved. When it fails, or ctx ends, nothing is left. Errors: [ErrRunning];
// what the machine lacks, with what to install; a server that did not start, with its last words.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	if o.Progress == nil {
		o.Progress = os.Stderr
	}
	if os.Geteuid() != 0 || runtime.GOOS != "linux" {
		return nil, errors.New("a cluster needs Linux and root: it mounts, and makes namespaces and cgroups")
	}
	folder, err := filepath.Abs(o.Folder)
	if err != nil {
		return nil, err
	}
	built, err := provide(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	images, err := baseImages(ctx, o.Progress)
	if err != nil {
		return nil, err
	}
	release, err := alone(ctx, folder)
	if err != nil {
		return nil, err
	}
	defer release()
	if _, up, err := running(folder); err != nil || (up && complete(folder)) {
		return nil, errors.Join(err, fmt.Errorf("%w: %s", ErrRunning, folder))
	}
	if err := end(folder); err != nil {
		return nil, fmt.Errorf("remove what an earlier cluster left: %w", err)
	}
	c := &Cluster{folder: folder, progress: o.Progress}
	if err := c.start(ctx, o.Tied, built, images); err != nil {
		return nil, errors.Join(err, end(folder))
	}
	return c, nil
}

// Open returns the cluster that is up in a folder.
func Open(folder string) (*Cluster, error) {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return nil, err
	}
	if _, up, err := running(folder); err != nil || !up {
		return nil, errors.Join(err, fmt.Errorf("no cluster is up in %s", folder))
	}
	c := &Cluster{folder: folder, progress: os.Stderr}
	return c, c.connect()
}

// Down ends the cluster of a folder and removes all of it. What a killed one left is removed too; nothing at all is no error.
func Down(ctx context.Context, folder string) error {
	folder, err := filepath.Abs(folder)
	if err != nil {
		return err
	}
	release, err := alone(ctx, folder)
	if err != nil {
		return err
	}
	defer release()
	return end(folder)
}

// Down ends the cluster.
func (c *Cluster) Down(ctx context.Context) error { return Down(ctx, c.folder) }

// Kubeconfig returns the path of a kubeconfig with every right, which exists until Down.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.folder, kubeconfigName) }

// Config returns a client configuration with every right, without client-side rate limit.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Folder returns the node's folder. Volumes of pods may be folders below its folder "node/volumes", which is /node/volumes
// to the node.
func (c *Cluster) Folder() string { return c.folder }

func (c *Cluster) start(ctx context.Context, tied bool, built map[string]string, images []string) error {
	begun := time.Now()
	say(c.progress, "starting a Kubernetes of one node in %s (usually 15 seconds)", c.folder)
	// In the machine's network, and handed to the node.
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen on loopback: %w", err)
	}
	defer func() { _ = listener.Close() }()
	if err := c.write(listener.Addr().String(), built); err != nil {
		return err
	}
	if err := makeCgroups(cgroupName(c.folder)); err != nil {
		return err
	}
	died, err := c.launch(listener, tied)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	if err := c.awaitNode(ctx, died); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	for _, image := range images {
		if err := c.Import(ctx, image); err != nil {
			return err
		}
	}
	if err := c.settleIn(ctx); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.folder, completeName), nil, 0o600); err != nil {
		return err
	}
	say(c.progress, "the cluster is up after %s", time.Since(begun).Round(100*time.Millisecond))
	return nil
}

func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read the cluster's kubeconfig: %w", err)
	}
	config.QPS = -1
	c.config = config
	return nil
}

// Import makes an image known to the node, from a tarball as `docker save` or an OCI layout has it. Pods use it with
// imagePullPolicy Never or IfNotPresent; the node cannot pull.
func (c *Cluster) Import(ctx context.Context, tarball string) error {
	file, err := os.Open(tarball)
	if err != nil {
		return fmt.Errorf("import an image: %w", err)
	}
	defer func() { _ = file.Close() }()
	// Transfer through the daemon would want a differ that is not configured for it.
	cmd, err := c.Command(ctx, program("ctr"), "-a", containerdSocket, "-n", "k8s.io", "images", "import", "--local", "-")
	if err != nil {
		return err
	}
	cmd.Stdin = file
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("import the image %s: %w\n%s", tarball, err, out)
	}
	return nil
}

// Command returns a command that runs inside the node, in all of its namespaces.
func (c *Cluster) Command(ctx context.Context, path string, args ...string) (*exec.Cmd, error) {
	s, err := readState(c.folder)
	if err != nil {
		return nil, err
	}
	enter := []string{fmt.Sprintf("--target=%d", s.PID), "--mount", "--uts", "--ipc", "--net", "--pid", "--root", "--wd", "--", path}
	return exec.CommandContext(ctx, "nsenter", append(enter, args...)...), nil
}

func say(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, "cluster: "+format+"\n", args...)
}

package localstack

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// SystemNamespace is where an installation of Postrider lives.
const SystemNamespace = "postrider-system"

// Bounds of what the parts may take.
const (
	partPatience = 30 * time.Second // to be ready
	partGrace    = 40 * time.Second // to stop
)

// PostriderOptions of an installation.
type PostriderOptions struct {
	KubeAPI     *KubeAPIServer
	DatabaseURL string
	Progress    io.Writer
	// Environment has further variables of every part, name=value.
	Environment []string
}

// Postrider is an installation: its parts as processes on loopback, with the rights that config/rbac gives them and no
// others, over an API server and a database.
type Postrider struct {
	options PostriderOptions
	folder  *folder
	program string

	mutex sync.Mutex
	parts []*Part
}

// NewPostrider builds the binary, applies config/rbac, makes a keyring and brings the schema up to date. The caller starts
// the parts and calls Close.
func NewPostrider(ctx context.Context, o PostriderOptions) (*Postrider, error) {
	top, err := root()
	if err != nil {
		return nil, err
	}
	program, err := buildOwn(ctx, top, "./cmd/postrider", o.Progress)
	if err != nil {
		return nil, err
	}
	f, err := newFolder(false)
	if err != nil {
		return nil, err
	}
	p := &Postrider{options: o, folder: f, program: program}
	if err := p.prepare(ctx, top); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Postrider) prepare(ctx context.Context, top string) error {
	objects, err := ReadManifests(nil, filepath.Join(top, "config/rbac"))
	if err != nil {
		return err
	}
	namespace := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": SystemNamespace},
	}}
	if _, err := Apply(ctx, p.options.KubeAPI.Config(), "localstack", append(objects, namespace)...); err != nil {
		return err
	}
	if err := os.Mkdir(p.file("secret"), 0o700); err != nil {
		return fmt.Errorf("make the folder of the keyring: %w", err)
	}
	for _, account := range []string{"postrider-controller", "postrider-ingest"} {
		token, err := Token(ctx, p.options.KubeAPI.Config(), SystemNamespace, account)
		if err != nil {
			return err
		}
		if err := WriteKubeconfig(p.file("secret/"+account), TokenConfig(p.options.KubeAPI.Config(), token)); err != nil {
			return fmt.Errorf("write a kubeconfig: %w", err)
		}
	}
	line, err := p.output(ctx, "keyring", "generate", "local")
	if err != nil {
		return err
	}
	if err := os.WriteFile(p.file("secret/keyring"), line, 0o600); err != nil {
		return fmt.Errorf("write the keyring: %w", err)
	}
	_, err = p.output(ctx, "migrate", "up")
	return err
}

// Keyring returns the line of the key that the parts encrypt with, for a test that searches for it.
func (p *Postrider) Keyring() (string, error) {
	line, err := os.ReadFile(p.file("secret/keyring"))
	return string(line), err
}

// Token asks the API server for a token of a ServiceAccount, good for an hour.
func Token(ctx context.Context, config *rest.Config, namespace, account string, audiences ...string) (string, error) {
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", fmt.Errorf("make a client: %w", err)
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	got, err := c.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ask for a token of %s/%s: %w", namespace, account, err)
	}
	return got.Status.Token, nil
}

// Part is a running part.
type Part struct {
	// Name is "controller", "dispatcher" or "ingest".
	Name string
	// URL is where ingest takes events; Probes is where any part answers /livez, /readyz and /metrics.
	URL, Probes string

	process *process
}

// Start starts a part and returns when it is ready.
func (p *Postrider) Start(ctx context.Context, part string, flags ...string) (*Part, error) {
	started, err := p.Launch(ctx, part, PartOptions{Flags: flags})
	if err != nil {
		return nil, err
	}
	return started, started.process.await(ctx, partPatience, started.Ready)
}

// PartOptions of one process of a part.
type PartOptions struct {
	Flags []string
	// Environment has further variables, name=value. They win over PostriderOptions.Environment.
	Environment []string
	// Program is another binary than the one that was built. Empty: that one.
	Program string
}

// Launch starts a part and returns at once. It may be called by many goroutines.
func (p *Postrider) Launch(ctx context.Context, part string, o PartOptions) (*Part, error) {
	probes, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	started := &Part{Name: part, Probes: "http://" + loopback(probes)}
	args := append([]string{part, "--metrics-address", loopback(probes)}, o.Flags...)
	if part == "ingest" {
		port, err := freePort(ctx)
		if err != nil {
			return nil, err
		}
		started.URL = "http://" + loopback(port)
		args = append(args, "--address", loopback(port))
	}
	return started, p.begin(started, command{
		path: cmp.Or(o.Program, p.program), args: args, env: append(p.environment(part), o.Environment...), orphaned: syscall.SIGKILL,
	})
}

// begin starts the process of a part, with a log of its own.
func (p *Postrider) begin(part *Part, c command) error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	c.log = p.file(part.Name + "-" + strconv.Itoa(len(p.parts)) + ".log")
	var err error
	if part.process, err = start(c); err != nil {
		return err
	}
	p.parts = append(p.parts, part)
	return nil
}

// Ready asks a part whether it is ready, and returns what it says if it is not.
func (p *Part) Ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.Probes+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 1<<10))
		return fmt.Errorf("/readyz: %s: %s", response.Status, text)
	}
	return nil
}

// StartProgram builds a program of this repository and starts it beside the parts; environment gets the address that it
// is to listen on. It returns when something listens there.
func (p *Postrider) StartProgram(ctx context.Context, pkg string, environment func(address string) []string) (*Part, error) {
	top, err := root()
	if err != nil {
		return nil, err
	}
	program, err := buildOwn(ctx, top, pkg, p.options.Progress)
	if err != nil {
		return nil, err
	}
	port, err := freePort(ctx)
	if err != nil {
		return nil, err
	}
	started := &Part{Name: filepath.Base(pkg), URL: "http://" + loopback(port)}
	if err := p.begin(started, command{path: program, env: environment(loopback(port)), orphaned: syscall.SIGKILL}); err != nil {
		return nil, err
	}
	return started, started.process.await(ctx, partPatience, func(ctx context.Context) error {
		connection, err := (&net.Dialer{}).DialContext(ctx, "tcp", loopback(port))
		if err != nil {
			return err
		}
		return connection.Close()
	})
}

// Stop asks the part to end as Kubernetes does, and returns how it ended: nil for exit status 0.
func (p *Part) Stop() error {
	p.process.stop(syscall.SIGTERM, partGrace)
	return p.process.err
}

// Kill ends the part as kill -9 does.
func (p *Part) Kill() { p.process.kill() }

// Done is closed when the process has ended, however it did; Err then says how: nil for exit status 0.
func (p *Part) Done() <-chan struct{} { return p.process.done }

// Err is of use once Done is closed.
func (p *Part) Err() error { return p.process.err }

// Running tells whether the process is there.
func (p *Part) Running() bool { return p.process.running() }

// Log returns the path of the part's log.
func (p *Part) Log() string { return p.process.log }

// Close ends all parts, the last started first, and deletes their logs.
func (p *Postrider) Close() error {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for i := len(p.parts) - 1; i >= 0; i-- {
		if p.parts[i].Running() {
			p.parts[i].process.stop(syscall.SIGTERM, partGrace)
		}
	}
	return p.folder.remove()
}

func (p *Postrider) file(name string) string { return filepath.Join(p.folder.path, name) }

// environment configures a part, and is all that it sees of the outside.
func (p *Postrider) environment(part string) []string {
	env := append([]string{
		"PATH=" + os.Getenv("PATH"),
		"POSTRIDER_NAMESPACE=" + SystemNamespace,
		"POSTRIDER_DATABASE_URL=" + p.options.DatabaseURL,
		"POSTRIDER_KEYRING_FILE=" + p.file("secret/keyring"),
		"POSTRIDER_LOG_LEVEL=debug",
	}, p.options.Environment...)
	if part == "controller" || part == "ingest" {
		env = append(env, "POSTRIDER_KUBECONFIG="+p.file("secret/postrider-"+part))
	}
	return env
}

// output runs a subcommand to its end.
func (p *Postrider) output(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, p.program, args...)
	cmd.Env = p.environment(args[0])
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("postrider %s: %w; its last lines:\n%s", args[0], err, lastLines(errs.String(), 20))
	}
	return out, nil
}

// buildOwn builds a program of this checkout.
func buildOwn(ctx context.Context, top, pkg string, progress io.Writer) (string, error) {
	file := filepath.Join(top, ".cache/bin", filepath.Base(pkg))
	say(progress, "building %s (a few seconds; a minute or two when nothing is cached)", filepath.Base(pkg))
	cmd := exec.CommandContext(ctx, "go", "build", "-o", file, pkg)
	cmd.Dir = top
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, lastLines(string(out), 20))
	}
	return file, nil
}

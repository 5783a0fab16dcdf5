package localstack

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

const (
	envAssets     = "KUBEBUILDER_ASSETS"
	buildPatience = 40 * time.Minute
	progressEvery = 30 * time.Second
)

// Program is a server or tool of somebody else that is built from source, in a module below test that pins its version.
type Program struct {
	Name    string
	Package string
	Module  string // folder below test
	Tags    string // of the build, separated by commas
	Usually string // how long a build takes on two cores when nothing is cached

	// Assets says that KUBEBUILDER_ASSETS, where it is set, has the program too; Optional, that it need not.
	Assets, Optional bool
}

const controlplane = "controlplane"

var (
	etcd          = Program{Name: "etcd", Package: "go.etcd.io/etcd/server/v3", Module: controlplane, Usually: "half a minute", Assets: true}
	kubeAPIServer = Program{Name: "kube-apiserver", Package: "k8s.io/kubernetes/cmd/kube-apiserver", Module: controlplane, Usually: "4 to 6 minutes", Assets: true}
	kubectl       = Program{Name: "kubectl", Package: "k8s.io/kubernetes/cmd/kubectl", Module: controlplane, Usually: "a minute", Assets: true, Optional: true}
)

// BuildKubeAPI makes sure that NewKubeAPI will not have to build anything.
func BuildKubeAPI(ctx context.Context, progress io.Writer) error {
	for _, p := range []Program{etcd, kubeAPIServer} {
		if _, err := p.Path(ctx, progress); err != nil {
			return err
		}
	}
	return nil
}

// Kubectl returns the path of a kubectl of the API server's version, building it first if need be.
func Kubectl(ctx context.Context, progress io.Writer) (string, error) {
	return kubectl.Path(ctx, progress)
}

// Path returns where the program is: in the folder that KUBEBUILDER_ASSETS names, or in .cache, where it is built once per
// version. Progress nil means os.Stderr.
func (p Program) Path(ctx context.Context, progress io.Writer) (string, error) {
	if progress == nil {
		progress = os.Stderr
	}
	if assets := os.Getenv(envAssets); assets != "" && p.Assets {
		file := filepath.Join(assets, p.Name)
		if info, err := os.Stat(file); err == nil && info.Mode()&0o111 != 0 {
			return file, nil
		}
		if !p.Optional {
			return "", fmt.Errorf("%s is set to %s, which has no program %s; unset it to have one built", envAssets, assets, p.Name)
		}
	}
	top, err := root()
	if err != nil {
		return "", err
	}
	module := filepath.Join(top, "test", p.Module)
	goMod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read the version of %s: %w", p.Name, err)
	}
	version, err := content(module, goMod)
	if err != nil {
		return "", fmt.Errorf("read the source of %s: %w", p.Name, err)
	}
	file := filepath.Join(top, ".cache", filepath.Base(p.Module), version+"-"+runtime.GOARCH, p.Name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	ctx, cancel := context.WithTimeout(ctx, buildPatience)
	defer cancel()
	return file, p.build(ctx, progress, module, goMod, file)
}

// content names what is built from a module: its go.mod, and the program of ours that it may have.
func content(module string, goMod []byte) (string, error) {
	sources, err := filepath.Glob(filepath.Join(module, "*.go"))
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	_, _ = sum.Write(goMod) // which does not fail
	for _, source := range sources {
		text, err := os.ReadFile(source)
		if err != nil {
			return "", err
		}
		_, _ = sum.Write(text)
	}
	return hex.EncodeToString(sum.Sum(nil))[:12], nil
}

func (p Program) build(ctx context.Context, progress io.Writer, module string, goMod []byte, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the cache: %w", err)
	}
	unlock, err := lockFile(ctx, progress, file+".lock", p.Name)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return nil // somebody else built it while we waited
	}
	golang, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("go is needed in PATH to build %s: %w", p.Name, err)
	}
	cmd := exec.CommandContext(ctx, golang, "build", "-o", file+".part", "-tags", p.Tags, "-ldflags", linkerFlags(goMod), p.Package)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	// The compilers are children of go: all of them get the end of the context.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out

	started := time.Now()
	say(progress, "building %s from source, once for this checkout (usually %s on 2 cores)", p.Name, p.Usually)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // see start in process.go
		done <- cmd.Run()
	}()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			say(progress, "still building %s: %s of usually %s", p.Name, time.Since(started).Round(time.Second), p.Usually)
		case err := <-done:
			if err != nil {
				return fmt.Errorf("build %s: %w\n%s", p.Name, err, lastLines(out.String(), 20))
			}
			say(progress, "built %s in %s", p.Name, time.Since(started).Round(time.Second))
			return os.Rename(file+".part", file)
		}
	}
}

var kubernetesVersion = regexp.MustCompile(`k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

// linkerFlags stamp Kubernetes' version: without it the server says v0.0.0-master, which clients cannot parse.
func linkerFlags(goMod []byte) string {
	const small, in = "-s -w", "k8s.io/component-base/version."
	v := kubernetesVersion.FindSubmatch(goMod)
	if v == nil {
		return small
	}
	return fmt.Sprintf("%[1]s -X %[2]sgitVersion=%[3]s -X %[2]sgitMajor=%[4]s -X %[2]sgitMinor=%[5]s", small, in, v[1], v[2], v[3])
}

// lockFile waits until no other process holds the lock.
func lockFile(ctx context.Context, progress io.Writer, path, what string) (func(), error) {
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock for building %s: %w", what, err)
	}
	unlock := func() { _ = lock.Close() }
	told := false
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return unlock, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			unlock()
			return nil, fmt.Errorf("lock the build of %s: %w", what, err)
		}
		if !told {
			say(progress, "another process is building %s, waiting for it", what)
			told = true
		}
		select {
		case <-ctx.Done():
			unlock()
			return nil, fmt.Errorf("wait for another process to build %s: %w", what, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

const ourModule = "module github.com/postrider/postrider\n"

// Root returns the top folder of the checkout that the current directory is in.
func Root() (string, error) { return root() }

// root returns the top folder of the checkout that the current directory is in; `go test` runs in the package's folder.
func root() (string, error) {
	current, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for dir := current; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.Contains(string(text), ourModule) {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside a checkout of Postrider", current)
		}
	}
}

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

// program is a server or tool that is built from the module test/controlplane.
type program struct {
	name    string
	pkg     string
	usually string // how long a build takes on two cores when nothing is cached
}

var (
	etcd          = program{"etcd", "go.etcd.io/etcd/server/v3", "half a minute"}
	kubeAPIServer = program{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "4 to 6 minutes"}
	kubectl       = program{"kubectl", "k8s.io/kubernetes/cmd/kubectl", "a minute"}
)

// BuildKubeAPI makes sure that NewKubeAPI will not have to build anything.
func BuildKubeAPI(ctx context.Context, progress io.Writer) error {
	for _, p := range []program{etcd, kubeAPIServer} {
		if _, err := p.path(ctx, progress); err != nil {
			return err
		}
	}
	return nil
}

// Kubectl returns the path of a kubectl of the API server's version, building it first if need be.
func Kubectl(ctx context.Context, progress io.Writer) (string, error) {
	return kubectl.path(ctx, progress)
}

// path returns where the program is: in the folder that KUBEBUILDER_ASSETS names, or in .cache, where it is built once
// per version.
func (p program) path(ctx context.Context, progress io.Writer) (string, error) {
	if progress == nil {
		progress = os.Stderr
	}
	if assets := os.Getenv(envAssets); assets != "" {
		file := filepath.Join(assets, p.name)
		if info, err := os.Stat(file); err == nil && info.Mode()&0o111 != 0 {
			return file, nil
		}
		if p != kubectl { // which those folders need not have
			return "", fmt.Errorf("%s is set to %s, which has no program %s; unset it to have one built", envAssets, assets, p.name)
		}
	}
	module, err := moduleFolder()
	if err != nil {
		return "", err
	}
	goMod, err := os.ReadFile(filepath.Join(module, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read the versions of etcd and Kubernetes: %w", err)
	}
	sum := sha256.Sum256(goMod)
	dir := filepath.Join(module, "../../.cache/controlplane", hex.EncodeToString(sum[:])[:12]+"-"+runtime.GOARCH)
	file := filepath.Join(dir, p.name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	ctx, cancel := context.WithTimeout(ctx, buildPatience)
	defer cancel()
	return file, p.build(ctx, progress, module, goMod, file)
}

func (p program) build(ctx context.Context, progress io.Writer, module string, goMod []byte, file string) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the cache: %w", err)
	}
	unlock, err := lockFile(ctx, progress, file+".lock", p.name)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(file); err == nil {
		return nil // somebody else built it while we waited
	}
	golang, err := exec.LookPath("go")
	if err != nil {
		return fmt.Errorf("go is needed in PATH to build %s: %w", p.name, err)
	}
	args := []string{"build", "-o", file + ".part"}
	if ldflags := versionFlags(goMod); ldflags != "" {
		args = append(args, "-ldflags", ldflags)
	}
	cmd := exec.CommandContext(ctx, golang, append(args, p.pkg)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	// The compilers are children of go: all of them get the end of the context.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out

	started := time.Now()
	say(progress, "building %s from source, once for this checkout (usually %s on 2 cores)", p.name, p.usually)
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
			say(progress, "still building %s: %s of usually %s", p.name, time.Since(started).Round(time.Second), p.usually)
		case err := <-done:
			if err != nil {
				return fmt.Errorf("build %s: %w\n%s", p.name, err, lastLines(out.String(), 20))
			}
			say(progress, "built %s in %s", p.name, time.Since(started).Round(time.Second))
			return os.Rename(file+".part", file)
		}
	}
}

var kubernetesVersion = regexp.MustCompile(`k8s\.io/kubernetes (v(\d+)\.(\d+)\.\S+)`)

// versionFlags stamp the version: without it the server says v0.0.0-master, which clients cannot parse.
func versionFlags(goMod []byte) string {
	v := kubernetesVersion.FindSubmatch(goMod)
	if v == nil {
		return ""
	}
	const in = "k8s.io/component-base/version."
	return fmt.Sprintf("-s -w -X %[1]sgitVersion=%[2]s -X %[1]sgitMajor=%[3]s -X %[1]sgitMinor=%[4]s", in, v[1], v[2], v[3])
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

// moduleFolder returns test/controlplane of the checkout that the current directory is in.
func moduleFolder() (string, error) {
	root, err := root()
	return filepath.Join(root, "test/controlplane"), err
}

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

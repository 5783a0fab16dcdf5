package localstack

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// envChild makes the test binary start what it names instead of running tests, so that a test can kill it.
const envChild = "POSTRIDER_LOCALSTACK_CHILD"

func TestMain(m *testing.M) {
	if what := os.Getenv(envChild); what != "" {
		if err := child(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := pretendToBeAUser(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	Main(m)
}

// foreign leads to a cluster and a database of somebody else, where no test may ever arrive: 203.0.113.0/24 is nobody's.
var foreign = map[string]string{
	"KUBERNETES_SERVICE_HOST": "203.0.113.1", "KUBERNETES_SERVICE_PORT": "443", "USE_EXISTING_CLUSTER": "true",
	"PGHOST": "203.0.113.1", "PGDATABASE": "production", "PGOPTIONS": "-c search_path=foreign",
}

func pretendToBeAUser() error {
	errs := []error{os.Setenv("KUBECONFIG", foreignKubeconfig)}
	for name, value := range foreign {
		errs = append(errs, os.Setenv(name, value))
	}
	return errors.Join(errs...)
}

const foreignKubeconfig = "testdata/foreign.kubeconfig"

// started is what the child tells the test.
type started struct {
	Folder string
	Pids   []int
}

func child(what string) error {
	ctx := context.Background()
	var s started
	switch what {
	case "postgres":
		p, err := NewPostgres(ctx, PostgresOptions{})
		if err != nil {
			return err
		}
		s = started{Folder: p.folder.path, Pids: []int{p.server.cmd.Process.Pid}}
	case "kube":
		k, err := NewKubeAPI(ctx, KubeAPIOptions{})
		if err != nil {
			return err
		}
		s = started{Folder: k.folder.path, Pids: []int{k.etcd.cmd.Process.Pid, k.server.cmd.Process.Pid}}
	default:
		return errors.New("unknown child " + what)
	}
	if err := json.NewEncoder(os.Stdout).Encode(s); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, os.Stdin) // until the test ends us
	return err
}

func TestNoProcessOutlivesAKilledParent(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"postgres", "kube"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0])
			cmd.Env = append(os.Environ(), envChild+"="+what)
			cmd.Stderr = os.Stderr
			if _, err := cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, err := bufio.NewReader(out).ReadBytes('\n')
			if err != nil {
				t.Fatalf("the child told nothing: %v, %v", err, cmd.Wait())
			}
			var s started
			if err := json.Unmarshal(line, &s); err != nil {
				t.Fatal(err)
			}
			if left := processesIn(t, s.Folder); len(left) < len(s.Pids) {
				t.Fatalf("processes that work in %s: got %v, want at least %v; the search below would prove nothing", s.Folder, left, s.Pids)
			}

			if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			_ = cmd.Wait() // "signal: killed"
			eventually(t, 30*time.Second, func() error {
				if left := processesIn(t, s.Folder); len(left) > 0 {
					return fmt.Errorf("left after the parent was killed: %v", left)
				}
				return nil
			})

			// The next one to come removes the files.
			f, err := newFolder(false)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.remove() }()
			if _, err := os.Stat(s.Folder); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the killed parent's folder %s is still there: %v", s.Folder, err)
			}
		})
	}
}

func TestAFolderInUseIsNotRemovedByOthers(t *testing.T) {
	t.Parallel()
	used, err := newFolder(true)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newFolder(false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(used.path); err != nil {
		t.Errorf("a folder whose owner is alive: %v", err)
	}
	if err := errors.Join(used.remove(), other.remove()); err != nil {
		t.Error(err)
	}
}

// processesIn lists the live processes whose working directory is dir or below.
func processesIn(t *testing.T, dir string) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil {
			continue // gone, or a zombie
		}
		if cwd = strings.TrimSuffix(cwd, " (deleted)"); cwd == dir || strings.HasPrefix(cwd, dir+"/") {
			name, _ := os.ReadFile(filepath.Join(filepath.Dir(link), "cmdline"))
			found = append(found, fmt.Sprintf("%s %.80q", filepath.Base(filepath.Dir(link)), name))
		}
	}
	return found
}

// eventually waits until check is content, and fails the test with its last complaint otherwise.
func eventually(t *testing.T, patience time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %v: %v", patience, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

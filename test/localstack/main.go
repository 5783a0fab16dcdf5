package localstack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"
)

// Variables that point to servers started by somebody else, usually cmd/stack.
const (
	// EnvDatabaseURL is the URL of a superuser on a Postgres server for tests. They create and drop databases on it
	// whose names begin with "postrider_test".
	EnvDatabaseURL = "POSTRIDER_TEST_DATABASE_URL"
	// EnvKubeconfig is the path of a kubeconfig with every right on an API server for tests. It is never the user's own.
	EnvKubeconfig = "POSTRIDER_TEST_KUBECONFIG"
)

// Main runs a package's tests and exits; call it from TestMain and pass what goleak should overlook. It stops what the
// tests started, and fails the run if goroutines are left afterwards.
func Main(m *testing.M, ignore ...goleak.Option) {
	os.Exit(run(m, ignore))
}

func run(m *testing.M, ignore []goleak.Option) int {
	if err := isolate(); err != nil {
		say(os.Stderr, "%v", err)
		return 1
	}
	shared.owned.Store(true)
	code := m.Run()
	if err := shared.close(); err != nil {
		say(os.Stderr, "%v", err)
		code = max(code, 1)
	}
	if code != 0 {
		return code
	}
	if err := goleak.Find(ignore...); err != nil {
		say(os.Stderr, "goroutines are left after the tests of this package: %v", err)
		return 1
	}
	return 0
}

// shared holds the servers of this process. Its users are tests, which have no other common place.
var shared sharedServers

type sharedServers struct {
	owned    atomic.Bool // Main runs and will stop what is started
	postgres once[*sharedPostgres]
	kube     once[*sharedKube]
}

// require fails a test whose package has no TestMain: nobody would stop the servers.
func (s *sharedServers) require(t testing.TB) {
	t.Helper()
	if !s.owned.Load() {
		t.Fatal("localstack: this package needs `func TestMain(m *testing.M) { localstack.Main(m) }`")
	}
}

func (s *sharedServers) close() error {
	postgres, _ := s.postgres.get(func() (*sharedPostgres, error) { return nil, errNotAsked })
	kube, _ := s.kube.get(func() (*sharedKube, error) { return nil, errNotAsked })
	return errors.Join(postgres.close(), kube.close())
}

var errNotAsked = errors.New("no test asked for it")

// once is a server that is started for the first who asks; all others get the same answer.
type once[T any] struct {
	mutex sync.Mutex
	asked bool
	value T
	err   error
}

func (o *once[T]) get(open func() (T, error)) (T, error) {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if !o.asked {
		o.asked = true
		o.value, o.err = open()
	}
	return o.value, o.err
}

func say(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, "localstack: "+format+"\n", args...)
}

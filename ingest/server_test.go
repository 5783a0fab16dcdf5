package ingest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

func TestRequestsBeyondTheBoundAreSentAway(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	d := &double{accepts: func([]store.NewEvent) ([]store.Acceptance, error) {
		entered <- struct{}{}
		<-release
		return []store.Acceptance{{EventID: uuid.New(), AcceptedAt: time.Now()}}, nil
	}}
	r := start(t, options{store: d, config: func(c *Config) { c.MaxInFlight = 2 }})
	var all sync.WaitGroup
	for range 2 {
		all.Go(func() {
			if a, err := r.try(t.Context(), request{path: "/api/v1/events?namespace=a", body: simple}); err != nil || a.status != 202 {
				t.Errorf("status %d, %v", a.status, err)
			}
		})
		<-entered
	}
	a := r.do(t, request{path: "/api/v1/events?namespace=a", body: simple}).want(t, 503)
	if a.header.Get("Retry-After") == "" {
		t.Error("503 without Retry-After")
	}
	close(release)
	all.Wait()
}

// A client that gives up in the middle of a commit leaves an event that is stored and whose lanes are woken.
func TestAClientThatLeavesDoesNotBreakOffTheCommit(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	d := &double{
		matching: func() (store.Matching, error) {
			return store.Matching{Version: 1, Endpoints: []store.MatchedEndpoint{{Target: store.Target{LaneID: 7}, Name: "e", EventTypes: []string{"*"}}}}, nil
		},
		accepts: func([]store.NewEvent) ([]store.Acceptance, error) {
			close(entered)
			<-release
			return []store.Acceptance{{EventID: uuid.New(), AcceptedAt: time.Now()}}, nil
		},
	}
	r := startOpen(t, d)
	ctx, leave := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _, _ = r.try(ctx, request{path: "/api/v1/events?namespace=a", body: simple}) })
	<-entered
	leave()
	all.Wait()
	close(release)
	eventually(t, "touched", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return d.lanes[7] == 1
	})
}

func TestReadinessFollowsTheFirstContactAndTheStop(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	away := true
	d := &double{pings: func() error {
		mu.Lock()
		defer mu.Unlock()
		if away {
			return errors.New("no database")
		}
		return nil
	}}
	r := start(t, options{store: d, config: func(c *Config) { c.DrainDelay = time.Second }})
	if r.Ready() == nil {
		t.Error("ready before the first contact")
	}
	mu.Lock()
	away = false
	mu.Unlock()
	eventually(t, "ready", func() bool { return r.Ready() == nil })
	mu.Lock()
	away = true
	mu.Unlock()
	if err := r.Ready(); err != nil {
		t.Errorf("not ready since the database is away: %v", err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	eventually(t, "unready", func() bool { return r.Ready() != nil })
	a := r.do(t, request{path: "/api/v1/events?namespace=a", body: simple})
	a.accepted(t) // it serves on
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	if _, err := r.try(t.Context(), request{path: "/api/v1/events?namespace=a", body: simple}); err == nil {
		t.Error("it serves after its stop")
	}
}

func TestAStopLetsRequestsUnderWayEnd(t *testing.T) {
	t.Parallel()
	entered, release := make(chan struct{}), make(chan struct{})
	d := &double{accepts: func([]store.NewEvent) ([]store.Acceptance, error) {
		close(entered)
		<-release
		return []store.Acceptance{{EventID: uuid.New(), AcceptedAt: time.Now()}}, nil
	}}
	r := startOpen(t, d)
	var all sync.WaitGroup
	all.Go(func() {
		if a, err := r.try(t.Context(), request{path: "/api/v1/events?namespace=a", body: simple}); err != nil || a.status != 202 {
			t.Errorf("status %d, %v", a.status, err)
		}
	})
	<-entered
	stopped := make(chan error, 1)
	go func() { stopped <- r.stop() }()
	eventually(t, "stopping", func() bool { return r.stopping.Load() })
	close(release)
	all.Wait()
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// Postgres stops under a running server and comes back.
func TestPostgresAwayIsA503ThatEndsByItself(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{})
	dsn, err := pg.CreateDatabase(t.Context(), "ingest")
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	s, pool := openStore(t, dsn, 4)
	n := newTenantIn(t, s, pool, "billing", uuid.NewString())
	n.endpoint(t, "ledger", "*")
	r := start(t, options{store: s, config: func(c *Config) { c.DatabaseTimeout = 2 * time.Second }})
	first := r.do(t, request{path: n.path(), body: keyed("k")}).accepted(t)
	eventually(t, "ready", func() bool { return r.Ready() == nil })
	pool.Reset()
	pg.Stop()
	for _, q := range []request{{path: n.path(), body: simple}, {path: "/api/v1/events/" + first.ID + "?namespace=billing"}} {
		a := r.do(t, q).want(t, 503)
		if a.header.Get("Retry-After") == "" {
			t.Error("503 without Retry-After")
		}
		for _, word := range []string{"postgres", "127.0.0.1", "SQLSTATE", "connect"} {
			if strings.Contains(string(a.body), word) {
				t.Errorf("the answer has %q: %s", word, a.body)
			}
		}
	}
	if err := r.Ready(); err != nil {
		t.Errorf("not ready: %v", err)
	}
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "accepting again", func() bool {
		a := r.do(t, request{path: n.path(), body: simple})
		if a.status != 202 && a.status != 503 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		return a.status == 202
	})
	if again := r.do(t, request{path: n.path(), body: keyed("k")}).accepted(t); !again.Duplicate || again.ID != first.ID {
		t.Errorf("got %+v, want the first event", again)
	}
}

// All connections of the pool are taken: those who wait too long are told to come again, and nobody for ever.
func TestAnExhaustedPoolIsA503(t *testing.T) {
	t.Parallel()
	s, pool := openStore(t, localstack.Database(t), 1)
	n := newTenantIn(t, s, pool, "billing", uuid.NewString())
	r := start(t, options{store: s, config: func(c *Config) { c.DatabaseTimeout = 300 * time.Millisecond }})
	r.do(t, request{path: n.path(), body: simple}).accepted(t)
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK postrider.event IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			a, err := r.try(t.Context(), request{path: n.path(), body: simple})
			if err != nil || a.status != 503 || a.header.Get("Retry-After") == "" {
				t.Errorf("status %d, %v", a.status, err)
			}
		})
	}
	all.Wait()
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "accepting again", func() bool { return r.do(t, request{path: n.path(), body: simple}).status == 202 })
}

func TestAnAddressThatIsTakenStopsTheStart(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	config := DefaultConfig()
	config.Address, config.InsecureNoAuth = r.Addr().String(), true
	s, err := New(config, partsOf(&double{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("it started")
	}
}

func TestInsecureNoAuthIsSaidAtEveryStart(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	r.do(t, request{path: "/openapi.json"})
	if !strings.Contains(r.logs.String(), "INSECURE") {
		t.Errorf("not said in:\n%s", r.logs)
	}
}

func TestWithoutAKubernetesAPIThereIsNoServer(t *testing.T) {
	t.Parallel()
	config := DefaultConfig()
	config.BodyLimit = 0
	_, err := New(config, partsOf(&double{}))
	if err == nil || !strings.Contains(err.Error(), "Kubernetes") || !strings.Contains(err.Error(), "body-limit") {
		t.Errorf("got %v, want both problems", err)
	}
}

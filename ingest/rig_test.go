package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

// rig is a running server with a client that holds every answer against the contract.
type rig struct {
	*Server

	url      string
	client   *http.Client
	registry *prometheus.Registry
	logs     *logs
	stop     func() error // and wait
}

type options struct {
	store      Store
	kubernetes *rest.Config // nil: no authentication
	config     func(*Config)
	quiet      bool // keeps no log of what goes well
}

// logs collects what the server logs, at the most verbose level.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(line)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func start(t *testing.T, o options) *rig {
	t.Helper()
	config := DefaultConfig()
	config.Address = "127.0.0.1:0"
	config.InsecureNoAuth = o.kubernetes == nil
	config.DrainDelay = 0
	if o.config != nil {
		o.config(&config)
	}
	r := &rig{registry: prometheus.NewRegistry(), logs: &logs{}}
	level := slog.LevelDebug
	if o.quiet {
		level = slog.LevelInfo
	}
	var err error
	r.Server, err = New(config, Parts{
		Store: o.store, Kubernetes: o.kubernetes, Metrics: r.registry,
		Log: slog.New(slog.NewJSONHandler(r.logs, &slog.HandlerOptions{Level: level})),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.url = "http://" + r.Addr().String()
	transport := &http.Transport{MaxIdleConnsPerHost: 1000}
	r.client = &http.Client{Transport: transport, Timeout: time.Minute}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.stop = sync.OnceValue(func() error {
		cancel()
		transport.CloseIdleConnections()
		return <-done
	})
	t.Cleanup(func() {
		if err := r.stop(); err != nil {
			t.Errorf("the server ended with %v", err)
		}
	})
	return r
}

func partsOf(s Store) Parts {
	return Parts{Store: s, Metrics: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler)}
}

// startOpen runs a server without authentication.
func startOpen(t *testing.T, s Store) *rig {
	t.Helper()
	return start(t, options{store: s})
}

type request struct {
	method string // "": GET, or POST with a body
	path   string // "": /api/v1/events
	token  string
	header map[string]string // over the defaults; an empty value removes
	body   string
	reader io.Reader // in place of body: sent chunked
}

type answer struct {
	status int
	header http.Header
	body   []byte
}

func (r *rig) do(t testing.TB, q request) answer {
	t.Helper()
	a, err := r.try(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// try is do for goroutines of a test, and for requests that may fail.
func (r *rig) try(ctx context.Context, q request) (answer, error) {
	body := q.reader
	if q.body != "" {
		body = strings.NewReader(q.body)
	}
	switch {
	case q.method != "":
	case body != nil:
		q.method = http.MethodPost
	default:
		q.method = http.MethodGet
	}
	if q.path == "" {
		q.path = "/api/v1/events"
	}
	request, err := http.NewRequestWithContext(ctx, q.method, r.url+q.path, body)
	if err != nil {
		return answer{}, err
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	if q.token != "" {
		request.Header.Set("Authorization", "Bearer "+q.token)
	}
	for name, value := range q.header {
		request.Header.Set(name, value)
		if value == "" {
			request.Header.Del(name)
		}
	}
	response, err := r.client.Do(request)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = response.Body.Close() }() // it was read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{}, err
	}
	a := answer{status: response.StatusCode, header: response.Header, body: text}
	if q.method == http.MethodHead {
		return a, nil
	}
	c, err := theContract()
	if err != nil {
		return answer{}, err
	}
	return a, c.check(q.method, q.path, a.status, a.header, a.body)
}

// want ends the test if the status is another.
func (a answer) want(t testing.TB, status int) answer {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

func decode[T any](t testing.TB, a answer) T {
	t.Helper()
	var value T
	if err := json.Unmarshal(a.body, &value); err != nil {
		t.Fatalf("%v in %s", err, a.body)
	}
	return value
}

func (a answer) accepted(t testing.TB) acceptedAnswer {
	t.Helper()
	return decode[acceptedAnswer](t, a.want(t, http.StatusAccepted))
}

func (a answer) problem(t testing.TB) problem {
	t.Helper()
	return decode[problem](t, a)
}

// tenant is a namespace in a database.
type tenant struct {
	store *store.Store
	pool  *pgxpool.Pool // to look into the tables
	name  string
	uid   string
}

// openStore opens the store and a second connection to look into its tables.
func openStore(t testing.TB, dsn string, connections int32) (*store.Store, *pgxpool.Pool) {
	t.Helper()
	s, err := store.Open(t.Context(), store.Options{DSN: dsn, MaxConns: connections})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 2
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return s, pool
}

// newTenant makes a database with one namespace in it.
func newTenant(t testing.TB, name string) *tenant {
	t.Helper()
	s, pool := openStore(t, localstack.Database(t), 8)
	return newTenantIn(t, s, pool, name, uuid.NewString())
}

func newTenantIn(t testing.TB, s *store.Store, pool *pgxpool.Pool, name, uid string) *tenant {
	t.Helper()
	if err := s.RecordNamespace(t.Context(), name, uid); err != nil {
		t.Fatal(err)
	}
	return &tenant{store: s, pool: pool, name: name, uid: uid}
}

// endpoint applies an enabled endpoint, as the controller would.
func (n *tenant) endpoint(t testing.TB, name string, patterns ...string) store.Endpoint {
	t.Helper()
	return n.apply(t, name, func(c *store.EndpointChange) { c.Spec.EventTypes = patterns })
}

func (n *tenant) apply(t testing.TB, name string, change func(*store.EndpointChange)) store.Endpoint {
	t.Helper()
	c := store.EndpointChange{
		PublicID: uuid.New(), Namespace: n.name, Name: name, NamespaceUID: n.uid, UID: uuid.NewString(), Generation: 1,
		Spec: store.EndpointSpec{
			State: store.Enabled, URL: "https://hooks.example.com/", EventTypes: []string{"*"}, Timeout: 10 * time.Second,
			MaxConcurrency: 16, Payload: "Raw", MaxAttempts: 12, MaxDuration: 24 * time.Hour,
			BackoffBase: 10 * time.Second, BackoffFactor: 2, BackoffCap: 6 * time.Hour,
			FailureThreshold: 10, Cooldown: 30 * time.Second, MaxCooldown: 10 * time.Minute,
		},
	}
	change(&c)
	applied, err := n.store.ApplyEndpoint(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return applied
}

func (n *tenant) path() string { return "/api/v1/events?namespace=" + n.name }

// count runs a query that gives one number.
func (n *tenant) count(t testing.TB, query string, arguments ...any) int {
	t.Helper()
	var count int
	if err := n.pool.QueryRow(t.Context(), query, arguments...).Scan(&count); err != nil {
		t.Fatal(err)
	}
	return count
}

// eventually polls until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("after 30 s: not yet %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

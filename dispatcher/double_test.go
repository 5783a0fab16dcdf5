package dispatcher

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/destination"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
)

// memory is the double of the store for tests about time and about failures of the database. It keeps the promises of
// the real one that these tests are about: leases, tokens, bounds of a claim. Holds, rates and circuits it has not.
type memory struct {
	offset time.Duration // of the database's clock against the machine's

	mu        sync.Mutex
	rows      map[int64]*memoryRow
	endpoints map[int64]store.Endpoint
	attempts  []memoryAttempt
	dead      []store.Result
	claims    []store.ClaimRequest
	fenced    int
	completed int // calls
	tokens    uint64
	down      error // what every method returns while set
	paused    bool
	turns     map[string]int
	failing   map[string]error // chores
	listening func()
	onClaim   func(store.ClaimRequest)
}

type memoryRow struct {
	claim     store.Claim
	available time.Time
	lease     time.Time
	held      bool
}

// memoryAttempt is an attempt with when it was recorded, by the database's clock.
type memoryAttempt struct {
	at     time.Time
	result store.Result
}

func newMemory() *memory {
	return &memory{
		rows: map[int64]*memoryRow{}, endpoints: map[int64]store.Endpoint{}, turns: map[string]int{}, failing: map[string]error{},
	}
}

func (m *memory) now() time.Time { return time.Now().Add(m.offset) }

// add makes a delivery due to an endpoint.
func (m *memory) add(endpoint store.Endpoint) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := int64(len(m.rows) + len(m.attempts) + 1)
	for m.rows[id] != nil {
		id++
	}
	m.rows[id] = &memoryRow{available: m.now(), claim: store.Claim{
		DeliveryID: id, LaneID: endpoint.LaneID, EndpointID: endpoint.ID, EventID: uuid.New(), AcceptedAt: m.now(), AgeFrom: m.now(),
		EventType: "test.event", ContentType: "application/json", Body: []byte(`{"n":1}`),
	}}
	return id
}

// apply puts an endpoint in, or a newer version of it.
func (m *memory) apply(endpoint store.Endpoint) store.Endpoint {
	m.mu.Lock()
	defer m.mu.Unlock()
	endpoint.Version = m.endpoints[endpoint.ID].Version + 1
	m.endpoints[endpoint.ID] = endpoint
	return endpoint
}

func (m *memory) breakDown(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = err
}

func (m *memory) Claim(_ context.Context, r store.ClaimRequest) (store.Batch, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down != nil {
		return store.Batch{}, m.down
	}
	at := m.now()
	m.claims = append(m.claims, r)
	if m.onClaim != nil {
		m.onClaim(r)
	}
	if m.paused {
		return store.Batch{At: at, Paused: true}, nil
	}
	m.tokens++
	var token uuid.UUID
	binary.BigEndian.PutUint64(token[8:], m.tokens)
	batch := store.Batch{At: at}
	perLane := map[int64]int{}
	for _, id := range slices.Sorted(maps.Keys(m.rows)) {
		row := m.rows[id]
		if row.held && !at.Before(row.lease) {
			row.held = false
			batch.Reaped++
		}
		lane := row.claim.LaneID
		if row.held || row.available.After(at) || slices.Contains(r.Exclude, lane) {
			continue
		}
		most := r.PerLane
		if bound, ok := r.Caps[lane]; ok {
			most = min(most, bound)
		}
		if perLane[lane] >= most || len(batch.Claims) >= r.Budget {
			batch.More = true
			continue
		}
		perLane[lane]++
		row.held, row.lease = true, at.Add(r.Lease)
		row.claim.Attempt++
		row.claim.Token = token
		row.claim.Version = m.endpoints[row.claim.EndpointID].Version
		batch.Claims = append(batch.Claims, row.claim)
	}
	batch.Lanes = len(perLane)
	return batch, nil
}

func (m *memory) Complete(_ context.Context, results []store.Result) ([]store.Recorded, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down != nil {
		return nil, m.down
	}
	m.completed++
	recorded := make([]store.Recorded, len(results))
	for i, r := range results {
		row := m.rows[r.Claim.DeliveryID]
		if row == nil || !row.held || row.claim.Token != r.Claim.Token {
			recorded[i].Fenced = true
			m.fenced++
			continue
		}
		row.held = false
		if r.Verdict == store.Released || r.Unsent {
			row.claim.Attempt--
		} else {
			m.attempts = append(m.attempts, memoryAttempt{m.now(), r})
		}
		switch r.Verdict {
		case store.Retry:
			row.available = m.now().Add(r.Delay)
		case store.Dead:
			m.dead = append(m.dead, r)
			delete(m.rows, r.Claim.DeliveryID)
		case store.Delivered:
			delete(m.rows, r.Claim.DeliveryID)
		case store.Released:
		}
		recorded[i].Ready = m.ready(r.Claim.LaneID)
	}
	return recorded, nil
}

func (m *memory) ready(lane int64) bool {
	for _, row := range m.rows {
		if row.claim.LaneID == lane && !row.held && !row.available.After(m.now()) {
			return true
		}
	}
	return false
}

func (m *memory) Extend(_ context.Context, leases []store.Lease, lease time.Duration) (map[int64]bool, time.Time, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down != nil {
		return nil, time.Time{}, m.down
	}
	extended := map[int64]bool{}
	for _, l := range leases {
		if row := m.rows[l.DeliveryID]; row != nil && row.held && row.claim.Token == l.Token {
			row.lease = m.now().Add(lease)
			extended[l.DeliveryID] = true
		}
	}
	return extended, m.now(), nil
}

func (m *memory) Endpoints(_ context.Context, ids []int64) ([]store.Endpoint, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.down != nil {
		return nil, m.down
	}
	m.turns["endpoints"]++
	var found []store.Endpoint
	for _, id := range ids {
		if e, ok := m.endpoints[id]; ok {
			found = append(found, e)
		}
	}
	return found, nil
}

func (m *memory) Listen(ctx context.Context, wake func()) error {
	m.mu.Lock()
	if m.down != nil {
		defer m.mu.Unlock()
		return m.down
	}
	m.turns["listen"]++
	m.listening = wake
	m.mu.Unlock()
	wake()
	<-ctx.Done()
	return ctx.Err()
}

func (m *memory) notify() {
	m.mu.Lock()
	wake := m.listening
	m.mu.Unlock()
	wake()
}

func (m *memory) turn(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.turns[name]++
	return cmp.Or(m.failing[name], m.down)
}

func (m *memory) MakeDays(context.Context) (int, error) { return 0, m.turn("make_days") }
func (m *memory) DropDays(context.Context, time.Duration, time.Duration) (int, error) {
	return 0, m.turn("drop_days")
}

func (m *memory) SweepLanes(context.Context, int64, int) (int64, int, error) {
	return 0, 0, m.turn("sweep_lanes")
}

func (m *memory) BuryCancelled(context.Context, int) (int, error) { return 0, m.turn("bury_cancelled") }

func (m *memory) ExpireBacklogs(context.Context, int) (int, error) {
	return 0, m.turn("expire_backlogs")
}

func (m *memory) SettlePauses(context.Context) (int, error) { return 0, m.turn("settle_pauses") }

func (m *memory) PurgeDeadLetters(context.Context, time.Duration, int) (int, error) {
	return 0, m.turn("purge_dead_letters")
}

func (m *memory) PurgeIdempotency(context.Context, int) (int, error) {
	return 0, m.turn("purge_idempotency")
}
func (m *memory) PurgePinned(context.Context, int) (int, error) { return 0, m.turn("purge_pinned") }
func (m *memory) PurgeEndpoints(context.Context, time.Duration, int) (int, error) {
	return 0, m.turn("purge_endpoints")
}

func (m *memory) QueueFigures(context.Context) (store.QueueFigures, error) {
	return store.QueueFigures{At: m.now()}, m.turn("queue_figures")
}

// turnsOf is how often a method was called.
func (m *memory) turnsOf(name string) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.turns[name]
}

func (m *memory) pending() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.rows)
}

// recorded is a copy of what was recorded.
func (m *memory) recorded() []memoryAttempt {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.attempts)
}

func (m *memory) buried() []store.Result {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.dead)
}

func (m *memory) asked() []store.ClaimRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.claims)
}

var errDown = errors.New("the database is away")

// receiver answers requests within the process.
type receiver func(r *http.Request) (*http.Response, error)

func (f receiver) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer func() { _ = r.Body.Close() }()
	}
	return f(r)
}

// answers makes a response.
func answers(status int, header ...string) (*http.Response, error) {
	r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("ok"))}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r, nil
}

// hang never answers.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// testSecret is what the tests' endpoints sign with, as a Secret holds it.
const testSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// testKeyring seals with one key.
func testKeyring(t testing.TB) *keyring.Keyring {
	t.Helper()
	ring, err := keyring.Parse([]byte("test:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="))
	if err != nil {
		t.Fatalf("make the keyring: %v", err)
	}
	return ring
}

func sealKey(t testing.TB, place uuid.UUID, secret string, expires time.Time) store.SealedKey {
	t.Helper()
	sealed, err := testKeyring(t).Seal([]byte(secret), place.String(), store.ColumnKey)
	if err != nil {
		t.Fatalf("seal a key: %v", err)
	}
	return store.SealedKey{Sealed: sealed, Fingerprint: "sha256:00000000", ExpiresAt: expires}
}

// testSpec is an ordinary endpoint's.
func testSpec(url string) store.EndpointSpec {
	return store.EndpointSpec{
		State: store.Enabled, URL: url, EventTypes: []string{"*"}, Timeout: 10 * time.Second, MaxConcurrency: 16, Payload: "Raw",
		MaxAttempts: 12, MaxDuration: 24 * time.Hour, BackoffBase: 10 * time.Second, BackoffFactor: 2, BackoffCap: 6 * time.Hour,
		FailureThreshold: 1000, Cooldown: 30 * time.Second, MaxCooldown: 10 * time.Minute,
	}
}

// testEndpoint is the nth endpoint of the double.
func testEndpoint(t testing.TB, n int64) store.Endpoint {
	t.Helper()
	public := testPublicID
	return store.Endpoint{
		ID: n, PublicID: public, Namespace: "tests", Name: "endpoint", LaneID: 100 + n, Spec: testSpec("http://127.0.0.1:1/hook"),
		Keys: []store.SealedKey{sealKey(t, public, testSecret, time.Time{})},
	}
}

// loopback allows what the tests' receivers listen on.
func loopback(t testing.TB) *destination.Policy {
	t.Helper()
	policy, err := destination.New(destination.Config{AllowedCIDRs: []string{"127.0.0.0/8", "::1/128"}, AllowHTTP: true})
	if err != nil {
		t.Fatalf("make the policy: %v", err)
	}
	return policy
}

// strict allows nothing but public addresses, over http too: what is refused is refused for its address.
func strict(t testing.TB) *destination.Policy {
	t.Helper()
	policy, err := destination.New(destination.Config{AllowHTTP: true})
	if err != nil {
		t.Fatalf("make the policy: %v", err)
	}
	return policy
}

// testDependencies are those of a dispatcher that logs nothing.
func testDependencies(t testing.TB, s Store) Dependencies {
	t.Helper()
	return Dependencies{
		Store: s, Keyring: testKeyring(t), Policy: loopback(t), Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	}
}

// running is a dispatcher that runs until it is stopped.
type running struct {
	*Dispatcher
	t     testing.TB
	stop  context.CancelFunc
	ended func() error // waits
}

// start runs a dispatcher. Stop it within a synctest bubble; elsewhere the test's end does.
func start(t testing.TB, c Config, d Dependencies, o outside) *running {
	t.Helper()
	dispatcher, err := assemble(c, d, o)
	if err != nil {
		t.Fatalf("make a dispatcher: %v", err)
	}
	return run(t, dispatcher)
}

// startWithoutChores is start for tests of long simulated times, in which chores by the second would take most of the
// real one.
func startWithoutChores(t testing.TB, c Config, d Dependencies, o outside) *running {
	t.Helper()
	dispatcher, err := assemble(c, d, o)
	if err != nil {
		t.Fatalf("make a dispatcher: %v", err)
	}
	dispatcher.chores = nil
	return run(t, dispatcher)
}

func run(t testing.TB, dispatcher *Dispatcher) *running {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- dispatcher.Run(ctx) }()
	return &running{Dispatcher: dispatcher, t: t, stop: stop, ended: sync.OnceValue(func() error { return <-result })}
}

// end stops it and waits; twice is once.
func (r *running) end() {
	r.t.Helper()
	r.stop()
	if err := r.ended(); err != nil {
		r.t.Errorf("Run: %v", err)
	}
}

// sealedHeaders are an endpoint's headers as the database holds them.
func sealedHeaders(t testing.TB, headers ...store.Header) []byte {
	t.Helper()
	text, err := store.MarshalHeaders(headers)
	if err != nil {
		t.Fatal(err)
	}
	sealed, err := testKeyring(t).Seal(text, testPublicID.String(), store.ColumnHeaders)
	if err != nil {
		t.Fatal(err)
	}
	return sealed
}

// testPublicID is that of all endpoints of the double: what is sealed for one opens for all.
var testPublicID = uuid.MustParse("0198f0a0-0000-7000-8000-000000000001")

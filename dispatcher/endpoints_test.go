package dispatcher

import (
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
)

// paths notes where requests went.
type paths struct {
	mu   sync.Mutex
	seen []string
}

func (p *paths) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, r.URL.Path)
	return answers(200)
}

func (p *paths) last() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[len(p.seen)-1]
}

// D15, by the double: a change of the row is in force on the next claim, and nothing is read again without one.
func TestChangedEndpointIsReadAgainOnTheNextClaim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, world := newMemory(), &paths{}
		endpoint := testEndpoint(t, 1)
		endpoint.Spec.URL = "http://127.0.0.1:1/old"
		endpoint = m.apply(endpoint)
		d := startWithoutChores(t, Config{Senders: 2}, testDependencies(t, m), outside{transport: world})
		synctest.Wait()
		deliver := func() string {
			m.add(endpoint)
			m.notify()
			synctest.Wait()
			return world.last()
		}
		for range 5 {
			if got := deliver(); got != "/old" {
				t.Fatalf("sent to %s, want /old", got)
			}
			time.Sleep(time.Hour)
		}
		if got := m.turnsOf("endpoints"); got != 1 {
			t.Errorf("queries for endpoints: got %d, want 1 for five deliveries in five hours", got)
		}
		endpoint.Spec.URL = "http://127.0.0.1:1/new"
		endpoint = m.apply(endpoint)
		if got := deliver(); got != "/new" {
			t.Errorf("after the change: sent to %s, want /new", got)
		}
		if got := m.turnsOf("endpoints"); got != 2 {
			t.Errorf("queries for endpoints: got %d, want 2", got)
		}
		d.end()
		for i, a := range m.recorded() {
			if want := int64(1 + i/5); a.result.Version != want {
				t.Errorf("attempt %d: recorded under version %d, want %d", i, a.result.Version, want)
			}
		}
	})
}

// D9, by the double: what was claimed before the endpoint was paused, disabled or deleted, and is about to be sent after
// that is known, goes back.
func TestClaimOfAnEndpointThatMayNotBeSentToIsReleased(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*store.Endpoint){
		"paused":    func(e *store.Endpoint) { e.Spec.State = store.Paused },
		"disabled":  func(e *store.Endpoint) { e.Spec.State, e.LaneID = store.Disabled, 0 },
		"not ready": func(e *store.Endpoint) { e.HoldReason = "SecretNotFound" },
		"deleted":   func(e *store.Endpoint) { e.Tombstoned = true },
		"enabled anew, with another lane": func(e *store.Endpoint) {
			e.LaneID = 999
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m, world := newMemory(), &paths{}
				endpoint := testEndpoint(t, 1)
				before := endpoint
				change(&endpoint)
				m.apply(endpoint)
				m.add(before)
				d := startWithoutChores(t, Config{Senders: 2}, testDependencies(t, m), outside{transport: world})
				time.Sleep(10 * time.Second)
				d.end()
				if len(world.seen) != 0 || len(m.recorded()) != 0 || m.pending() != 1 || m.rows[1].claim.Attempt != 0 {
					t.Errorf("got requests %v and attempts %v, want none and the delivery back", world.seen, m.recorded())
				}
				if claims := len(m.asked()); claims > 250 {
					t.Errorf("claims in 10 s: got %d, want no spinning", claims)
				}
			})
		})
	}
}

// When a key cannot be opened nothing is sent, no attempt is spent, and nobody's circuit moves.
func TestNothingIsSentWithoutItsSigningKeys(t *testing.T) {
	t.Parallel()
	at := time.Now()
	good := sealKey(t, testPublicID, testSecret, time.Time{})
	elsewhere := sealKey(t, uuid.New(), testSecret, time.Time{}) // copied from another row
	short := sealKey(t, testPublicID, "short", time.Time{})
	expired := elsewhere
	expired.ExpiresAt = at.Add(-time.Hour)
	expiring := elsewhere
	expiring.ExpiresAt = at.Add(time.Hour)
	for _, test := range []struct {
		name    string
		keys    []store.SealedKey
		headers []byte
		want    Reason // "": delivered
	}{
		{"a good key", []store.SealedKey{good}, nil, ""},
		{"no key", nil, nil, SigningKeyUnavailable},
		{"a key of another row", []store.SealedKey{elsewhere}, nil, SigningKeyUnavailable},
		{"a key that is none", []store.SealedKey{short}, nil, SigningKeyUnavailable},
		{"bytes that were never sealed", []store.SealedKey{{Sealed: []byte("nonsense")}}, nil, SigningKeyUnavailable},
		{"an older key that cannot be opened", []store.SealedKey{good, expiring}, nil, SigningKeyUnavailable},
		{"an expired key that cannot be opened", []store.SealedKey{good, expired}, nil, ""},
		{"headers that cannot be opened", []store.SealedKey{good}, []byte("nonsense"), HeadersUnavailable},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var logs collected
			b, world := newBench(t, outside{}), &paths{}
			b.sender.transport, b.deps.Logger = world, logs.logger()
			row := testEndpoint(t, 1)
			row.Keys, row.Spec.Headers = test.keys, test.headers
			j := &job{endpoint: newEndpoints(b.sender.config, b.deps).prepare(&row), clock: databaseTime{at: at, read: now()}}
			j.result.Claim = store.Claim{Attempt: 12, AgeFrom: at.Add(-time.Hour * 1000), EventID: uuid.Must(uuid.NewV7())}
			b.sender.attempt(j)
			r := &j.result
			if test.want == "" {
				if r.Verdict != store.Delivered || len(world.seen) != 1 {
					t.Errorf("got %s %s, want delivered", r.Verdict, r.Reason)
				}
				return
			}
			if r.Verdict != store.Retry || r.Reason != string(test.want) || !r.Unsent || r.Failing || len(world.seen) != 0 {
				t.Errorf("got %s %s (unsent %v, failing %v) after %d requests, want an unsent retry, %s", r.Verdict, r.Reason, r.Unsent, r.Failing, len(world.seen), test.want)
			}
			if r.Message == "" || strings.Contains(r.Message+logs.String(), "MfKQ9r8") {
				t.Errorf("message %q, log %s: want words and no secret", r.Message, logs.String())
			}
		})
	}
}

func TestEndpointWhoseRowIsMissingIsNotHammered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m, world := newMemory(), &paths{}
		m.add(testEndpoint(t, 1)) // and never applied
		d := startWithoutChores(t, Config{Senders: 2}, testDependencies(t, m), outside{transport: world})
		time.Sleep(10 * time.Minute)
		if got := m.turnsOf("endpoints"); got < 8 || got > 22 {
			t.Errorf("tries in ten minutes: got %d, want one or two a minute", got)
		}
		m.apply(testEndpoint(t, 1))
		time.Sleep(2 * time.Minute)
		d.end()
		if len(m.recorded()) != 1 || m.recorded()[0].result.Claim.Attempt != 1 {
			t.Errorf("attempts after the row came: got %+v, want the first", m.recorded())
		}
	})
}

func TestRememberedEndpointsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newMemory()
		e := newEndpoints(Config{Endpoints: 100}.WithDefaults(), testDependencies(t, m))
		for id := int64(1); id <= 300; id++ {
			m.apply(testEndpoint(t, id))
			if _, err := e.load(t.Context(), []int64{id}); err != nil {
				t.Fatal(err)
			}
			if len(e.known) > 100 {
				t.Fatalf("remembered after %d: got %d, want 100 at most", id, len(e.known))
			}
			if e.current(&store.Claim{EndpointID: id, Version: 1}) == nil {
				t.Fatalf("endpoint %d was forgotten at once", id)
			}
			time.Sleep(time.Second)
		}
		if e.current(&store.Claim{EndpointID: 300, Version: 2}) != nil {
			t.Error("version 1 was given for a claim of version 2")
		}
	})
}

// A URL that shows by itself that it is not allowed is refused without connecting: its scheme the dialler cannot see.
func TestURLIsJudgedBeforeConnecting(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"ftp://127.0.0.1/", "http://127.1/", "http://0x7f000001/", "http://[fe80::1%25lo]/", "://", "http://169.254.169.254/latest"} {
		got := attemptOnce(t, testSpec(url), outside{transport: receiver(func(*http.Request) (*http.Response, error) {
			t.Errorf("%s: a request was made", url)
			return answers(200)
		})})
		if got.Reason != string(DestinationNotAllowed) || got.Verdict != store.Retry || !got.Failing {
			t.Errorf("%s: got %s %s, want %s %s", url, got.Verdict, got.Reason, store.Retry, DestinationNotAllowed)
		}
	}
}

func TestKeysExpireByTheGivenTime(t *testing.T) {
	t.Parallel()
	at := time.Now()
	e := &endpoint{keys: []signingKey{{key: parsed(t, testSecret)}, {key: parsed(t, "another one, of no fewer than 24 bytes"), expires: at}}}
	for _, test := range []struct {
		at   time.Time
		want int
	}{{at.Add(-time.Nanosecond), 2}, {at, 1}, {at.Add(time.Hour), 1}} {
		if keys, err := e.signingKeys(nil, test.at); err != nil || len(keys) != test.want {
			t.Errorf("keys at %v: got %d, %v, want %d", test.at.Sub(at), len(keys), err, test.want)
		}
	}
}

func parsed(t testing.TB, secret string) signature.Key {
	t.Helper()
	key, err := signature.ParseKey([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

package ingest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

// bodyOf makes a valid event of exactly that many bytes.
func bodyOf(size int) string {
	const head, tail = `{"type":"a","payload":"`, `"}`
	return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
}

// Case A5.
func TestBodiesAtTheLimit(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	r := startOpen(t, n.store)
	limit := int(DefaultConfig().BodyLimit)
	chunked := func(body string) request {
		return request{path: n.path(), reader: struct{ io.Reader }{strings.NewReader(body)}}
	}
	r.do(t, request{path: n.path(), body: bodyOf(limit)}).accepted(t)
	r.do(t, chunked(bodyOf(limit))).accepted(t)
	r.do(t, request{path: n.path(), body: bodyOf(limit + 1)}).want(t, 413)
	r.do(t, chunked(bodyOf(limit+1))).want(t, 413)
	var bomb bytes.Buffer
	packer := gzip.NewWriter(&bomb)
	if _, err := io.CopyN(packer, zeros{}, 10<<20); err != nil {
		t.Fatal(err)
	}
	if err := packer.Close(); err != nil {
		t.Fatal(err)
	}
	r.do(t, request{path: n.path(), body: bomb.String(), header: map[string]string{"Content-Encoding": "gzip"}}).want(t, 415)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// counted counts what the server took of an endless body.
type counted struct {
	io.Reader

	taken int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.taken += n
	return n, err
}

// Acceptance: a 40 MB body → 413, memory does not climb. Not parallel: it looks at the memory of the whole process.
func TestAFortyMegabyteBodyIsRefusedWithoutBeingRead(t *testing.T) { //nolint:paralleltest // measures memory
	r := startOpen(t, &double{})
	const size = 40 << 20
	allocated := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	for name, announced := range map[string]int64{"announced": size, "chunked": -1} {
		before := allocated()
		taken := 0
		for range 5 {
			body := &counted{Reader: io.LimitReader(zeros{}, size)}
			response := r.raw(t, body, announced)
			if !strings.HasPrefix(response, "HTTP/1.1 413 ") {
				t.Fatalf("%s: got %.80q", name, response)
			}
			taken = max(taken, body.taken)
		}
		// All that was ever allocated, by five requests of 40 MB and this client: less than one of them.
		if used := allocated() - before; used > size/2 {
			t.Errorf("%s: %d bytes were allocated", name, used)
		}
		// The rest is what the kernel's buffers hold.
		if taken > size/2 {
			t.Errorf("%s: %d bytes were taken", name, taken)
		}
	}
}

// A client that asks first is told before it sends anything.
func TestAnAnnouncedBodyOverTheLimitIsNotAskedFor(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	for length, want := range map[int]string{40 << 20: "HTTP/1.1 413 ", len(simple): "HTTP/1.1 100 "} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST /api/v1/events?namespace=a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", length); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		status, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.HasPrefix(status, want) {
			t.Errorf("%d bytes: got %q, %v, want %s", length, status, err, want)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// raw sends a request by hand, so that the client's own reading does not depend on what it may write, and returns the answer.
func (r *rig) raw(t *testing.T, body io.Reader, length int64) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // a second time where it was closed
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const head = "POST /api/v1/events?namespace=a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	var sending sync.WaitGroup
	sending.Go(func() { // ends when the server closes the connection
		if length >= 0 {
			_, _ = fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n", head, length)
			_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, body, make([]byte, 32<<10))
			return
		}
		_, _ = io.WriteString(conn, head+"Transfer-Encoding: chunked\r\n\r\n")
		chunk := make([]byte, 32<<10)
		for {
			n, err := body.Read(chunk)
			if err != nil {
				return
			}
			if _, err := fmt.Fprintf(conn, "%x\r\n%s\r\n", n, chunk[:n]); err != nil {
				return
			}
		}
	})
	status, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	_ = conn.Close() // ends the sending
	sending.Wait()
	return status
}

func TestASlowBodyEndsAtItsTimeAndHarmsNobody(t *testing.T) {
	t.Parallel()
	r := start(t, options{store: &double{}, config: func(c *Config) { c.BodyTimeout = time.Second }})
	slow, drip := io.Pipe()
	var dripping sync.WaitGroup
	dripping.Go(func() {
		for {
			if _, err := io.WriteString(drip, " "); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond) // the client's pace, not a wait
		}
	})
	began := time.Now()
	got := make(chan answer, 1)
	dripping.Go(func() {
		a, err := r.try(t.Context(), request{path: "/api/v1/events?namespace=a", reader: slow})
		if err != nil {
			t.Error(err)
		}
		got <- a
	})
	r.do(t, request{path: "/api/v1/events?namespace=a", body: simple}).accepted(t)
	a := <-got
	if a.status != http.StatusRequestTimeout || time.Since(began) > 10*time.Second {
		t.Errorf("status %d after %v, want 408 after a second", a.status, time.Since(began))
	}
	_ = slow.Close()
	dripping.Wait()
}

func TestAHeaderThatNeverEndsIsCutOff(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // a second time where it was closed
	if _, err := io.WriteString(conn, "POST /api/v1/events HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is open after 20 s")
	}
}

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
			return store.Matching{Endpoints: []store.MatchedEndpoint{{Target: store.Target{LaneID: 7}, Name: "e", EventTypes: []string{"*"}}}}, nil
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

// certificate writes a self-signed one for 127.0.0.1 and returns a pool that trusts it.
func certificate(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "ingest"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	// The key first, and both by renaming, as a kubelet swaps them.
	for _, file := range []struct {
		name string
		text []byte
	}{{keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret})}, {certFile, cert}} {
		if err := os.WriteFile(file.name+".new", file.text, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(file.name+".new", file.name); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cert)
	return pool
}

func TestCertificatesAreReloadedWhenTheyChange(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	certFile, keyFile := filepath.Join(folder, "tls.crt"), filepath.Join(folder, "tls.key")
	trusted := certificate(t, certFile, keyFile)
	r := start(t, options{store: &double{}, config: func(c *Config) { c.TLSCertFile, c.TLSKeyFile = certFile, keyFile }})
	get := func(trusted *x509.CertPool) (protocol int, err error) {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+r.Addr().String()+"/openapi.json", nil)
		if err != nil {
			return 0, err
		}
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			return 0, err
		}
		return response.ProtoMajor, response.Body.Close()
	}
	protocol, err := get(trusted)
	if err != nil {
		t.Fatal(err)
	}
	if protocol != 2 {
		t.Errorf("spoke HTTP/%d, want HTTP/2", protocol)
	}
	trusted = certificate(t, certFile, keyFile)
	eventually(t, "serving the new certificate", func() bool {
		_, err := get(trusted)
		return err == nil
	})
}

func TestACertificateThatIsMissingStopsTheStart(t *testing.T) {
	t.Parallel()
	config := DefaultConfig()
	config.Address, config.InsecureNoAuth = "127.0.0.1:0", true
	config.TLSCertFile, config.TLSKeyFile = "/nowhere/tls.crt", "/nowhere/tls.key"
	s, err := New(config, partsOf(&double{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Run(t.Context()); err == nil {
		t.Error("it started")
	}
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

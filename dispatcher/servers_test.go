package dispatcher

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/net/http2"

	"github.com/postrider/postrider/store"
)

// attemptOnce makes one attempt at an endpoint, with the real transport, and returns what would be recorded.
func attemptOnce(t testing.TB, spec store.EndpointSpec, o outside, change ...func(*store.Claim)) store.Result {
	t.Helper()
	return newBench(t, o).attempt(spec, change...)
}

// bench is a sender without a dispatcher around it.
type bench struct {
	t      testing.TB
	sender *sender
	deps   Dependencies
}

func newBench(t testing.TB, o outside) *bench {
	t.Helper()
	deps := testDependencies(t, newMemory())
	c := Config{Version: "test"}.WithDefaults()
	connections := newNetwork(deps.Policy, c.MaxTimeout, o.resolver)
	t.Cleanup(connections.close)
	if o.transport == nil {
		o.transport = newTransport(connections, c.Senders, c.MaxTimeout, o.roots, &databaseClock{})
	}
	seats := newSeats(1)
	m, err := newMetrics(prometheus.NewRegistry(), seats)
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, deps: deps, sender: &sender{
		config: c, life: t.Context(), transport: o.transport, logger: deps.Logger, metrics: m, slot: &atomic.Pointer[job]{}, seats: seats,
	}}
}

func (b *bench) attempt(spec store.EndpointSpec, change ...func(*store.Claim)) store.Result {
	b.t.Helper()
	row := testEndpoint(b.t, 1)
	row.Spec = spec
	claim := store.Claim{
		DeliveryID: 1, LaneID: row.LaneID, EndpointID: row.ID, EventID: uuid.Must(uuid.NewV7()), Attempt: 1,
		AcceptedAt: time.Now(), AgeFrom: time.Now(), EventType: "invoice.paid", ContentType: "application/json", Body: []byte(`{"n":1}`),
	}
	for _, f := range change {
		f(&claim)
	}
	j := &job{endpoint: newEndpoints(b.sender.config, b.deps).prepare(&row), clock: databaseTime{at: time.Now(), read: now()}}
	j.result.Claim = claim
	j.lease.Store(int64(now().add(time.Minute)))
	b.sender.attempt(j)
	return j.result
}

// listen serves connections one goroutine each and ends them with the test.
func listen(t testing.TB, serve func(net.Conn)) (address string) {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var (
		serving sync.WaitGroup
		mu      sync.Mutex
		open    []net.Conn
	)
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, conn)
			mu.Unlock()
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		serving.Wait()
	})
	return listener.Addr().String()
}

// afterRequest reads one whole request and does something to the connection.
func afterRequest(then func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		request, err := http.ReadRequest(bufio.NewReader(conn))
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, request.Body)
		then(conn)
	}
}

// reply writes these bytes and closes.
func reply(text string) func(net.Conn) {
	return func(conn net.Conn) { _, _ = io.WriteString(conn, text) }
}

func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
}

// closedPort is one that nobody listens on.
func closedPort(t testing.TB) string {
	t.Helper()
	// Bound and not listening: refused, and nobody else's until the test ends.
	socket, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(socket) })
	if err := syscall.Bind(socket, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(socket)
	if err != nil {
		t.Fatal(err)
	}
	address, ok := name.(*syscall.SockaddrInet4)
	if !ok {
		t.Fatalf("bound to %v", name)
	}
	return fmt.Sprintf("127.0.0.1:%d", address.Port)
}

// authority signs certificates that the tests trust.
type authority struct {
	pool *x509.CertPool
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "tests"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return &authority{pool: pool, cert: cert, key: key}
}

// issue makes a certificate for a host.
func (a *authority) issue(t testing.TB, host string, until time.Time) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Now().Add(-time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// rootsOf are what a client of a TLS server of httptest must trust.
func rootsOf(server *httptest.Server) *x509.CertPool {
	roots := x509.NewCertPool()
	roots.AddCert(server.Certificate())
	return roots
}

// config of a TLS server on loopback.
func (a *authority) config(t testing.TB, protocols ...string) *tls.Config {
	t.Helper()
	return &tls.Config{
		Certificates: []tls.Certificate{a.issue(t, "127.0.0.1", time.Now().Add(time.Hour))},
		NextProtos:   protocols, MinVersion: tls.VersionTLS12,
	}
}

// overTLS serves what comes out of the handshake.
func overTLS(config *tls.Config, serve func(net.Conn)) func(net.Conn) {
	return func(conn net.Conn) {
		secure := tls.Server(conn, config)
		if secure.HandshakeContext(context.Background()) == nil {
			serve(secure)
		}
	}
}

// speakHTTP2 reads a client's preface and frames until its request is whole, then answers with frames of its own.
func speakHTTP2(answer func(f *http2.Framer, stream uint32)) func(net.Conn) {
	return func(conn net.Conn) {
		preface := make([]byte, len(http2.ClientPreface))
		if _, err := io.ReadFull(conn, preface); err != nil {
			return
		}
		f := http2.NewFramer(conn, conn)
		if f.WriteSettings() != nil {
			return
		}
		for {
			frame, err := f.ReadFrame()
			if err != nil {
				return
			}
			if settings, ok := frame.(*http2.SettingsFrame); ok && !settings.IsAck() && f.WriteSettingsAck() != nil {
				return
			}
			if data, ok := frame.(*http2.DataFrame); ok && data.StreamEnded() {
				answer(f, data.StreamID)
				// Closing over what is unread, such as the acknowledgement of our settings, would reset the connection.
				if secure, ok := conn.(*tls.Conn); ok && secure.CloseWrite() == nil {
					_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
					_, _ = io.Copy(io.Discard, conn)
				}
				return
			}
		}
	}
}

// nameserver answers A questions by a function: addresses, or a failure.
func nameserver(t testing.TB, answer func(name string) ([]netip.Addr, dnsmessage.RCode)) *net.Resolver {
	t.Helper()
	var config net.ListenConfig
	conn, err := config.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply := answerDNS(buffer[:n], answer); reply != nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		serving.Wait()
	})
	address := conn.LocalAddr().String()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", address)
	}}
}

func answerDNS(question []byte, answer func(name string) ([]netip.Addr, dnsmessage.RCode)) []byte {
	var m dnsmessage.Message
	if m.Unpack(question) != nil || len(m.Questions) != 1 {
		return nil
	}
	q := m.Questions[0]
	addresses, code := answer(strings.TrimSuffix(q.Name.String(), "."))
	m.Header = dnsmessage.Header{ID: m.ID, Response: true, Authoritative: true, RCode: code}
	m.Additionals = nil
	for _, a := range addresses {
		header := dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: dnsmessage.ClassINET}
		switch {
		case q.Type == dnsmessage.TypeA && a.Is4():
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: a.As4()}})
		case q.Type == dnsmessage.TypeAAAA && a.Is6():
			m.Answers = append(m.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: a.As16()}})
		}
	}
	packed, err := m.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// collected is a logger that keeps its lines.
type collected struct {
	mu    sync.Mutex
	lines strings.Builder
}

func (c *collected) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines.Write(p)
}

func (c *collected) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lines.String()
}

// logger at the most verbose level.
func (c *collected) logger() *slog.Logger {
	return slog.New(slog.NewJSONHandler(c, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

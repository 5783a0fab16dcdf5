package dispatcher

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/postrider/postrider/destination"
)

const (
	// Shorter than what usual servers and load balancers keep (60 s and more), so that it is mostly us who close: a
	// request written to a connection that the other side closes at that moment fails, and POSTs are not repeated.
	idleConnTimeout = 30 * time.Second
	// Idle connections kept, per sender: with many endpoints each has its own. One costs about 30 KiB with TLS.
	idleConnsPerSender = 2
	maxResponseHeader  = 64 << 10
	// A usual answer has a few hundred bytes; larger ones are read in more steps, and bodies into a buffer of the sender's.
	readBuffer = 2 << 10
	// A peer that vanished is noticed by pings, or every request over its HTTP/2 connection would run into its timeout.
	pingAfter   = 15 * time.Second
	pingTimeout = 5 * time.Second
	// What a receiver may send unasked into our memory before we read it.
	receiveBufferPerStream     = 128 << 10
	receiveBufferPerConnection = 1 << 20
)

// network dials under the destination policy and owns the connections: none outlives close.
type network struct {
	policy atomic.Pointer[destination.Policy]
	dialer net.Dialer
	life   context.Context
	end    context.CancelFunc

	mu     sync.Mutex
	closed bool
	open   map[*connection]struct{}
	dials  sync.WaitGroup
}

// newNetwork makes a network whose connections are made within a time. The resolver may be nil: the system's.
func newNetwork(policy *destination.Policy, timeout time.Duration, resolver *net.Resolver) *network {
	life, end := context.WithCancel(context.Background())
	n := &network{
		life: life,
		end:  end,
		open: map[*connection]struct{}{},
	}
	n.policy.Store(policy)
	n.dialer = net.Dialer{Timeout: timeout, KeepAlive: pingAfter, Resolver: resolver, Control: func(network, address string, raw syscall.RawConn) error {
		return n.policy.Load().Control(network, address, raw)
	}}
	return n
}

// govern puts a policy in force, and closes the connections that it forbids: an idle one would be used again without being
// dialled, and judged.
func (n *network) govern(policy *destination.Policy) {
	n.policy.Store(policy)
	var forbidden []*connection
	n.mu.Lock()
	for c := range n.open {
		if !c.allowed(policy) {
			forbidden = append(forbidden, c)
		}
	}
	n.mu.Unlock()
	for _, c := range forbidden {
		_ = c.Close()
	}
}

// dial is http.Transport.DialContext. The transport lets a dial outlive the request that asked for it, for the benefit
// of the next one; so it ends with the network and not with the context alone.
func (n *network) dial(ctx context.Context, protocol, address string) (net.Conn, error) {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil, net.ErrClosed
	}
	n.dials.Add(1)
	n.mu.Unlock()
	defer n.dials.Done()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(n.life, cancel)() //nolint:contextcheck // the end of the network and not of the request
	conn, err := n.dialer.DialContext(ctx, protocol, address)
	if err != nil {
		return nil, err
	}
	c := &connection{Conn: conn, network: n}
	n.mu.Lock()
	n.open[c] = struct{}{}
	closed := n.closed
	n.mu.Unlock()
	if closed {
		return nil, errors.Join(net.ErrClosed, c.Close())
	}
	// The policy may have changed since the address was judged, before the connection was among the open ones.
	if policy := n.policy.Load(); !c.allowed(policy) {
		return nil, errors.Join(policy.Control(protocol, c.RemoteAddr().String(), nil), c.Close())
	}
	return c, nil
}

// close ends all dials and connections, and returns when the dials are over.
func (n *network) close() {
	n.mu.Lock()
	n.closed = true
	open := make([]*connection, 0, len(n.open))
	for c := range n.open {
		open = append(open, c)
	}
	n.mu.Unlock()
	n.end()
	for _, c := range open {
		_ = c.Close()
	}
	n.dials.Wait()
}

// connection is one that its network knows of until it is closed.
type connection struct {
	net.Conn
	network *network
}

func (c *connection) allowed(policy *destination.Policy) bool {
	return policy.Control("tcp", c.RemoteAddr().String(), nil) == nil
}

func (c *connection) Close() error {
	c.network.mu.Lock()
	delete(c.network.open, c)
	c.network.mu.Unlock()
	return c.Conn.Close()
}

// newTransport makes the one transport for all endpoints. roots may be nil: the system's.
//
// The number of connections to a host is bounded by the requests in flight to it, which the store bounds over all
// replicas, and not by MaxConnsPerHost: a request waiting for a connection would hold a sender and spend its timeout.
// All connections of a burst are kept idle, so that the next deliveries find them.
func newTransport(n *network, senders int, timeout time.Duration, roots *x509.CertPool, clock *databaseClock) *http.Transport {
	return &http.Transport{
		Proxy:                  nil, // never: the policy must see the address that is dialled
		DialContext:            n.dial,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, Time: clock.now},
		TLSHandshakeTimeout:    timeout,
		ForceAttemptHTTP2:      true,
		DisableCompression:     true, // or gzip would be asked for
		MaxIdleConns:           idleConnsPerSender * senders,
		MaxIdleConnsPerHost:    senders,
		IdleConnTimeout:        idleConnTimeout,
		MaxResponseHeaderBytes: maxResponseHeader,
		ReadBufferSize:         readBuffer,
		HTTP2: &http.HTTP2Config{
			SendPingTimeout:               pingAfter,
			PingTimeout:                   pingTimeout,
			WriteByteTimeout:              timeout,
			MaxReceiveBufferPerStream:     receiveBufferPerStream,
			MaxReceiveBufferPerConnection: receiveBufferPerConnection,
		},
	}
}

package dispatcher

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/postrider/postrider/store"
)

// N1: however an address is spelt, nothing is connected.
func TestForbiddenAddressesAreNeverConnected(t *testing.T) {
	t.Parallel()
	var connected atomic.Int64
	address := listen(t, func(net.Conn) { connected.Add(1) })
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, outside{})
	b.deps.Policy = strict(t)
	connections := newNetwork(b.deps.Policy, time.Second, nil)
	t.Cleanup(connections.close)
	b.sender.transport = newTransport(connections, 1, time.Second, nil, &databaseClock{})
	for _, host := range []string{
		"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:a9fe:a9fe]", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1.",
		"[fe80::1%25lo]", "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::]", "[64:ff9b::7f00:1]", "localhost", "LOCALHOST", "0.0.0.0", "[::]",
	} {
		got := b.attempt(testSpec("http://" + host + ":" + port + "/"))
		if got.Reason != string(DestinationNotAllowed) || got.Verdict != store.Retry {
			t.Errorf("%s: got %s %s, want %s %s", host, got.Verdict, got.Reason, store.Retry, DestinationNotAllowed)
		}
	}
	if n := connected.Load(); n != 0 {
		t.Errorf("connections: got %d, want none", n)
	}
}

// N2: what a name resolves to when connecting is what counts, for each of its addresses.
func TestRebindingGainsNothing(t *testing.T) {
	t.Parallel()
	var connected atomic.Int64
	address := listen(t, func(net.Conn) { connected.Add(1) })
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	resolver := nameserver(t, func(name string) ([]netip.Addr, dnsmessage.RCode) {
		asked.Add(1)
		if strings.HasPrefix(name, "both.") {
			// A public address that nobody answers at (documentation range, opened for this test) and a private one.
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1")}, dnsmessage.RCodeSuccess
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, dnsmessage.RCodeSuccess
	})
	b := newBench(t, outside{})
	b.deps.Policy = strict(t)
	connections := newNetwork(b.deps.Policy, time.Second, resolver)
	t.Cleanup(connections.close)
	b.sender.transport = newTransport(connections, 1, time.Second, nil, &databaseClock{})
	for _, host := range []string{"rebound.example", "both.example"} {
		if got := b.attempt(testSpec("http://" + host + ":" + port + "/")); got.Reason != string(DestinationNotAllowed) {
			t.Errorf("%s: got %s %q, want %s", host, got.Reason, got.Message, DestinationNotAllowed)
		}
	}
	if n := connected.Load(); n != 0 || asked.Load() == 0 {
		t.Errorf("connections: got %d after %d questions, want none", n, asked.Load())
	}
}

// N3: the proxy variables have no effect. net/http reads them once in a process, so the test has one of its own.
func TestProxyVariablesHaveNoEffect(t *testing.T) {
	t.Parallel()
	const inside = "POSTRIDER_TEST_INSIDE_PROXY"
	if os.Getenv(inside) != "" {
		got := attemptOnce(t, testSpec("http://receiver.example/hook"), outside{resolver: nameserver(t, func(string) ([]netip.Addr, dnsmessage.RCode) {
			return nil, dnsmessage.RCodeNameError
		})})
		if got.Reason != string(DNSNotFound) {
			t.Errorf("got %s %s %q, want %s", got.Verdict, got.Reason, got.Message, DNSNotFound)
		}
		return
	}
	var asked atomic.Int64
	proxy := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	t.Cleanup(proxy.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	child := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestProxyVariablesHaveNoEffect$", "-test.count=1")
	child.Env = append(os.Environ(), inside+"=1")
	for _, name := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"} {
		child.Env = append(child.Env, name+"="+proxy.URL)
	}
	child.Env = append(child.Env, "NO_PROXY=", "no_proxy=")
	if out, err := child.CombinedOutput(); err != nil {
		t.Errorf("with proxy variables: %v\n%s", err, out)
	}
	if n := asked.Load(); n != 0 {
		t.Errorf("requests to the proxy: got %d, want none", n)
	}
}

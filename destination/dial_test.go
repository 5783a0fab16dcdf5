package destination_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/postrider/postrider/destination"
)

// target is a listener that a test watches for connections.
type target struct {
	listener net.Listener
	seen     atomic.Int64
}

// listen opens a target and closes it with the test.
func listen(t *testing.T, address string) *target {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	tg := &target{listener: listener}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			tg.seen.Add(1)
			group.Go(func() {
				defer func() { _ = conn.Close() }()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		group.Wait()
	})
	return tg
}

func (tg *target) port() string {
	_, port, _ := net.SplitHostPort(tg.listener.Addr().String())
	return port
}

// connections counts those made so far. It makes one itself first: the kernel
// hands them over in order, so nothing that came before is still on its way.
func (tg *target) connections(t *testing.T) int64 {
	t.Helper()
	before := tg.seen.Load()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", tg.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "\n\n") // no request: the target closes
	_, _ = io.ReadAll(conn)             // until it has counted and closed
	_ = conn.Close()
	if tg.seen.Load() <= before {
		t.Fatal("the target does not count connections")
	}
	return tg.seen.Load() - 1
}

// nameServer is a DNS server on loopback. Its answers are asked of a function, by
// name (in lower case, with the dot at the end) and question number.
type nameServer struct {
	answer  func(name string, asked int) []netip.Addr
	mu      sync.Mutex
	asked   map[string]int
	address string
}

func serveNames(t *testing.T, answer func(name string, asked int) []netip.Addr) *nameServer {
	t.Helper()
	var config net.ListenConfig
	conn, err := config.ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &nameServer{answer: answer, asked: map[string]int{}, address: conn.LocalAddr().String()}
	var group sync.WaitGroup
	group.Go(func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if reply, err := s.reply(buffer[:n]); err == nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		group.Wait()
	})
	return s
}

func (s *nameServer) reply(query []byte) ([]byte, error) {
	var parser dnsmessage.Parser
	header, err := parser.Start(query)
	if err != nil {
		return nil, err
	}
	question, err := parser.Question()
	if err != nil {
		return nil, err
	}
	name := strings.ToLower(question.Name.String())
	s.mu.Lock()
	asked := s.asked[name]
	if question.Type == dnsmessage.TypeA {
		s.asked[name]++
	}
	s.mu.Unlock()
	builder := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: header.ID, Response: true, Authoritative: true, RecursionAvailable: true})
	if err := builder.StartQuestions(); err != nil {
		return nil, err
	}
	if err := builder.Question(question); err != nil {
		return nil, err
	}
	if err := builder.StartAnswers(); err != nil {
		return nil, err
	}
	resource := dnsmessage.ResourceHeader{Name: question.Name, Class: dnsmessage.ClassINET}
	for _, addr := range s.answer(name, asked) {
		switch {
		case addr.Is4() && question.Type == dnsmessage.TypeA:
			err = builder.AResource(resource, dnsmessage.AResource{A: addr.As4()})
		case addr.Is6() && question.Type == dnsmessage.TypeAAAA:
			err = builder.AAAAResource(resource, dnsmessage.AAAAResource{AAAA: addr.As16()})
		}
		if err != nil {
			return nil, err
		}
	}
	return builder.Finish()
}

func (s *nameServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", s.address)
	}}
}

// dialer is set up as a sender sets up its own.
func dialer(policy *destination.Policy, names *nameServer) *net.Dialer {
	return &net.Dialer{Timeout: 5 * time.Second, Control: policy.Control, Resolver: names.resolver()}
}

func client(t *testing.T, policy *destination.Policy, names *nameServer) *http.Client {
	t.Helper()
	transport := &http.Transport{Proxy: nil, DialContext: dialer(policy, names).DialContext, DisableKeepAlives: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: 5 * time.Second}
}

func get(t *testing.T, c *http.Client, url string) error {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := c.Do(request)
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// loopbackNames answers every question with the loopback addresses: the resolver
// that takes "127.1" and its kind for what the C library takes them for.
func loopbackNames(t *testing.T) *nameServer {
	t.Helper()
	return serveNames(t, func(string, int) []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	})
}

// TestN1NothingIsConnected goes through a real http.Transport, with listeners
// behind the addresses that these hosts stand for.
func TestN1NothingIsConnected(t *testing.T) {
	t.Parallel()
	v4 := listen(t, "127.0.0.1:0")
	v6 := listen(t, "[::1]:"+v4.port())
	c := client(t, mustPolicy(t, destination.Config{AllowHTTP: true}), loopbackNames(t))
	for name, tc := range map[string]struct {
		host string
		// literal: net recognises an address and asks no resolver, so the refusal
		// itself has to arrive. Other forms may already fail to resolve.
		literal bool
	}{
		"IPv4":                      {"127.0.0.1", true},
		"IPv4, another of the /8":   {"127.8.9.10", true},
		"this host":                 {"0.0.0.0", true},
		"this host, IPv6":           {"[::]", true},
		"IPv6":                      {"[::1]", true},
		"IPv6, written out":         {"[0:0:0:0:0:0:0:1]", true},
		"mapped":                    {"[::ffff:127.0.0.1]", true},
		"mapped, hex":               {"[::ffff:7f00:1]", true},
		"mapped metadata":           {"[::ffff:a9fe:a9fe]", true},
		"compatible":                {"[::7f00:1]", true},
		"metadata":                  {"169.254.169.254", true},
		"zone":                      {"[fe80::1%25lo]", true},
		"zone on loopback":          {"[::1%25lo]", true},
		"NAT64 of metadata":         {"[64:ff9b::a9fe:a9fe]", true},
		"local NAT64 of metadata":   {"[64:ff9b:1::a9fe:a9fe]", true},
		"6to4 of metadata":          {"[2002:a9fe:a9fe::]", true},
		"short":                     {"127.1", false},
		"hex":                       {"0x7f000001", false},
		"hex, parts":                {"0x7f.0.0.1", false},
		"one number":                {"2130706433", false},
		"octal":                     {"0177.0.0.1", false},
		"trailing dot":              {"127.0.0.1.", false},
		"full-width digits":         {"１２７.０.０.１", false},
		"full-width dots":           {"127。0。0。1", false},
		"circled digits":            {"①②⑦.⓪.⓪.①", false},
		"a name":                    {"hooks.example.com", true},
		"localhost, from the hosts": {"localhost", true},
	} {
		err := get(t, c, "http://"+tc.host+":"+v4.port()+"/")
		if err == nil {
			t.Errorf("%s, %s: the request was made", name, tc.host)
		}
		if tc.literal && !errors.Is(err, destination.ErrNotAllowed) {
			t.Errorf("%s, %s: got %v, want %v", name, tc.host, err, destination.ErrNotAllowed)
		}
	}
	if got := v4.connections(t) + v6.connections(t); got != 0 {
		t.Errorf("got %d connections, want none", got)
	}
}

// TestTheSameTargetsAreReachedWhereAllowed shows that the test above would notice.
func TestTheSameTargetsAreReachedWhereAllowed(t *testing.T) {
	t.Parallel()
	v4 := listen(t, "127.0.0.1:0")
	v6 := listen(t, "[::1]:"+v4.port())
	c := client(t, mustPolicy(t, destination.Config{AllowedCIDRs: []string{"127.0.0.0/8", "::1/128"}}), loopbackNames(t))
	hosts := []string{"127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "hooks.example.com", "0x7f000001"}
	for _, host := range hosts {
		if err := get(t, c, "http://"+host+":"+v4.port()+"/"); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	if got := v4.connections(t) + v6.connections(t); got < int64(len(hosts)) {
		t.Errorf("got %d connections, want at least %d", got, len(hosts))
	}
}

// TestN2RebindingGainsNothing resolves a name to a public address when somebody
// checks it, and to loopback when it is connected.
func TestN2RebindingGainsNothing(t *testing.T) {
	t.Parallel()
	private := listen(t, "127.0.0.1:0")
	names := serveNames(t, func(_ string, asked int) []netip.Addr {
		if asked == 0 {
			return []netip.Addr{netip.MustParseAddr("93.184.216.34")}
		}
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	})
	policy := mustPolicy(t, destination.Config{})
	first, err := names.resolver().LookupNetIP(t.Context(), "ip4", "rebind.test.")
	if err != nil || len(first) != 1 || policy.Check(netip.AddrPortFrom(first[0].Unmap(), 443)) != nil {
		t.Fatalf("on check: got %v and %v, want one public address", first, err)
	}
	conn, err := dialer(policy, names).DialContext(t.Context(), "tcp4", net.JoinHostPort("rebind.test.", private.port()))
	if err == nil {
		_ = conn.Close()
	}
	if !errors.Is(err, destination.ErrNotAllowed) {
		t.Errorf("on connect: got %v, want %v", err, destination.ErrNotAllowed)
	}
	if refused := detail(t, err); refused.Destination.Addr() != netip.MustParseAddr("127.0.0.1") {
		t.Errorf("refused %s, want 127.0.0.1", refused.Destination)
	}
	if got := private.connections(t); got != 0 {
		t.Errorf("got %d connections, want none", got)
	}
}

// TestN2ThePrivateOneOfSeveralAddressesIsNeverConnected lets 127.0.0.2 and ::1
// stand for public addresses, so that the test reaches nobody outside.
func TestN2ThePrivateOneOfSeveralAddressesIsNeverConnected(t *testing.T) {
	t.Parallel()
	private, public, public6 := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2"), netip.IPv6Loopback()
	policy := mustPolicy(t, destination.Config{AllowedCIDRs: []string{"127.0.0.2/32", "::1/128"}})
	for name, tc := range map[string]struct {
		answer []netip.Addr
		up     []netip.Addr // of the public ones
		want   error
	}{
		"private first":                       {[]netip.Addr{private, public}, []netip.Addr{public}, nil},
		"public first":                        {[]netip.Addr{public, private}, []netip.Addr{public}, nil},
		"public over IPv6, private over IPv4": {[]netip.Addr{private, public6}, []netip.Addr{public6}, nil},
		"private first, public down":          {[]netip.Addr{private, public}, nil, destination.ErrNotAllowed},
		"private alone":                       {[]netip.Addr{private}, nil, destination.ErrNotAllowed},
		"private many times":                  {slices.Repeat([]netip.Addr{private}, 8), nil, destination.ErrNotAllowed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched := listen(t, private.String()+":0")
			for _, addr := range tc.up {
				listen(t, net.JoinHostPort(addr.String(), watched.port()))
			}
			names := serveNames(t, func(string, int) []netip.Addr { return tc.answer })
			for range 5 {
				conn, err := dialer(policy, names).DialContext(t.Context(), "tcp", net.JoinHostPort("mixed.test.", watched.port()))
				if err == nil {
					_ = conn.Close()
				}
				if !errors.Is(err, tc.want) {
					t.Fatalf("got %v, want %v", err, tc.want)
				}
			}
			if got := watched.connections(t); got != 0 {
				t.Errorf("got %d connections to the private address, want none", got)
			}
		})
	}
}

func TestControlRefusesWhatItDoesNotUnderstand(t *testing.T) {
	t.Parallel()
	policy := mustPolicy(t, destination.Config{})
	for name, tc := range map[string]struct {
		network, address string
		want             destination.Reason
	}{
		"UDP":            {"udp4", "8.8.8.8:53", destination.ReasonNetwork},
		"a Unix socket":  {"unix", "/run/containerd.sock", destination.ReasonNetwork},
		"raw IP":         {"ip4:icmp", "8.8.8.8", destination.ReasonNetwork},
		"no network":     {"", "8.8.8.8:443", destination.ReasonNetwork},
		"a name":         {"tcp", "hooks.example.com:443", destination.ReasonInvalid},
		"no port":        {"tcp4", "8.8.8.8", destination.ReasonInvalid},
		"an odd form":    {"tcp4", "0177.0.0.1:443", destination.ReasonInvalid},
		"nothing":        {"tcp", "", destination.ReasonInvalid},
		"a zone on IPv6": {"tcp6", "[fe80::1%lo]:443", destination.ReasonNotPublic},
	} {
		err := policy.Control(tc.network, tc.address, nil)
		if err == nil {
			t.Errorf("%s: got nil", name)
		} else if got := detail(t, err).Reason; got != tc.want {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
	for _, address := range []string{"8.8.8.8:443", "[2606:4700::1111]:443"} {
		if err := policy.Control("tcp", address, nil); err != nil {
			t.Errorf("%s: got %v", address, err)
		}
	}
}

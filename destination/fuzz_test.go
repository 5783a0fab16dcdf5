package destination_test

import (
	"errors"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/postrider/postrider/destination"
)

// FuzzCheck holds the policy against what net/netip knows by itself, and against
// its own answers for the same address in other clothes.
func FuzzCheck(f *testing.F) {
	for _, addr := range []string{
		"8.8.8.8", "127.0.0.1", "10.0.0.1", "169.254.169.254", "224.0.0.1", "::1", "fe80::1", "fd00:ec2::254", "ff02::1",
		"::ffff:127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "2002:a9fe:a9fe::1", "2001:0:808:808::5601:5601",
		"2606:4700::1111", "2620:0:860:1:0:5efe:a9fe:a9fe", "::7f00:1",
	} {
		f.Add(netip.MustParseAddr(addr).AsSlice(), uint16(443))
	}
	f.Add([]byte{1, 2, 3}, uint16(0))
	policy := mustPolicy(f, destination.Config{})
	refuses := func(addr netip.Addr) bool { return policy.Check(netip.AddrPortFrom(addr, 443)) != nil }
	f.Fuzz(func(t *testing.T, bytes []byte, port uint16) {
		addr, ok := netip.AddrFromSlice(bytes)
		err := policy.Check(netip.AddrPortFrom(addr, port))
		if err != nil {
			_ = detail(t, err).Error()
		}
		if !ok || port == 0 {
			if err == nil {
				t.Fatalf("%s port %d: got nil", addr, port)
			}
			return
		}
		plain := addr.Unmap()
		if err == nil && (!plain.IsGlobalUnicast() || plain.IsPrivate()) {
			t.Fatalf("%s: got nil", addr)
		}
		if refuses(plain) != (err != nil) {
			t.Fatalf("%s and %s: different answers", addr, plain)
		}
		if plain.Is6() {
			if refuses(plain.WithZone("eth0")) != (err != nil) {
				t.Fatalf("%s: another answer with a zone", plain)
			}
		} else {
			b := plain.As4()
			nat64 := netip.AddrFrom16([16]byte{1: 0x64, 2: 0xff, 3: 0x9b, 12: b[0], 13: b[1], 14: b[2], 15: b[3]})
			if refuses(nat64) != (err != nil) {
				t.Fatalf("%s and %s: different answers", plain, nat64)
			}
		}
		one := netip.PrefixFrom(plain, plain.BitLen()).String()
		denied := mustPolicy(t, destination.Config{AllowedCIDRs: []string{one}, DeniedCIDRs: []string{one}})
		if denied.Check(netip.AddrPortFrom(addr, port)) == nil {
			t.Fatalf("%s: allowed, though denied", addr)
		}
	})
}

// FuzzControl allows what parses and passes Check, and nothing else.
func FuzzControl(f *testing.F) {
	for _, seed := range [][2]string{
		{"tcp4", "8.8.8.8:443"},
		{"tcp6", "[2606:4700::1111]:443"},
		{"tcp6", "[fe80::1%lo]:80"},
		{"tcp", "127.1:80"},
		{"tcp", "0x7f000001:80"},
		{"udp", "8.8.8.8:53"},
		{"tcp4", "8.8.8.8:99999"},
		{"tcp6", "[::ffff:127.0.0.1]:80"},
		{"", ""},
	} {
		f.Add(seed[0], seed[1])
	}
	policy := mustPolicy(f, destination.Config{})
	f.Fuzz(func(t *testing.T, network, address string) {
		err := policy.Control(network, address, nil)
		if err != nil {
			_ = detail(t, err).Error()
			return
		}
		parsed, parseErr := netip.ParseAddrPort(address)
		if parseErr != nil || policy.Check(parsed) != nil || !strings.HasPrefix(network, "tcp") {
			t.Fatalf("%s %s: got nil", network, address)
		}
	})
}

// FuzzCheckURL looks for hosts that pass although the C library's resolver would
// read an IPv4 address in them.
func FuzzCheckURL(f *testing.F) {
	for _, seed := range []string{
		"https://hooks.example.com/a?b#c", "http://127.1/", "http://0x7f000001/", "http://2130706433/", "http://0177.0.0.1/",
		"http://127.0.0.1./", "http://[fe80::1%25lo]/", "http://[::ffff:127.0.0.1]:80/", "http://localhost:0/", "https://8.8.8.8:99999/",
		"//x", "", "https://user:pass@host/", "https://1.2.3.0x/", "https://８.8.8.8/",
	} {
		f.Add(seed)
	}
	policy := mustPolicy(f, destination.Config{AllowHTTP: true})
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := url.Parse(raw)
		if err != nil {
			return
		}
		if err := policy.CheckURL(u); err != nil {
			if !errors.Is(err, destination.ErrNotAllowed) {
				t.Fatalf("%q: got %v", raw, err)
			}
			_ = detail(t, err).Error()
			return
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
			t.Fatalf("%q: got nil", raw)
		}
		if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
			if policy.Check(netip.AddrPortFrom(addr, 443)) != nil {
				t.Fatalf("%q: got nil for a refused address", raw)
			}
			return
		}
		if looksLikeIPv4(strings.TrimRight(u.Hostname(), ".")) {
			t.Fatalf("%q: got nil for an IPv4 address in another form", raw)
		}
	})
}

// looksLikeIPv4 reads a host as inet_aton does: one to four numbers in any base.
func looksLikeIPv4(host string) bool {
	parts := strings.Split(host, ".")
	if len(parts) > 4 {
		return false
	}
	for i, part := range parts {
		limit := uint64(255)
		if i == len(parts)-1 {
			limit = 1<<(8*(5-len(parts))) - 1
		}
		if strings.ContainsAny(part, "_obOB") { // bases that only Go knows
			return false
		}
		n, err := strconv.ParseUint(part, 0, 64)
		if err != nil || n > limit {
			return false
		}
	}
	return true
}

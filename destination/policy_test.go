package destination_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/postrider/postrider/destination"
)

func mustPolicy(t testing.TB, config destination.Config) *destination.Policy {
	t.Helper()
	policy, err := destination.New(config)
	if err != nil {
		t.Fatalf("New: %v", err)
	}
	return policy
}

func addrPort(addr string) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr(addr), 443) }

// detail returns what a refusal says of itself, and fails for any other error.
func detail(t testing.TB, err error) *destination.NotAllowedError {
	t.Helper()
	var refused *destination.NotAllowedError
	if !errors.As(err, &refused) || !errors.Is(err, destination.ErrNotAllowed) {
		t.Fatalf("got %v, want a *NotAllowedError that is ErrNotAllowed", err)
	}
	return refused
}

// specialCIDRs is the registries' list written down a second time, apart from the
// package's own, so that an entry lost there is noticed here.
var specialCIDRs = []string{
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
	"192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
	"224.0.0.0/4", "240.0.0.0/4", "255.255.255.255/32", "168.63.129.16/32",
	"::/128", "::1/128", "::/96", "::ffff:0:0:0/96", "64:ff9b:1::/48", "100::/64", "100:0:0:1::/64", "2001::/23",
	"2001::/32", "2001:2::/48", "2001:10::/28", "2001:db8::/32", "2002::/16", "3fff::/20", "5f00::/16", "fc00::/7",
	"fe80::/10", "fec0::/10", "ff00::/8",
}

// reservedCIDRs is what IANA has not opened for global unicast.
var reservedCIDRs = []string{
	"::/8", "100::/8", "200::/7", "400::/6", "800::/5", "1000::/4", "4000::/3", "6000::/3", "8000::/3", "a000::/3",
	"c000::/3", "e000::/4", "f000::/5", "f800::/6", "fe00::/9",
}

func last(prefix netip.Prefix) netip.Addr {
	b := prefix.Addr().AsSlice()
	for bit := prefix.Bits(); bit < prefix.Addr().BitLen(); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	addr, _ := netip.AddrFromSlice(b)
	return addr
}

func TestEverythingSpecialIsRefused(t *testing.T) {
	t.Parallel()
	policy := mustPolicy(t, destination.Config{AllowHTTP: true})
	for _, cidr := range append(slices.Clone(specialCIDRs), reservedCIDRs...) {
		prefix := netip.MustParsePrefix(cidr)
		for _, addr := range []netip.Addr{prefix.Addr(), prefix.Addr().Next(), last(prefix)} {
			if !prefix.Contains(addr) || addr == netip.MustParseAddr("64:ff9b::") {
				continue
			}
			err := policy.Check(netip.AddrPortFrom(addr, 443))
			if err == nil {
				t.Errorf("%s of %s: got nil", addr, cidr)
				continue
			}
			refused := detail(t, err)
			if refused.Reason != destination.ReasonNotPublic || refused.Range == "" || refused.RangeName == "" {
				t.Errorf("%s: got reason %s, range %q (%q)", addr, refused.Reason, refused.Range, refused.RangeName)
			}
		}
	}
}

// TestARefusalNamesTheNarrowestRange takes the last address of each block, which
// lies in no narrower one but for the broadcast address.
func TestARefusalNamesTheNarrowestRange(t *testing.T) {
	t.Parallel()
	policy := mustPolicy(t, destination.Config{})
	for _, cidr := range specialCIDRs {
		addr, want := last(netip.MustParsePrefix(cidr)), cidr
		if cidr == "240.0.0.0/4" {
			addr = addr.Prev()
		}
		if got := detail(t, policy.Check(netip.AddrPortFrom(addr, 443))).Range; got != want {
			t.Errorf("%s: got %s, want %s", addr, got, want)
		}
	}
}

func TestKnownTargetsOfForgeryAreRefused(t *testing.T) {
	t.Parallel()
	policy := mustPolicy(t, destination.Config{AllowHTTP: true})
	for name, addr := range map[string]string{
		"metadata of most clouds":     "169.254.169.254",
		"metadata of AWS containers":  "169.254.170.2",
		"metadata of AWS, IPv6":       "fd00:ec2::254",
		"metadata of Google, IPv6":    "fd20:ce::254",
		"metadata of Alibaba":         "100.100.100.200",
		"metadata of Oracle":          "192.0.0.192",
		"Azure's platform":            "168.63.129.16",
		"loopback, another one":       "127.254.1.9",
		"this host":                   "0.0.0.0",
		"this host, IPv6":             "::",
		"a pod":                       "10.244.0.17",
		"a Service":                   "10.96.0.1",
		"IPv4-mapped loopback":        "::ffff:127.0.0.1",
		"IPv4-mapped metadata":        "::ffff:a9fe:a9fe",
		"IPv4-compatible metadata":    "::a9fe:a9fe",
		"IPv4-translated metadata":    "::ffff:0:a9fe:a9fe",
		"NAT64 of metadata":           "64:ff9b::a9fe:a9fe",
		"NAT64 of loopback":           "64:ff9b::127.0.0.1",
		"NAT64 of a mapped 10.0.0.1":  "64:ff9b::10.0.0.1",
		"local NAT64 of metadata":     "64:ff9b:1::a9fe:a9fe",
		"local NAT64 of a public one": "64:ff9b:1::808:808",
		"6to4 of metadata":            "2002:a9fe:a9fe::1",
		"6to4 of loopback":            "2002:7f00:1::",
		"Teredo, client is metadata":  "2001:0:808:808:0:0:5601:5601",
		"Teredo, server is private":   "2001:0:a00:1::f7f7:f7f7",
		"ISATAP of metadata":          "2620:0:860:1:0:5efe:a9fe:a9fe",
		"ISATAP, universal bit":       "2620:0:860:1:200:5efe:10.0.0.1",
		"link-local with a zone":      "fe80::1%lo",
		"link-local, mapped, a zone":  "::ffff:169.254.169.254%eth0",
		"broadcast":                   "255.255.255.255",
		"a registered exception":      "2001:1::1", // anycast of the nearest router's PCP, though globally reachable
		"a registered exception, v4":  "192.0.0.9",
	} {
		if err := policy.Check(addrPort(addr)); !errors.Is(err, destination.ErrNotAllowed) {
			t.Errorf("%s, %s: got %v, want %v", name, addr, err, destination.ErrNotAllowed)
		}
	}
}

func TestPublicAddressesAreAllowed(t *testing.T) {
	t.Parallel()
	policy := mustPolicy(t, destination.Config{})
	for _, addr := range []string{
		"1.0.0.0", "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.216.34",
		"100.63.255.255", "100.128.0.0", "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0",
		"172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.0", "192.0.3.0", "192.31.196.1", "192.52.193.1",
		"192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "192.175.48.1", "198.17.255.255", "198.20.0.0",
		"198.51.99.255", "198.51.101.0", "203.0.112.255", "203.0.114.0", "223.255.255.255", "168.63.129.15", "168.63.129.17",
		"::ffff:8.8.8.8", "64:ff9b::808:808",
		"2000::1", "2001:200::1", "2001:4860:4860::8888", "2001:db7:ffff::1", "2001:db9::1", "2003::1", "2606:4700::1111",
		"2620:4f:8000::1", "2a00:1450:4001::200e", "3ffe:ffff::1", "3fff:1000::1",
		"2620:0:860:1:0:5efe:808:808", "2620:0:860:1:5efe:0:a00:1",
	} {
		if err := policy.Check(addrPort(addr)); err != nil {
			t.Errorf("%s: got %v, want nil", addr, err)
		}
	}
}

func TestAllowedAndDeniedRanges(t *testing.T) {
	t.Parallel()
	type config = destination.Config
	for name, tc := range map[string]struct {
		config config
		addr   string
		want   destination.Reason // "" for allowed
	}{
		"an allowed range opens":             {config{AllowedCIDRs: []string{"10.1.0.0/16"}}, "10.1.2.3", ""},
		"and nothing beside it":              {config{AllowedCIDRs: []string{"10.1.0.0/16"}}, "10.2.0.0", destination.ReasonNotPublic},
		"a single address":                   {config{AllowedCIDRs: []string{"127.0.0.1/32"}}, "127.0.0.1", ""},
		"its neighbour":                      {config{AllowedCIDRs: []string{"127.0.0.1/32"}}, "127.0.0.2", destination.ReasonNotPublic},
		"IPv6":                               {config{AllowedCIDRs: []string{"fd00:1::/32"}}, "fd00:1::9", ""},
		"a zone is of no account":            {config{AllowedCIDRs: []string{"fe80::/10"}}, "fe80::1%eth0", ""},
		"the second of two":                  {config{AllowedCIDRs: []string{"10.1.0.0/16", "::1/128"}}, "::1", ""},
		"mapped is the IPv4 address":         {config{AllowedCIDRs: []string{"10.1.0.0/16"}}, "::ffff:10.1.0.1", ""},
		"all of IPv6 opens no IPv4":          {config{AllowedCIDRs: []string{"::/0"}}, "127.0.0.1", destination.ReasonNotPublic},
		"nor mapped IPv4":                    {config{AllowedCIDRs: []string{"::/0"}}, "::ffff:127.0.0.1", destination.ReasonNotPublic},
		"nor NAT64 of it":                    {config{AllowedCIDRs: []string{"::/0"}}, "64:ff9b::127.0.0.1", destination.ReasonNotPublic},
		"all of IPv4 opens no IPv6":          {config{AllowedCIDRs: []string{"0.0.0.0/0"}}, "::1", destination.ReasonNotPublic},
		"NAT64 of an opened address":         {config{AllowedCIDRs: []string{"10.1.0.0/16"}}, "64:ff9b::10.1.0.1", ""},
		"6to4: only the inner one is opened": {config{AllowedCIDRs: []string{"10.1.0.0/16"}}, "2002:a01:1::1", destination.ReasonNotPublic},
		"6to4: only the outer one is opened": {config{AllowedCIDRs: []string{"2002::/16"}}, "2002:a01:1::1", destination.ReasonNotPublic},
		"6to4: both are opened":              {config{AllowedCIDRs: []string{"2002::/16", "10.1.0.0/16"}}, "2002:a01:1::1", ""},
		"6to4: the inner one is public":      {config{AllowedCIDRs: []string{"2002::/16"}}, "2002:808:808::1", ""},
		"Teredo: the client is private":      {config{AllowedCIDRs: []string{"2001::/32"}}, "2001:0:808:808::f5ff:fffe", destination.ReasonNotPublic},
		"Teredo: the server is private":      {config{AllowedCIDRs: []string{"2001::/32"}}, "2001:0:a00:1::f7f7:f7f7", destination.ReasonNotPublic},
		"Teredo: both are public":            {config{AllowedCIDRs: []string{"2001::/32"}}, "2001:0:808:808::f7f7:f7f7", ""},
		"local NAT64 of a public one":        {config{AllowedCIDRs: []string{"64:ff9b:1::/48"}}, "64:ff9b:1::808:808", ""},
		"local NAT64 of a private one":       {config{AllowedCIDRs: []string{"64:ff9b:1::/48"}}, "64:ff9b:1::a9fe:a9fe", destination.ReasonNotPublic},
		"local NAT64, /48 of a private one":  {config{AllowedCIDRs: []string{"64:ff9b:1::/48"}}, "64:ff9b:1:a9fe:a9:fe00:808:808", destination.ReasonNotPublic},
		"local NAT64, both private, opened":  {config{AllowedCIDRs: []string{"64:ff9b:1::/48", "169.254.0.0/16", "10.0.0.0/8"}}, "64:ff9b:1:a9fe:a9:fe00:a00:1", ""},
		"ISATAP of an opened address":        {config{AllowedCIDRs: []string{"10.0.0.0/8"}}, "2620:0:860:1:0:5efe:a00:1", ""},
		"IPv4-compatible, outer opened":      {config{AllowedCIDRs: []string{"::/96"}}, "::7f00:1", destination.ReasonNotPublic},
		"loopback within opened ::/96":       {config{AllowedCIDRs: []string{"::/96"}}, "::1", ""},

		"a denied public address":               {config{DeniedCIDRs: []string{"8.8.8.0/24"}}, "8.8.8.8", destination.ReasonDenied},
		"denied wins over allowed":              {config{AllowedCIDRs: []string{"10.0.0.0/8"}, DeniedCIDRs: []string{"10.9.0.0/16"}}, "10.9.1.1", destination.ReasonDenied},
		"denied wins over narrower allowed":     {config{AllowedCIDRs: []string{"10.9.1.1/32"}, DeniedCIDRs: []string{"10.0.0.0/8"}}, "10.9.1.1", destination.ReasonDenied},
		"denied wins over the same":             {config{AllowedCIDRs: []string{"::1/128"}, DeniedCIDRs: []string{"::1/128"}}, "::1", destination.ReasonDenied},
		"denied IPv4 is denied mapped":          {config{DeniedCIDRs: []string{"8.8.8.0/24"}}, "::ffff:8.8.8.8", destination.ReasonDenied},
		"denied IPv4 is denied in NAT64":        {config{DeniedCIDRs: []string{"8.8.8.0/24"}}, "64:ff9b::8.8.8.8", destination.ReasonDenied},
		"denied NAT64 prefix":                   {config{DeniedCIDRs: []string{"2a01:4f8:64::/96"}}, "2a01:4f8:64::808:808", destination.ReasonDenied},
		"denied with a zone":                    {config{AllowedCIDRs: []string{"fe80::/10"}, DeniedCIDRs: []string{"fe80::1/128"}}, "fe80::1%lo", destination.ReasonDenied},
		"everything denied":                     {config{DeniedCIDRs: []string{"0.0.0.0/0"}}, "8.8.8.8", destination.ReasonDenied},
		"everything of the other family denied": {config{DeniedCIDRs: []string{"::/0"}}, "8.8.8.8", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := mustPolicy(t, tc.config).Check(addrPort(tc.addr))
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("%s: got %v, want nil", tc.addr, err)
			case tc.want != "" && err == nil:
				t.Errorf("%s: got nil, want %s", tc.addr, tc.want)
			case tc.want != "":
				if got := detail(t, err).Reason; got != tc.want {
					t.Errorf("%s: got %s, want %s", tc.addr, got, tc.want)
				}
			}
		})
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	public := netip.MustParseAddr("8.8.8.8")
	for name, tc := range map[string]struct {
		allowed []int
		port    uint16
		want    bool
	}{
		"any by default":         {nil, 6379, true},
		"the last one":           {nil, 65535, true},
		"never port 0":           {nil, 0, false},
		"a listed one":           {[]int{443, 8443}, 8443, true},
		"one that is not listed": {[]int{443, 8443}, 80, false},
	} {
		err := mustPolicy(t, destination.Config{AllowedPorts: tc.allowed}).Check(netip.AddrPortFrom(public, tc.port))
		if (err == nil) != tc.want {
			t.Errorf("%s: got %v", name, err)
		}
		if err != nil && detail(t, err).Reason != destination.ReasonPort {
			t.Errorf("%s: got %s, want %s", name, detail(t, err).Reason, destination.ReasonPort)
		}
	}
}

func TestTheZeroPolicyIsTheStrictest(t *testing.T) {
	t.Parallel()
	var policy destination.Policy
	if err := policy.Check(addrPort("127.0.0.1")); err == nil {
		t.Error("loopback: got nil")
	}
	if err := policy.Check(netip.AddrPort{}); err == nil {
		t.Error("no address: got nil")
	}
	if err := policy.Check(netip.AddrPortFrom(netip.Addr{}, 443)); detail(t, err).Reason != destination.ReasonInvalid {
		t.Errorf("no address: got %v", err)
	}
	if err := policy.Check(addrPort("8.8.8.8")); err != nil {
		t.Errorf("public: got %v", err)
	}
}

func TestNewReportsAllProblemsWithFieldAndRemedy(t *testing.T) {
	t.Parallel()
	policy, err := destination.New(destination.Config{
		AllowedCIDRs: []string{"10.0.0.0/8", "10.0.0.1", "10.0.0.1/8", "ten"},
		DeniedCIDRs:  []string{"::1", "::ffff:10.0.0.0/104", "fe80::/10%eth0", "", "8.8.8.0/24"},
		AllowedPorts: []int{443, 0, 65536, -1},
	})
	if err == nil || policy != nil {
		t.Fatalf("got %v and %v, want an error alone", policy, err)
	}
	for _, want := range []string{
		`allowedCIDRs[1]: "10.0.0.1" is no CIDR; for this one address write 10.0.0.1/32`,
		`allowedCIDRs[2]: "10.0.0.1/8" has bits set behind the prefix; write 10.0.0.0/8`,
		`allowedCIDRs[3]: "ten" is no CIDR; write an address and a prefix length`,
		`deniedCIDRs[0]: "::1" is no CIDR; for this one address write ::1/128`,
		`deniedCIDRs[1]: "::ffff:10.0.0.0/104" is an IPv4-mapped range`,
		`deniedCIDRs[2]: "fe80::/10%eth0" is no CIDR`,
		`deniedCIDRs[3]: "" is no CIDR`,
		`allowedPorts[1]: 0 is no port; use 1 to 65535`,
		`allowedPorts[2]: 65536 is no port`,
		`allowedPorts[3]: -1 is no port`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in:\n%v", want, err)
		}
	}
	if got := strings.Count(err.Error(), "\n") + 1; got != 10 {
		t.Errorf("got %d problems, want 10:\n%v", got, err)
	}
}

func TestARefusalNamesAddressRangeAndRemedy(t *testing.T) {
	t.Parallel()
	policy := mustPolicy(t, destination.Config{DeniedCIDRs: []string{"8.8.8.0/24"}, AllowedPorts: []int{443}})
	for addr, says := range map[string][]string{
		"169.254.169.254:443":      {"destination not allowed: 169.254.169.254:443", "169.254.0.0/16", "link-local", "allowedCIDRs"},
		"[64:ff9b::a00:1]:443":     {"[64:ff9b::a00:1]:443", "carries 10.0.0.1 inside", "10.0.0.0/8", "private use"},
		"8.8.8.8:443":              {"8.8.8.8:443", "denied range 8.8.8.0/24", "deniedCIDRs"},
		"1.1.1.1:80":               {"1.1.1.1:80", "allowedPorts"},
		"[7000::1]:443":            {"outside 2000::/3"},
		"[::ffff:192.168.0.1]:443": {"192.168.0.0/16"},
	} {
		err := policy.Check(netip.MustParseAddrPort(addr))
		if err == nil {
			t.Errorf("%s: got nil", addr)
			continue
		}
		for _, want := range says {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q does not say %q", err, want)
			}
		}
	}
}

package destination

import "net/netip"

// block is a range that is not globally reachable unicast.
type block struct {
	prefix netip.Prefix
	name   string
}

func reserved(cidr, name string) block {
	return block{prefix: netip.MustParsePrefix(cidr), name: name}
}

// specialBlocks is what is refused unless configuration opens it. Sources, as of
// their last updates in 2025:
//
//   - IANA IPv4 Special-Purpose Address Registry
//     https://www.iana.org/assignments/iana-ipv4-special-registry
//   - IANA IPv6 Special-Purpose Address Registry
//     https://www.iana.org/assignments/iana-ipv6-special-registry
//   - IANA Internet Protocol Version 6 Address Space
//     https://www.iana.org/assignments/ipv6-address-space
//
// In it are the blocks whose column "Globally Reachable" says anything but True
// ("N/A" included: 6to4 and Teredo reach whatever they carry inside), multicast,
// and one address of a cloud. Within such a block the registries make exceptions
// that are globally reachable (192.0.0.9/32, 2001:1::1/128, 2001:20::/28 and
// others). They are refused with their block: they are anycast services of
// routers, and identifiers, never a receiver of webhooks.
//
// Where blocks lie within each other the narrower one comes first, for its name.
var specialBlocks = []block{
	// IPv4
	reserved("0.0.0.0/8", "this network"),                          // RFC 791, section 3.2
	reserved("10.0.0.0/8", "private use"),                          // RFC 1918
	reserved("100.64.0.0/10", "shared address space"),              // RFC 6598; Alibaba's metadata 100.100.100.200
	reserved("127.0.0.0/8", "loopback"),                            // RFC 1122, section 3.2.1.3
	reserved("169.254.0.0/16", "link-local, cloud metadata"),       // RFC 3927; 169.254.169.254 of most clouds
	reserved("172.16.0.0/12", "private use"),                       // RFC 1918
	reserved("192.0.0.0/24", "IETF protocol assignments"),          // RFC 6890, section 2.1; Oracle's metadata 192.0.0.192
	reserved("192.0.2.0/24", "documentation"),                      // RFC 5737
	reserved("192.88.99.0/24", "6to4 relay anycast, deprecated"),   // RFC 7526, RFC 6751
	reserved("192.168.0.0/16", "private use"),                      // RFC 1918
	reserved("198.18.0.0/15", "benchmarking"),                      // RFC 2544
	reserved("198.51.100.0/24", "documentation"),                   // RFC 5737
	reserved("203.0.113.0/24", "documentation"),                    // RFC 5737
	reserved("224.0.0.0/4", "multicast"),                           // RFC 5771
	reserved("255.255.255.255/32", "limited broadcast"),            // RFC 919, section 7
	reserved("240.0.0.0/4", "reserved"),                            // RFC 1112, section 4
	reserved("168.63.129.16/32", "Azure platform virtual address"), // no registry: Microsoft, "What is IP address 168.63.129.16?"

	// IPv6; IPv4-mapped ::ffff:0:0/96 (RFC 4291, section 2.5.5.2) is unmapped
	// before it gets here
	reserved("::/128", "unspecified address"),            // RFC 4291, section 2.5.2
	reserved("::1/128", "loopback"),                      // RFC 4291, section 2.5.3
	reserved("::ffff:0:0:0/96", "IPv4-translated"),       // RFC 2765, section 2.1, deprecated
	reserved("::/96", "IPv4-compatible, deprecated"),     // RFC 4291, section 2.5.5.1
	reserved("64:ff9b:1::/48", "local-use NAT64"),        // RFC 8215
	reserved("100::/64", "discard only"),                 // RFC 6666
	reserved("100:0:0:1::/64", "dummy prefix"),           // RFC 9780
	reserved("2001::/32", "Teredo"),                      // RFC 4380
	reserved("2001:2::/48", "benchmarking"),              // RFC 5180
	reserved("2001:10::/28", "ORCHID, deprecated"),       // RFC 4843
	reserved("2001::/23", "IETF protocol assignments"),   // RFC 2928
	reserved("2001:db8::/32", "documentation"),           // RFC 3849
	reserved("2002::/16", "6to4"),                        // RFC 3056
	reserved("3fff::/20", "documentation"),               // RFC 9637
	reserved("5f00::/16", "segment routing (SRv6) SIDs"), // RFC 9602
	reserved("fc00::/7", "unique local"),                 // RFC 4193; AWS's metadata fd00:ec2::254
	reserved("fe80::/10", "link-local"),                  // RFC 4291, section 2.5.6
	reserved("fec0::/10", "site-local, deprecated"),      // RFC 3879
	reserved("ff00::/8", "multicast"),                    // RFC 4291, section 2.7
}

var (
	// globalUnicast6 is all that IANA has opened for global unicast: RFC 4291,
	// section 2.4, and the IPv6 address space registry. The rest is reserved.
	globalUnicast6 = netip.MustParsePrefix("2000::/3")

	// nat64 is the one range outside it that is globally reachable (RFC 6052);
	// it stands or falls with the IPv4 address inside.
	nat64 = netip.MustParsePrefix("64:ff9b::/96")

	everything6 = reserved("::/0", "outside 2000::/3, reserved by the IETF")
)

// special returns the block an unmapped, zoneless address lies in, if it is not
// globally reachable unicast. What the address carries inside is another matter:
// see embedded.
func special(addr netip.Addr) (block, bool) {
	for _, b := range specialBlocks {
		if b.prefix.Contains(addr) {
			return b, true
		}
	}
	if addr.Is6() && !globalUnicast6.Contains(addr) && !nat64.Contains(addr) {
		return everything6, true
	}
	return block{}, false
}

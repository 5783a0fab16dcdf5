package destination

import (
	"encoding/binary"
	"net/netip"
)

var (
	nat64Local     = netip.MustParsePrefix("64:ff9b:1::/48")
	sixToFour      = netip.MustParsePrefix("2002::/16")
	teredo         = netip.MustParsePrefix("2001::/32")
	ipv4Compatible = netip.MustParsePrefix("::/96")
	ipv4Translated = netip.MustParsePrefix("::ffff:0:0:0/96")
)

// embedded returns the IPv4 addresses that an IPv6 address carries inside, where
// a translator or a tunnel on the way may deliver to them. An IPv4-mapped
// address is not among these: it is unmapped before, since the kernel itself
// treats it as the IPv4 address.
func embedded(addr netip.Addr) []netip.Addr {
	if !addr.Is6() {
		return nil
	}
	b := addr.As16()
	switch {
	case nat64.Contains(addr), ipv4Translated.Contains(addr): // RFC 6052, section 2.2; RFC 2765
		return []netip.Addr{ipv4At(b, 12)}
	case nat64Local.Contains(addr):
		// RFC 8215 leaves the length of the translator's own prefix to the
		// operator, and the IPv4 address moves with it (RFC 6052, section 2.2).
		// The two usual lengths are looked at: /96, and the whole /48, where the
		// bits of the first octet being zero say that it is not in use.
		inner := []netip.Addr{ipv4At(b, 12)}
		if b[6] != 0 {
			inner = append(inner, netip.AddrFrom4([4]byte{b[6], b[7], b[9], b[10]}))
		}
		return inner
	case sixToFour.Contains(addr): // RFC 3056, section 2
		return []netip.Addr{ipv4At(b, 2)}
	case teredo.Contains(addr): // RFC 4380, section 4: the server, and the client with its bits inverted
		client := binary.BigEndian.Uint32(b[12:]) ^ 0xffffffff
		var c [4]byte
		binary.BigEndian.PutUint32(c[:], client)
		return []netip.Addr{ipv4At(b, 4), netip.AddrFrom4(c)}
	case addr == netip.IPv6Unspecified() || addr == netip.IPv6Loopback():
		return nil // in ::/96 only by their numbers
	case ipv4Compatible.Contains(addr): // RFC 4291, section 2.5.5.1
		return []netip.Addr{ipv4At(b, 12)}
	case isISATAP(b): // RFC 5214, section 6.1
		return []netip.Addr{ipv4At(b, 12)}
	}
	return nil
}

// isISATAP recognises the interface identifier 0:5efe or 200:5efe, which stands
// behind any prefix.
func isISATAP(b [16]byte) bool {
	return b[8]&^0x02 == 0 && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe
}

func ipv4At(b [16]byte, offset int) netip.Addr {
	return netip.AddrFrom4([4]byte(b[offset : offset+4]))
}

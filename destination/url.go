package destination

import (
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// CheckURL is the early answer, when an endpoint is declared: scheme, port and,
// where the host is an address and not a name, the address. It resolves nothing.
// The result is nil or a [*NotAllowedError].
//
// A host that some programs take for an IPv4 address and others for a name
// ("127.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.0.0.1.") is refused
// whatever it stands for; no DNS name can look like that. "localhost" and names
// below it are the loopback addresses (RFC 6761, section 6.3).
//
// Names that only mapping (IDNA) turns into addresses, such as full-width
// digits, are not recognised here. [Policy.Control] sees what they become.
func (p *Policy) CheckURL(u *url.URL) error {
	host := u.Hostname()
	if host == "" {
		return &NotAllowedError{Reason: ReasonInvalid, Detail: "the URL has no host; write https://host/path"}
	}
	if err := p.checkScheme(u.Scheme, host); err != nil {
		return err
	}
	port, ok := portOf(u)
	if !ok {
		return &NotAllowedError{Reason: ReasonInvalid, Host: host, Detail: "the port is none; use 1 to 65535, or leave it out"}
	}
	if !p.portAllowed(port) {
		return &NotAllowedError{Reason: ReasonPort, Host: host}
	}
	return p.checkHost(host, port)
}

func (p *Policy) checkScheme(scheme, host string) error {
	switch {
	case scheme == "https", scheme == "http" && p.allowHTTP:
		return nil
	case scheme == "http":
		return &NotAllowedError{
			Reason: ReasonScheme, Host: host,
			Detail: "plain http is not allowed; use https, or ask the platform team to allow it (allowHTTP)",
		}
	}
	return &NotAllowedError{Reason: ReasonScheme, Host: host, Detail: "the scheme is not https"}
}

// portOf returns the port that would be dialled.
func portOf(u *url.URL) (uint16, bool) {
	text := u.Port()
	if text == "" {
		if u.Scheme == "http" {
			return 80, true
		}
		return 443, true
	}
	port, err := strconv.ParseUint(text, 10, 16)
	return uint16(port), err == nil && port > 0
}

func (p *Policy) checkHost(host string, port uint16) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		return p.Check(netip.AddrPortFrom(addr, port))
	}
	name := strings.ToLower(strings.TrimRight(host, "."))
	if name == "" || strings.ContainsAny(name, ":%") || endsInNumber(name) {
		return &NotAllowedError{
			Reason: ReasonHostForm, Host: host,
			Detail: "this is neither a DNS name nor an IP address in its usual form; " +
				"write IPv4 as four decimal numbers without leading zeros and without a dot at the end",
		}
	}
	if name == "localhost" || strings.HasSuffix(name, ".localhost") {
		err := p.Check(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port))
		if err != nil && p.Check(netip.AddrPortFrom(netip.IPv6Loopback(), port)) == nil {
			return nil
		}
		return err
	}
	return nil
}

// endsInNumber reports whether the last label of a host is a decimal, octal or
// hexadecimal number: the WHATWG URL standard's mark of an IPv4 address, and what
// inet_aton of the C library reads as one. No top-level domain is a number.
//
// https://url.spec.whatwg.org/#ends-in-a-number-checker
func endsInNumber(name string) bool {
	last := name[strings.LastIndexByte(name, '.')+1:]
	digits, isHex := strings.CutPrefix(last, "0x")
	if isHex {
		return strings.Trim(digits, "0123456789abcdef") == ""
	}
	return last != "" && strings.Trim(last, "0123456789") == ""
}

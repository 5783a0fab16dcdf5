package destination

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// Config is what the platform team decides. The zero Config is the strictest:
// https to any port of any globally reachable unicast address.
type Config struct {
	// AllowedCIDRs open addresses that are refused otherwise, "10.1.0.0/16".
	// An address that carries another one inside (NAT64, 6to4, Teredo, …) is
	// open only if both are: the range allowed or public, and the inner address
	// too. IPv4-mapped IPv6 addresses are the IPv4 addresses they carry.
	AllowedCIDRs []string

	// DeniedCIDRs close addresses, whatever AllowedCIDRs say. An address is
	// closed too if one that it carries inside is. A network's own NAT64 prefix
	// (not the well-known one) cannot be recognised: close it here.
	DeniedCIDRs []string

	// AllowedPorts are the only ports that may be dialled; empty means any from
	// 1 to 65535.
	AllowedPorts []int

	// AllowHTTP permits URLs with the scheme http besides https.
	AllowHTTP bool
}

// Policy answers whether an address, or a URL, may be a webhook's destination.
// It is made by [New], never changes afterwards, and may be used by many
// goroutines at once.
type Policy struct {
	allowed   []netip.Prefix
	denied    []netip.Prefix
	ports     []uint16 // empty: any
	allowHTTP bool
}

// New checks the configuration and reports all its problems at once, each with
// the field, the value and the remedy.
func New(config Config) (*Policy, error) {
	p := &Policy{allowHTTP: config.AllowHTTP}
	var problems []error
	p.allowed, problems = prefixes("allowedCIDRs", config.AllowedCIDRs, problems)
	p.denied, problems = prefixes("deniedCIDRs", config.DeniedCIDRs, problems)
	for i, port := range config.AllowedPorts {
		if port < 1 || port > 65535 {
			problems = append(problems, fmt.Errorf("allowedPorts[%d]: %d is no port; use 1 to 65535", i, port))
			continue
		}
		p.ports = append(p.ports, uint16(port))
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return p, nil
}

// prefixes parses the CIDRs of one field and appends what is wrong to problems.
func prefixes(field string, cidrs []string, problems []error) ([]netip.Prefix, []error) {
	var parsed []netip.Prefix
	for i, cidr := range cidrs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			remedy := "write an address and a prefix length, as in 10.1.0.0/16 or fd00:1::/32"
			if addr, err := netip.ParseAddr(cidr); err == nil && addr.Zone() == "" {
				remedy = fmt.Sprintf("for this one address write %s/%d", addr, addr.BitLen())
			}
			problems = append(problems, fmt.Errorf("%s[%d]: %q is no CIDR; %s", field, i, cidr, remedy))
			continue
		}
		switch {
		case prefix != prefix.Masked():
			// Either the address or the length is a mistake, and guessing which
			// might open more than was meant.
			problems = append(problems, fmt.Errorf("%s[%d]: %q has bits set behind the prefix; write %s, or correct the length",
				field, i, cidr, prefix.Masked()))
		case prefix.Addr().Is4In6():
			problems = append(problems, fmt.Errorf("%s[%d]: %q is an IPv4-mapped range, which matches nothing; write it as IPv4",
				field, i, cidr))
		default:
			parsed = append(parsed, prefix)
		}
	}
	return parsed, problems
}

// Check reports whether a connection to this address and port may be made: nil,
// or a [*NotAllowedError].
//
// A zone is of no account, and an IPv4-mapped IPv6 address is the IPv4 address
// it carries. An address with others inside is allowed only if all of them are.
func (p *Policy) Check(destination netip.AddrPort) error {
	if !p.portAllowed(destination.Port()) {
		return refuse(destination, ReasonPort)
	}
	return p.checkAddr(destination)
}

func (p *Policy) portAllowed(port uint16) bool {
	return port != 0 && (len(p.ports) == 0 || slices.Contains(p.ports, port))
}

// checkAddr is Check without the port's part.
func (p *Policy) checkAddr(destination netip.AddrPort) error {
	addr := destination.Addr().WithZone("").Unmap()
	if !addr.IsValid() {
		return refuse(destination, ReasonInvalid)
	}
	if err := p.checkOne(destination, addr); err != nil {
		return err
	}
	for _, inner := range embedded(addr) {
		if err := p.checkOne(destination, inner); err != nil {
			err.Embedded = inner
			return err
		}
	}
	return nil
}

// checkOne looks at one address, the dialled one or one inside it, by itself.
func (p *Policy) checkOne(destination netip.AddrPort, addr netip.Addr) *NotAllowedError {
	contains := func(prefix netip.Prefix) bool { return prefix.Contains(addr) }
	if i := slices.IndexFunc(p.denied, contains); i >= 0 {
		err := refuse(destination, ReasonDenied)
		err.Range = p.denied[i].String()
		return err
	}
	if slices.ContainsFunc(p.allowed, contains) {
		return nil
	}
	if block, found := special(addr); found {
		err := refuse(destination, ReasonNotPublic)
		err.Range, err.RangeName = block.prefix.String(), block.name
		return err
	}
	return nil
}

package destination

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// ErrNotAllowed is what every refusal is, for [errors.Is]; also through the
// wrappings of net and net/http.
var ErrNotAllowed = errors.New("destination not allowed")

// Reason says which rule refused a destination.
type Reason string

// The reasons of a [NotAllowedError].
const (
	ReasonInvalid   Reason = "Invalid"   // not an address, or a URL without a usable host or port
	ReasonScheme    Reason = "Scheme"    // neither https nor an allowed http
	ReasonNetwork   Reason = "Network"   // not TCP
	ReasonPort      Reason = "Port"      // port 0, or not among the allowed ones
	ReasonHostForm  Reason = "HostForm"  // an IPv4 address in a spelling that programs read differently
	ReasonDenied    Reason = "Denied"    // in a denied CIDR
	ReasonNotPublic Reason = "NotPublic" // not globally reachable unicast, and in no allowed CIDR
)

// NotAllowedError is why a destination was refused.
type NotAllowedError struct {
	Reason Reason

	// Destination is the address and port asked for; invalid where the refusal
	// came before there was one.
	Destination netip.AddrPort

	// Host is the host of a URL that was refused for its form, else "".
	Host string

	// Embedded is the address inside Destination's that was refused; invalid
	// where it was Destination's own.
	Embedded netip.Addr

	// Range is the CIDR that refused, for ReasonDenied and ReasonNotPublic, and
	// RangeName what the registry calls it, for the latter.
	Range, RangeName string

	// Detail completes the message for reasons that concern a URL.
	Detail string
}

func refuse(destination netip.AddrPort, reason Reason) *NotAllowedError {
	return &NotAllowedError{Reason: reason, Destination: destination}
}

// Error names what was refused, why, and the remedy. It holds an address or a
// host, never a URL's path or query.
func (e *NotAllowedError) Error() string {
	var b strings.Builder
	b.WriteString(ErrNotAllowed.Error())
	switch {
	case e.Host != "":
		fmt.Fprintf(&b, ": host %q", e.Host)
	case e.Destination.Addr().IsValid():
		fmt.Fprintf(&b, ": %s", e.Destination)
	}
	if e.Embedded.IsValid() {
		fmt.Fprintf(&b, ", which carries %s inside", e.Embedded)
	}
	b.WriteString(": ")
	switch e.Reason {
	case ReasonPort:
		b.WriteString("this port is not among the allowed ones (allowedPorts)")
	case ReasonDenied:
		fmt.Fprintf(&b, "in the denied range %s (deniedCIDRs)", e.Range)
	case ReasonNotPublic:
		fmt.Fprintf(&b, "in %s (%s), which is not a public address; "+
			"use a public one, or ask the platform team to open it (allowedCIDRs)", e.Range, e.RangeName)
	case ReasonInvalid, ReasonScheme, ReasonNetwork, ReasonHostForm:
		b.WriteString(e.Detail)
	}
	return b.String()
}

// Is reports whether target is [ErrNotAllowed].
func (e *NotAllowedError) Is(target error) bool { return target == ErrNotAllowed }

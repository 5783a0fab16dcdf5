package destination

import (
	"net/netip"
	"strings"
	"syscall"
)

// Control is made for [net.Dialer.Control]: it is called with the address that
// is about to be connected, after resolving and before anything is sent, for
// every one that a name has. Its refusal ends that one connection attempt with
// an error that is [ErrNotAllowed].
//
// A Dialer with a ControlContext ignores its Control; set one of them only. An
// http.Transport must not use a proxy, or the proxy's address is what is checked.
func (p *Policy) Control(network, address string, _ syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return &NotAllowedError{Reason: ReasonNetwork, Host: address, Detail: "only TCP is dialled"}
	}
	destination, err := netip.ParseAddrPort(address)
	if err != nil {
		// net gives addresses only; anything else is not understood, so refused.
		return &NotAllowedError{Reason: ReasonInvalid, Host: address, Detail: "this is no IP address and port"}
	}
	return p.Check(destination)
}

// Package destination decides which addresses a webhook may be sent to, so that
// nobody who may write a URL can make Postrider reach into the network it runs
// in (server-side request forgery).
//
// The decision is a pure function of one IP address and port. It is asked for
// the address actually dialled, by [Policy.Control] in net.Dialer, on every
// connection: what a name resolved to earlier, and how an address was spelt, is
// of no account. [Policy.CheckURL] gives an early answer when an endpoint is
// declared; it never replaces the first.
//
// Refused is everything but globally reachable unicast; the table with its
// sources is in special.go. Configuration opens ranges, and closes them.
//
// It imports the standard library alone. Start at [New].
package destination

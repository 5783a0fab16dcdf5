// Package sink is the receiver of all benchmarks: it answers webhooks and counts them by delivery, which is the event's
// id and the endpoint. Start at [Serve], which runs it in a process of its own, and [Client], which asks it.
package sink

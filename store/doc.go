// Package store holds every SQL statement of Postrider. It maps rows to types and holds no policy.
//
// Postgres is the queue. Two rules carry it:
//
//  1. A lane row is the mutex of its queue. Whoever changes an unclaimed delivery holds the lane's row lock and reads
//     deliveries in a later statement than the one that took it: a statement's snapshot is older than the locks it
//     waits for, so in one statement it would miss what was committed in between.
//  2. A claimed delivery belongs to its token. Its owner may lock it without the lane; everybody else skips it. The
//     lock order is: idempotency keys, claimed deliveries by id, lanes by id. Nobody waits for a delivery while
//     holding a lane.
//
// Start at [Store], then follow a delivery: [Store.Accept], [Store.Touch], [Store.Claim], [Store.Complete]. What a
// crash leaves behind is mended by the chores in sweep.go; how rows are found while a held snapshot keeps their dead
// versions stands in latest.go. PROTOCOLS.md names the test that holds each rule. The package may import migrations and
// nothing else of ours.
package store

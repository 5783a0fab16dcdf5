// Package dispatcher delivers: it claims what is due, signs and sends it, decides what the outcome means and records
// it, many at once and in any number of replicas. It also runs the store's chores.
//
// Only claiming and recording touch the database, and no transaction is open while a request is. All times are the
// database's: a replica never reads its own wall clock (clock.go).
//
// Start at [Dispatcher.Run], then follow a delivery: claim.go, endpoints.go, send.go, decide.go, record.go. What the
// receivers may take of a replica is in shares.go, what is told of a failure in failure.go and reason.go.
//
// It imports store, signature, destination and keyring of ours, and nothing of Kubernetes.
package dispatcher

// Package ingest is the HTTP API that producers post events to.
//
// A request passes, in this order: request id and recovery (route.go), the gate that has package access authenticate and
// authorise it by the Kubernetes API (gate.go, authenticate.go, authorize.go, over the memory in verdict.go), the bound
// on requests in flight (admission.go), parsing (post.go, event.go, document.go), matching against the namespace's
// endpoints (match.go, table.go), one transaction for event and deliveries (accept.go), which the events of concurrent
// requests share (gather.go), and after it the waking of the dispatchers (notify.go). read.go answers what became of an
// event. Every answer that is not a success is a problem document (problem.go); openapi.yaml describes them all.
//
// Start at [New] and [Server.Run]. The package may import store, access and Kubernetes' libraries, and nothing else of
// ours.
package ingest

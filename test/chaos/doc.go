// Package chaos breaks an installation of Postrider while it works, and proves from journals that nothing was lost, nothing
// came that was never posted, order held, limits were kept, and nothing is left behind.
//
// [Run] plays a [Scenario]: real processes (test/localstack) over a real Postgres and a real API server, a load and
// receivers (test/check), and between the parts and Postgres a wire that can be cut and silenced. What is done, and when,
// is a [Plan] that is made beforehand from a seed: the same seed makes the same plan. `make chaos` plays the long form,
// the tests of this package a short one.
//
// Start at scenario.go and plan.go, then run.go and verdict.go.
package chaos

// Package check proves what became of events: [Load] posts them and keeps a journal of what was acknowledged, [Receiver]
// plays the subscribers and keeps one of what arrived, and [Check] compares the two: nothing lost, nothing foreign, order
// held per key, no event twice without a reason.
//
// All three are used within a test's process, and as programs (cmd/load, cmd/receive, cmd/check) that also run as pods.
// Journals are files of one JSON [Fact] a line. Each fact is written before what it permits: a post before it is sent, an
// answer before it is given. So a journal that ends with the kill of its writer never makes the check raise a false alarm.
//
// The package imports signature and the standard library. Start at fact.go, then check.go.
package check

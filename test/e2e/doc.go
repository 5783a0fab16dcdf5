// Command e2e is `make test-e2e`: it brings up a cluster of its own, installs the chart with Helm and plays scenarios on it,
// each named and timed, and takes the cluster down again. It exits with 0 only if every scenario passed.
//
//	e2e [-keep] [-run PATTERN]
//
// With -keep the cluster stays when a scenario fails, in .cache/e2e; the next run, or `e2e -down`, removes it. A scenario begins
// with what those before it left: -run leaves some out, never the first two. Where the upgrade is played, what is installed first
// is the previous release, of the commit that the file previous names; otherwise it is this checkout.
//
// What was acknowledged and what arrived is compared by test/check. Start at main.go, then scenarios.go.
package main

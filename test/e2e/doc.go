// Command e2e is `make test-e2e`: it brings up a cluster of its own, installs the chart with Helm and plays scenarios on it,
// each named and timed, and takes the cluster down again. It exits with 0 only if every scenario passed.
//
//	e2e [-keep] [-run PATTERN]
//
// With -keep the cluster stays when a scenario fails, in .cache/e2e; the next run, or `e2e -down`, removes it. A scenario begins
// with what those before it left: -run leaves later ones out, never the first. What was acknowledged and what arrived is
// compared by test/check. Start at main.go, then scenarios.go.
package main

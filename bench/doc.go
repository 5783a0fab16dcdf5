// Command bench measures Postrider against the baselines of what it is made of, and against River doing the same work.
//
// One run measures everything on one machine, in rounds: each round goes through all units, every other one backwards, so
// that what changes over time meets all of them alike, and ratios are formed of figures of the same round only. What was
// delivered is counted by the receiver (package sink), which is a process of its own, as are the dispatcher and ingest
// (the product's binary) and River's workers (a subcommand of this one). Postgres is durable: commits wait for the disk.
//
// Start at plan.go for what there is to measure, then run.go. The units are in baselines.go, river.go, drain.go,
// latency.go, pressure.go, volume.go and rest.go; figures.go turns samples into bench/results/latest.json, and package
// report turns that into docs/performance.md. This module may import any package of the product; none imports it.
package main

// Package report turns the figures of a run into what is kept of it: bench/results/latest.json, and docs/performance.md
// with its charts. All of it is pure: the same figures give the same bytes, which is how a test notices drift.
//
// Start at [Figures], then [AddRatios] and [Files].
package report

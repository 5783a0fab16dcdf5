package report

import "fmt"

// goal is a bound that a figure is to keep.
type goal struct {
	key     string
	measure string // in the table
	label   string // in the chart
	atMost  bool
	bound   float64
	format  string // of figure and bound
}

func (g goal) met(value float64) bool {
	if g.atMost {
		return value <= g.bound
	}
	return value >= g.bound
}

func (g goal) required() string {
	word := "at least "
	if g.atMost {
		word = "at most "
	}
	return word + fmt.Sprintf(g.format, g.bound)
}

// goals are what the design asks for, in its order.
var goals = []goal{
	{"ratio_drain_vs_limit", "drain of a loaded queue, against the limit *L*", "drain / limit", false, 0.80, "%.2f"},
	{"ratio_drain_vs_river_tuned", "the same, against River tuned", "drain / River tuned", false, 2, "%.2f"},
	{"ratio_accept_deliver_vs_limit", "accept → deliver through HTTP, fan-out 1, against its limit", "accept → deliver / limit", false, 0.70, "%.2f"},
	{"ratio_latency_p50_vs_two_commits_plus_post", "accept → received at 100/s, p50, against two commits and one POST", "latency p50 / two commits, POST", true, 2, "%.2f"},
	{"ratio_latency_p99_vs_two_commits_plus_post", "the same, p99, against the same", "latency p99 / two commits, POST", true, 5, "%.2f"},
	{"accept_deliver_per_s", "accept → deliver, 32 producers, deliveries a second", "accept → deliver, per second", false, 6000, "%.0f"},
	{"ratio_healthy_p99_beside_dead", "a healthy endpoint's p99 beside a dead one, against without it", "healthy p99 beside dead", true, 1.2, "%.2f"},
	{"ratio_healthy_p99_beside_hanging", "the same, beside one that hangs", "healthy p99 beside hanging", true, 1.2, "%.2f"},
	{"ratio_drain_many_pending", "drain beside many pending, against an empty queue", "drain beside many pending", false, 0.90, "%.2f"},
	{"ratio_drain_long_history", "drain with a long history, against none", "drain with long history", false, 0.90, "%.2f"},
	{"ratio_drain_held_snapshot", "rate at half load under a held snapshot, against without it", "rate under held snapshot", false, 0.80, "%.2f"},
	{"held_snapshot_claim_p99_ms", "claims' p99 meanwhile, ms", "claim p99 meanwhile, ms", true, 20, "%.1f"},
	{"claims_per_delivery", "claims per delivery", "claims per delivery", true, 0.02, "%.4f"},
	{"wal_bytes_per_delivery", "write-ahead log per delivery, bytes", "WAL per delivery, bytes", true, 1024, "%.0f"},
	{"dispatcher_rss_mib", "dispatcher's memory with many endpoints and requests in flight, MiB", "dispatcher's memory, MiB", true, 96, "%.0f"},
	{"lost_total", "deliveries lost in the whole run", "lost", true, 0, "%.0f"},
}

package report

import "fmt"

// goal is a bound that a figure is to keep.
type goal struct {
	key     string
	measure string
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
	{"ratio_drain_vs_limit", "drain of a loaded queue, against the limit *L*", false, 0.80, "%.2f"},
	{"ratio_drain_vs_river_tuned", "the same, against River tuned", false, 2, "%.2f"},
	{"ratio_accept_deliver_vs_limit", "accept → deliver through HTTP, fan-out 1, against its limit", false, 0.70, "%.2f"},
	{"ratio_latency_p50_vs_two_commits_plus_post", "accept → received at 100/s, p50, against two commits and one POST", true, 2, "%.2f"},
	{"ratio_latency_p99_vs_two_commits_plus_post", "the same, p99, against the same", true, 5, "%.2f"},
	{"accept_deliver_per_s", "accept → deliver, 32 producers, deliveries a second", false, 6000, "%.0f"},
	{"ratio_healthy_p99_beside_dead", "a healthy endpoint's p99 beside a dead one, against without it", true, 1.2, "%.2f"},
	{"ratio_healthy_p99_beside_hanging", "the same, beside one that hangs", true, 1.2, "%.2f"},
	{"ratio_drain_many_pending", "drain beside many pending, against an empty queue", false, 0.90, "%.2f"},
	{"ratio_drain_long_history", "drain with a long history, against none", false, 0.90, "%.2f"},
	{"ratio_drain_held_snapshot", "rate at half load under a held snapshot, against without it", false, 0.80, "%.2f"},
	{"held_snapshot_claim_p99_ms", "claims' p99 meanwhile, ms", true, 20, "%.1f"},
	{"claims_per_delivery", "claims per delivery", true, 0.02, "%.4f"},
	{"wal_bytes_per_delivery", "write-ahead log per delivery, bytes", true, 1024, "%.0f"},
	{"dispatcher_rss_mib", "dispatcher's memory with many endpoints and requests in flight, MiB", true, 96, "%.0f"},
	{"lost_total", "deliveries lost in the whole run", true, 0, "%.0f"},
}

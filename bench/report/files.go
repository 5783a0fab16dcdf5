package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"text/template"
)

//go:embed performance.md.tmpl
var page string

// row of a table of figures.
type row struct{ Measure, Unit, Value, Least, Most string }

// verdict is a row of the table of goals.
type verdict struct{ Measure, Required, Value, Least, Most, Met string }

// quiet is how much of the CPU others may use, in percent, before the page says that they disturbed the run.
const quiet = 5

// Files returns the documentation of some figures: contents by path below docs.
func Files(f Figures) (map[string][]byte, error) {
	t, err := template.New("performance").Parse(page)
	if err != nil {
		return nil, fmt.Errorf("parse the page: %w", err)
	}
	var text bytes.Buffer
	others, _ := f.number("cpu_percent_others")
	if err := t.Execute(&text, map[string]any{
		"Facts": f, "Disturbed": others > quiet, "Goals": f.verdicts(), "Baselines": f.table(baselines), "Rates": f.table(rates), "Latencies": f.table(latencies), "Costs": f.table(costs),
		"Count": func(key string) string { v, _ := f.number(key); return short(v) },
		"Figure": func(format, key string) string {
			v, ok := f.number(key)
			if !ok {
				return "(not measured)"
			}
			return fmt.Sprintf(format, v)
		},
	}); err != nil {
		return nil, fmt.Errorf("write the page: %w", err)
	}
	return map[string][]byte{
		"performance.md":          text.Bytes(),
		"performance/drain.svg":   f.drainChart(),
		"performance/goals.svg":   f.goalsChart(),
		"performance/latency.svg": f.latencyChart(),
		"performance/cost.svg":    f.costChart(),
	}, nil
}

func (f Figures) verdicts() []verdict {
	var all []verdict
	for _, g := range goals {
		value, ok := f.number(g.key)
		if !ok {
			continue
		}
		least, _ := f.number(g.key + "_min")
		most, _ := f.number(g.key + "_max")
		met := "yes"
		if !g.met(value) {
			met = "**no**"
		}
		all = append(all, verdict{
			Measure: g.measure, Required: g.required(), Met: met,
			Value: fmt.Sprintf(g.format, value), Least: fmt.Sprintf(g.format, least), Most: fmt.Sprintf(g.format, most),
		})
	}
	return all
}

// measure names a figure for a table.
type measure struct{ key, name, unit string }

var (
	baselines = []measure{
		{"baseline_http_per_s", "*H*: signed POSTs of 1 KiB by one client, no database", "/s"},
		{"baseline_db_per_s", "*D*: claimed and completed in the database, no HTTP", "/s"},
		{"baseline_insert_per_s", "*I*: accepted in bulk, no HTTP", "/s"},
		{"baseline_limit_per_s", "*L* = 1/(1/H + 1/D), the limit of a drain", "/s"},
		{"baseline_accept_deliver_per_s", "1/(2/H + 1/D + 1/I), the limit of accept → deliver", "/s"},
		{"baseline_commit_p50_ms", "one tiny commit alone, p50", "ms"},
		{"baseline_commit_p99_ms", "one tiny commit alone, p99", "ms"},
		{"baseline_post_p50_ms", "one POST alone, p50", "ms"},
		{"baseline_post_p99_ms", "one POST alone, p99", "ms"},
	}
	rates = []measure{
		{"drain_per_s_postrider", "drain, 100 endpoints", "/s"},
		{"drain_thousand_per_s", "drain, 1,000 endpoints", "/s"},
		{"drain_hot_per_s", "drain, one hot endpoint", "/s"},
		{"drain_flaky_attempts_per_s", "drain, 30 % of the attempts fail: attempts", "/s"},
		{"drain_many_pending_per_s", "drain beside many pending", "/s"},
		{"drain_long_history_per_s", "drain with a long history", "/s"},
		{"drain_per_s_river_64", "River, 64 workers", "/s"},
		{"drain_per_s_river_256", "River, 256 workers", "/s"},
		{"drain_per_s_river_1000", "River, 1,000 workers", "/s"},
		{"drain_per_s_river_tuned", "River tuned, the best of these in each round", "/s"},
		{"drain_per_s_river_default", "River with its defaults", "/s"},
		{"accept_deliver_per_s", "accept → deliver, closed loop of 32 producers", "/s"},
		{"fan_out_10_per_s", "the same, fan-out 10: deliveries", "/s"},
		{"held_snapshot_offered_per_s", "held snapshot: offered", "/s"},
		{"unheld_snapshot_per_s", "held snapshot: delivered before", "/s"},
		{"held_snapshot_per_s", "held snapshot: delivered at its end", "/s"},
	}
	latencies = []measure{
		{"latency_at_100_per_s_p50_ms", "accept → received at 100/s, p50", "ms"},
		{"latency_at_100_per_s_p99_ms", "accept → received at 100/s, p99", "ms"},
		{"two_commits_plus_post_ms", "two commits and one POST, one after another without a rest, p50", "ms"},
		{"two_commits_plus_post_paced_p50_ms", "the same three at 100/s, p50", "ms"},
		{"two_commits_plus_post_paced_p99_ms", "the same three at 100/s, p99", "ms"},
		{"ratio_latency_p50_vs_paced", "accept → received at 100/s, p50, against the p50 of these at 100/s", "×"},
		{"ratio_latency_p99_vs_paced", "the p99, against the same", "×"},
		{"ratio_latency_p99_vs_their_p99", "that p99 against two commits' and one POST's p99", "×"},
		{"accept_deliver_half_offered_per_s", "half of the closed loop's rate", "/s"},
		{"accept_deliver_half_p50_ms", "accept → received at that rate, p50", "ms"},
		{"accept_deliver_half_p99_ms", "accept → received at that rate, p99", "ms"},
		{"healthy_alone_p50_ms", "healthy endpoints alone, p50", "ms"},
		{"healthy_alone_p99_ms", "healthy endpoints alone, p99", "ms"},
		{"healthy_beside_dead_p50_ms", "beside a dead one, p50", "ms"},
		{"healthy_beside_dead_p99_ms", "beside a dead one, p99", "ms"},
		{"healthy_beside_hanging_p50_ms", "beside a hanging one, p50", "ms"},
		{"healthy_beside_hanging_p99_ms", "beside a hanging one, p99", "ms"},
		{"unheld_snapshot_claim_p99_ms", "a claim, before the snapshot, p99", "ms"},
		{"held_snapshot_claim_p99_ms", "a claim, under the held snapshot, p99", "ms"},
	}
	costs = []measure{
		{"drain_per_s_postrider_cpu_us_dispatcher", "drain: dispatcher's CPU per delivery", "µs"},
		{"drain_per_s_postrider_cpu_us_postgres", "drain: Postgres' CPU per delivery", "µs"},
		{"drain_per_s_postrider_cpu_us_sink", "drain: the receiver's CPU per delivery", "µs"},
		{"drain_per_s_river_256_cpu_us_river", "River, 256 workers: its CPU per job", "µs"},
		{"drain_per_s_river_256_cpu_us_postgres", "River, 256 workers: Postgres' CPU per job", "µs"},
		{"drain_per_s_river_256_cpu_us_sink", "River, 256 workers: the receiver's CPU per job", "µs"},
		{"wal_bytes_per_delivery", "drain: write-ahead log per delivery", "bytes"},
		{"drain_per_s_river_256_wal_bytes", "River, 256 workers: write-ahead log per job", "bytes"},
		{"claims_per_delivery", "claims per delivery", ""},
		{"idle_cpu_percent", "idle: dispatcher, of one core", "%"},
		{"idle_cpu_percent_ingest", "idle: ingest, of one core", "%"},
		{"idle_cpu_percent_postgres", "idle: Postgres, of one core", "%"},
		{"drain_per_s_postrider_peak_mib_dispatcher", "drain: the dispatcher's memory at its peak", "MiB"},
		{"drain_per_s_river_256_peak_mib_river", "River, 256 workers: its memory at its peak", "MiB"},
		{"dispatcher_rss_mib", "dispatcher's memory, many endpoints and requests in flight", "MiB"},
		{"dispatcher_rss_peak_mib", "the most it ever was", "MiB"},
		{"duplicates_total", "deliveries that arrived more than once", ""},
		{"lost_total", "deliveries lost", ""},
		{"lost_total_river", "jobs lost, River", ""},
	}
)

func (f Figures) table(wanted []measure) []row {
	var rows []row
	for _, m := range wanted {
		value, ok := f.number(m.key)
		if !ok {
			continue
		}
		least, _ := f.number(m.key + "_min")
		most, _ := f.number(m.key + "_max")
		rows = append(rows, row{Measure: m.name, Unit: m.unit, Value: short(value), Least: short(least), Most: short(most)})
	}
	return rows
}

func (f Figures) drainChart() []byte {
	return chart("Working off a loaded queue", "deliveries a second", f.bars(
		bar{label: "limit L", key: "baseline_limit_per_s", colour: reference},
		bar{label: "Postrider, 100 endpoints", key: "drain_per_s_postrider", colour: ours},
		bar{label: "Postrider, 1,000 endpoints", key: "drain_thousand_per_s", colour: ours},
		bar{label: "Postrider, one hot endpoint", key: "drain_hot_per_s", colour: ours},
		bar{label: "Postrider, many pending", key: "drain_many_pending_per_s", colour: ours},
		bar{label: "Postrider, long history", key: "drain_long_history_per_s", colour: ours},
		bar{label: "River, 64 workers", key: "drain_per_s_river_64", colour: theirs},
		bar{label: "River, 256 workers", key: "drain_per_s_river_256", colour: theirs},
		bar{label: "River, 1,000 workers", key: "drain_per_s_river_1000", colour: theirs},
		bar{label: "River, its defaults", key: "drain_per_s_river_default", colour: theirs},
	))
}

func (f Figures) latencyChart() []byte {
	return chart("From accepting to the receiver", "milliseconds", f.bars(
		bar{label: "two commits and one POST", key: "two_commits_plus_post_ms", colour: reference},
		bar{label: "at 100/s, p50", key: "latency_at_100_per_s_p50_ms", colour: ours},
		bar{label: "at 100/s, p99", key: "latency_at_100_per_s_p99_ms", colour: ours},
		bar{label: "at half of capacity, p50", key: "accept_deliver_half_p50_ms", colour: ours},
		bar{label: "at half of capacity, p99", key: "accept_deliver_half_p99_ms", colour: ours},
		bar{label: "healthy alone, p99", key: "healthy_alone_p99_ms", colour: ours},
		bar{label: "healthy beside a dead one, p99", key: "healthy_beside_dead_p99_ms", colour: ours},
		bar{label: "healthy beside a hanging one, p99", key: "healthy_beside_hanging_p99_ms", colour: ours},
	))
}

func (f Figures) costChart() []byte {
	return chart("CPU of one delivery", "microseconds", f.bars(
		bar{label: "Postrider: dispatcher", key: "drain_per_s_postrider_cpu_us_dispatcher", colour: ours},
		bar{label: "Postrider: Postgres", key: "drain_per_s_postrider_cpu_us_postgres", colour: ours},
		bar{label: "River, 256 workers: workers", key: "drain_per_s_river_256_cpu_us_river", colour: theirs},
		bar{label: "River, 256 workers: Postgres", key: "drain_per_s_river_256_cpu_us_postgres", colour: theirs},
	))
}

// goalsChart shows how much of each goal is reached: above 1 it is met.
func (f Figures) goalsChart() []byte {
	var bars []bar
	const enough = 3 // what is more than three times as good as asked for would hide the rest
	for _, g := range goals {
		value, ok := f.number(g.key)
		if !ok || g.bound == 0 || value == 0 {
			continue
		}
		reached := value / g.bound
		if g.atMost {
			reached = g.bound / value
		}
		b := bar{label: g.label, value: min(reached, enough), text: fmt.Sprintf(g.format, value), colour: ours}
		if !g.met(value) {
			b.colour = missed
		}
		bars = append(bars, b)
	}
	bars = append([]bar{{label: "what is asked for", value: 1, text: "1", colour: reference}}, bars...)
	return chart("Goals", "reached, as a multiple of what is asked for; the figure itself beside it", bars)
}

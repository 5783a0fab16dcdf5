package report

// AddRatios adds to the figures of one round what they come to together. What a ratio lacks a figure for is left out.
func AddRatios(round map[string]float64) {
	set := func(key string, value float64, of ...string) {
		for _, k := range of {
			if v, ok := round[k]; !ok || v == 0 {
				return
			}
		}
		round[key] = value
	}
	ratio := func(key, over, under string) { set(key, round[over]/round[under], over, under) }
	http, db, insert := round["baseline_http_per_s"], round["baseline_db_per_s"], round["baseline_insert_per_s"]

	set("baseline_limit_per_s", 1/(1/http+1/db), "baseline_http_per_s", "baseline_db_per_s")
	set("baseline_accept_deliver_per_s", 1/(2/http+1/db+1/insert), "baseline_http_per_s", "baseline_db_per_s", "baseline_insert_per_s")
	set("two_commits_plus_post_ms", 2*round["baseline_commit_p50_ms"]+round["baseline_post_p50_ms"], "baseline_commit_p50_ms", "baseline_post_p50_ms")
	set("two_commits_plus_post_p99_ms", 2*round["baseline_commit_p99_ms"]+round["baseline_post_p99_ms"], "baseline_commit_p99_ms", "baseline_post_p99_ms")
	if best := max(round["drain_per_s_river_64"], round["drain_per_s_river_256"], round["drain_per_s_river_1000"]); best > 0 {
		round["drain_per_s_river_tuned"] = best
	}

	ratio("ratio_drain_vs_limit", "drain_per_s_postrider", "baseline_limit_per_s")
	ratio("ratio_drain_thousand_vs_limit", "drain_thousand_per_s", "baseline_limit_per_s")
	ratio("ratio_drain_hot_vs_limit", "drain_hot_per_s", "baseline_limit_per_s")
	ratio("ratio_drain_vs_river_tuned", "drain_per_s_postrider", "drain_per_s_river_tuned")
	ratio("ratio_limit_vs_river_tuned", "baseline_limit_per_s", "drain_per_s_river_tuned")
	ratio("ratio_drain_vs_river_default", "drain_per_s_postrider", "drain_per_s_river_default")
	ratio("ratio_accept_deliver_vs_limit", "accept_deliver_per_s", "baseline_accept_deliver_per_s")
	ratio("ratio_latency_p50_vs_two_commits_plus_post", "latency_at_100_per_s_p50_ms", "two_commits_plus_post_ms")
	ratio("ratio_latency_p99_vs_two_commits_plus_post", "latency_at_100_per_s_p99_ms", "two_commits_plus_post_ms")
	ratio("ratio_latency_p99_vs_their_p99", "latency_at_100_per_s_p99_ms", "two_commits_plus_post_p99_ms")
	ratio("ratio_latency_p50_vs_paced", "latency_at_100_per_s_p50_ms", "two_commits_plus_post_paced_p50_ms")
	ratio("ratio_latency_p99_vs_paced", "latency_at_100_per_s_p99_ms", "two_commits_plus_post_paced_p50_ms")
	ratio("ratio_healthy_p99_beside_dead", "healthy_beside_dead_p99_ms", "healthy_alone_p99_ms")
	ratio("ratio_healthy_p99_beside_hanging", "healthy_beside_hanging_p99_ms", "healthy_alone_p99_ms")
	ratio("ratio_drain_many_pending", "drain_many_pending_per_s", "drain_thousand_per_s")
	ratio("ratio_drain_long_history", "drain_long_history_per_s", "drain_thousand_per_s")
	ratio("ratio_drain_held_snapshot", "held_snapshot_per_s", "unheld_snapshot_per_s")
}

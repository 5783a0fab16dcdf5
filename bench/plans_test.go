package main

import (
	"strings"
	"testing"
)

const loggedPlans = `2026-11-30 12:00:00.000 UTC [7] bench_1 LOG:  duration: 3.000 ms  plan:
	Query Text: 
	UPDATE lane
	   SET due_at = now()
	Update on lane  (cost=0.15..8.17 rows=1 width=8) (actual rows=0 loops=1)
	  ->  Index Scan using lane_latest on lane  (cost=0.15..8.17 rows=1 width=8) (actual rows=1 loops=1)
2026-11-30 12:00:00.001 UTC [8] bench_2 LOG:  duration: 90.000 ms  plan:
	Query Text: DELETE FROM delivery
	Delete on delivery  (cost=0.00..1.00 rows=0 width=0) (actual rows=0 loops=1)
2026-11-30 12:00:00.002 UTC [7] bench_1 LOG:  checkpoint complete
	Update on nothing  (cost=0.00..1.00 rows=0 width=0)
2026-11-30 12:00:00.003 UTC [7] bench_1 LOG:  duration: 1.000 ms  plan:
	Query Text: UPDATE lane SET due_at = now()
	Update on lane  (cost=0.15..8.17 rows=1 width=8) (actual rows=7 loops=1)
2026-11-30 12:00:00.004 UTC [7] bench_1 LOG:  duration: 2.000 ms  plan:
	Query Text: UPDATE lane SET due_at = now()
	Query Parameters: $1 = '7'
	Update on lane  (cost=0.15..8.17 rows=1 width=8) (actual rows=8 loops=1)
2026-11-30 12:00:00.005 UTC [7] bench_1 LOG:  duration: 0.100 ms  plan:
	Query Text: SELECT FROM endpoint
	Seq Scan on endpoint  (cost=0.00..1.00 rows=1 width=0) (actual rows=1 loops=1)
`

func TestTheMedianPlanOfEachStatementIsTold(t *testing.T) {
	t.Parallel()
	all, err := readPlans(strings.NewReader(loggedPlans), "bench_1")
	if err != nil {
		t.Fatal(err)
	}
	const want = `UPDATE lane SET due_at = now()
2.000 ms, the median of 3 samples
    Update on lane  (cost=0.15..8.17 rows=1 width=8) (actual rows=8 loops=1)

`
	if got := tellPlans(all); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

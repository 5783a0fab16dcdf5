package store

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// hotStatements are those that run while the queue is full, with an index that each must use.
var hotStatements = []struct{ name, sql, index string }{
	{"lockReady", lockReady, "lane_ready"},
	{"lockOldest", lockOldest, "lane_ready"},
	{"reap", reap, "delivery_due"},
	{"reapGiven", reapGiven, "delivery_due"},
	{"take", take, "delivery_due"},
	{"take", take, "delivery_pkey"},
	{"matchClaims", matchClaims, "delivery_pkey"},
	{"removeDeliveries", removeDeliveries, "delivery_pkey"},
	{"reschedule", reschedule, "delivery_pkey"},
	{"settleLanes", settleLanes, "lane_latest"},
	{"lockLanes", lockLanes, "lane_latest"},
	{"lockStatuses", lockStatuses, "endpoint_status_latest"},
	{"noNews", noNews, "endpoint_status_latest"},
	{"noteStatus", noteStatus, "endpoint_status_latest"},
	{"markStatuses", markStatuses, "endpoint_status_latest"},
	{"wakeLanes", wakeLanes, "lane_latest"},
	{"promoteKeys", promoteKeys, "delivery_key"},
	{"touchLanes", touchLanes, "lane_latest"},
	{"extendLeases", extendLeases, "delivery_pkey"},
	{"extendProbes", extendProbes, "lane_latest"},
	{"acceptEvents", acceptEvents, "namespace_version_pkey"},
	{"originalEvents", originalEvents, "idempotency_0_pkey"},
	{"pinEvents", pinEvents, "pkey"},
	{"someLanes", someLanes, "endpoint_pkey"},
	{"unwokenLanes", unwokenLanes, "delivery_due"},
	{"overlookedLanes", overlookedLanes, "delivery_due"},
	{"walkKeys", walkKeys, "delivery_key"},
	{"parkKeys", parkKeys, "delivery_key"},
	{"parkedLanes", parkedLanes, "delivery_due"},
	{"unparkRows", unparkRows, "delivery_due"},
	{"cancelledRows", cancelledRows, "delivery_due"},
	{"cancelledRows", cancelledRows, "lane_cancelled"},
	{"buryCancelled", buryCancelled, "delivery_pkey"},
	{"expiredRows", expiredRows, "delivery_due"},
	{"expiredRows", expiredRows, "lane_open"},
	{"buryExpired", buryExpired, "delivery_pkey"},
	{"holdLanes", holdLanes, "lane_latest"},
	{"unholdLanes", unholdLanes, "lane_latest"},
	{"backlogs", backlogs, "lane_left"},
	{"backlogs", backlogs, "lane_latest"},
	{"backlogs", backlogs, "delivery_due"},
}

// One dead endpoint with 1,000,000 deliveries due before anything else, beside 100 healthy ones with 10 each. The healthy
// ones are served first, within a second of claims; and every hot statement goes by its index, planned while the tables
// were empty, while they are full, and full of dead rows.
func TestADeadEndpointsMillionDelaysNobody(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`ALTER TABLE postrider.lane SET (autovacuum_enabled = off)`)
	f.exec(`ALTER TABLE postrider.delivery SET (autovacuum_enabled = off)`)
	f.exec(`VACUUM ANALYZE postrider.lane, postrider.delivery, postrider.event, postrider.endpoint`)
	early, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer early.Release()
	prepareHot(t, early)
	checkPlans(t, "planned while empty", early)
	// The queue grows and is drained again: the tables keep their pages, and are known to be empty.
	f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at)
		SELECT 0, 0, gen_random_uuid(), now() FROM generate_series(1, 20000)`)
	f.exec(`DELETE FROM postrider.delivery`)
	f.exec(`VACUUM ANALYZE postrider.delivery`)
	drained, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer drained.Release()
	prepareHot(t, drained)
	checkPlans(t, "planned while drained", drained)

	dead := f.endpoint("dead", func(p *EndpointSpec) { p.MaxConcurrency = 1_000_000 })
	healthy := make([]Endpoint, 100)
	for i := range healthy {
		healthy[i] = f.endpoint(fmt.Sprint("healthy", i))
	}
	event := f.post("", 1)[0]
	f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at)
		SELECT $1, $2, $3, now() - interval '1 h' FROM generate_series(1, 1000000)`, dead.LaneID, dead.ID, event)
	f.exec(`UPDATE postrider.lane SET due_at = now() - interval '1 h' WHERE lane_id = $1`, dead.LaneID)
	f.post("", 10, healthy...)
	f.wake("", healthy...)

	var spent time.Duration
	claims, served, beside := 0, 0, 0
	for served < 1000 {
		start := time.Now()
		b, err := f.Claim(t.Context(), ClaimRequest{Budget: 200, Lanes: 20, PerLane: 10, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		spent += time.Since(start)
		if claims++; len(b.Claims) == 0 || claims > 100 {
			t.Fatalf("claim %d got %d deliveries, and %d of the healthy endpoints' 1,000 are served", claims, len(b.Claims), served)
		}
		for _, c := range b.Claims {
			if c.LaneID == dead.LaneID {
				beside++
			} else {
				served++
			}
		}
	}
	t.Logf("1,000 healthy deliveries in %d claims of %v together, beside %d of the dead endpoint", claims, spent, beside)
	if spent > time.Second || beside > 100 {
		t.Errorf("took %v of claims beside %d deliveries of the dead endpoint; want at most a second, and a turn in twenty", spent, beside)
	}

	fresh, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Release()
	prepareHot(t, fresh)
	checkPlans(t, "planned while empty, a million rows later", early)
	checkPlans(t, "planned while drained, a million rows later", drained)
	checkPlans(t, "planned while full", fresh)
	f.exec(`UPDATE postrider.delivery SET available_at = available_at + interval '1 s'
		WHERE id = ANY(ARRAY(SELECT id FROM postrider.delivery WHERE claim_token IS NULL ORDER BY id LIMIT 50000))`)
	f.exec(`DISCARD PLANS`)
	bloated, err := f.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer bloated.Release()
	prepareHot(t, bloated)
	checkPlans(t, "planned over dead rows", bloated)
}

// Where the planner expects a row or two of a lane, one index is as cheap as another, a level of the tree more or less: a
// plan made then must not read the wrong one through once a backlog has come.
func TestPlansAreTheSameWhereIndexesDifferInHeight(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec(`ALTER TABLE postrider.delivery SET (autovacuum_enabled = off)`)
	check := func(what string, lanes, rows int) {
		t.Helper()
		f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, ordering_key)
			SELECT n % $1, 1, gen_random_uuid(), now(), 'customer-' || n FROM generate_series(1, $2) n`, lanes, rows)
		conn, err := f.pool.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		prepareHot(t, conn)
		checkPlans(t, "planned over "+what, conn)
		if err := conn.Hijack().Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for n := 20; n <= 440; n += 20 {
		check(fmt.Sprintf("%d rows that nobody has analyzed", n), 1, 20)
	}
	for n := 40_000; n <= 90_000; n += 10_000 {
		f.exec(`TRUNCATE postrider.delivery`)
		check(fmt.Sprintf("%d lanes that nobody has analyzed", n), n, n)
		f.exec(`ANALYZE postrider.delivery`)
		check(fmt.Sprintf("%d lanes", n), n, 1)
	}
}

var parameter = regexp.MustCompile(`\$(\d+)`)

func prepareHot(t *testing.T, conn *pgxpool.Conn) {
	t.Helper()
	for i, s := range hotStatements {
		if _, err := conn.Exec(t.Context(), fmt.Sprintf("PREPARE hot%d AS %s", i, s.sql), pgx.QueryExecModeSimpleProtocol); err != nil {
			t.Fatalf("prepare %s: %v", s.name, err)
		}
	}
}

// checkPlans explains the prepared statements, with the generic plans that the pool's connections make.
func checkPlans(t *testing.T, when string, conn *pgxpool.Conn) {
	t.Helper()
	for i, s := range hotStatements {
		n := 0
		for _, m := range parameter.FindAllStringSubmatch(s.sql, -1) {
			number, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			n = max(n, number)
		}
		nulls := "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
		if n == 0 {
			nulls = ""
		}
		plan := explain(t, conn, fmt.Sprintf("EXPLAIN (COSTS off) EXECUTE hot%d%s", i, nulls))
		if fault := planFault(plan); fault != "" || !strings.Contains(plan, s.index) {
			t.Errorf("%s, %s: want index scans by %s; %s:\n%s", s.name, when, s.index, fault, plan)
		}
	}
}

func explain(t *testing.T, conn *pgxpool.Conn, sql string) string {
	t.Helper()
	rows, err := conn.Query(context.Background(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.Join(lines, "\n")
}

var (
	indexScan = regexp.MustCompile(`Index (?:Only )?Scan using (\w+) on`)
	// What each index begins with: a condition that lacks it reads the whole index.
	leading = map[string]string{
		"lane_ready": "ready_at", "lane_latest": "lane_id", "endpoint_status_latest": "endpoint_id",
		"lane_cancelled": "lane_id", "lane_open": "lane_id", "lane_left": "endpoint_id", "dead_letter_endpoint": "endpoint_id",
		"delivery_due": "lane_id", "delivery_key": "lane_id", "endpoint_pkey": "endpoint_id",
		"namespace_version_pkey": "namespace", "pause_pkey": "namespace",
	}
)

// planFault names what reads a whole table: a sequential scan, or an index scan without a condition on its first column.
func planFault(plan string) string {
	lines := append(strings.Split(plan, "\n"), "")
	for i, line := range lines {
		if strings.Contains(line, "Seq Scan on") || strings.Contains(line, "Bitmap Heap Scan") {
			return strings.TrimSpace(line)
		}
		m := indexScan.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		first := leading[m[1]]
		switch {
		case first != "":
		case strings.HasPrefix(m[1], "idempotency"):
			first = "key"
		default:
			first = "id"
		}
		if next := lines[i+1]; !strings.Contains(next, "Index Cond") || !strings.Contains(next, "("+first+" ") {
			return "no condition on " + first + " in" + strings.TrimPrefix(strings.TrimSpace(line), "->")
		}
	}
	return ""
}

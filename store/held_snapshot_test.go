package store

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// While an old snapshot is held, no dead version of a row can go. What a claim and a completion read must not grow with
// what was delivered since.
func TestAHeldSnapshotDoesNotSlowTheQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	plain := f.endpoint("plain")
	ordered := f.endpoint("ordered", func(p *EndpointSpec) { p.Ordered = true })
	holder, err := pgx.Connect(t.Context(), f.dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Close(context.Background()) }()
	if _, err := holder.Exec(t.Context(), `BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM postrider.lane`); err != nil {
		t.Fatal(err)
	}
	deliver := func() {
		f.post("", 4, plain)
		f.post(uuid.NewString(), 1, ordered)
		f.post("often", 1, ordered)
		f.wake("", plain)
		f.wake("often", ordered)
		for claims := f.claim(100); len(claims) > 0; claims = f.claim(100) {
			f.complete(Delivered, claims...)
		}
	}
	deliver()
	f.settleDown(plain, ordered)
	before := f.cost(plain, ordered)
	for range 300 {
		deliver()
	}
	f.settleDown(plain, ordered)
	after := f.cost(plain, ordered)
	for name, pages := range after {
		t.Logf("%-13s read %4d pages before 1,800 deliveries, %4d after", name, before[name], pages)
		if pages > before[name]+50 {
			t.Errorf("%s reads %d pages; want at most 50 more than the %d before", name, pages, before[name])
		}
	}
}

// settleDown has a claim move the bounds of its search, once what was delivered is older than what commits late.
func (f *fixture) settleDown(endpoints ...Endpoint) {
	f.t.Helper()
	var last time.Time
	scan := func(into any, sql string, args ...any) {
		if err := f.pool.QueryRow(f.t.Context(), sql, args...).Scan(into); err != nil {
			f.t.Fatal(err)
		}
	}
	scan(&last, `SELECT clock_timestamp()`)
	f.until("a second has passed", func() (passed bool) {
		scan(&passed, `SELECT clock_timestamp() > $1::timestamptz + interval '1 s'`, last)
		return passed
	})
	f.post("", 1, endpoints...)
	f.wake("", endpoints...)
	f.complete(Delivered, f.claim(100)...)
}

// cost says how many pages the statements of a claim and a completion read for one delivery to each endpoint. All of it is
// rolled back, but for the delivery.
func (f *fixture) cost(endpoints ...Endpoint) map[string]int {
	f.t.Helper()
	f.post("often", 1, endpoints...)
	f.wake("often", endpoints...)
	var lanes []int64
	for _, e := range endpoints {
		lanes = append(lanes, e.LaneID)
	}
	conn, err := f.pool.Acquire(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(f.t.Context(), "BEGIN"); err != nil {
		f.t.Fatal(err)
	}
	pages := map[string]int{}
	explained := func(name, sql string, args ...any) {
		f.t.Helper()
		rows, err := conn.Query(f.t.Context(), "EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off) "+sql, args...)
		if err != nil {
			f.t.Fatal(err)
		}
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			f.t.Fatalf("%s: %v", name, err)
		}
		pages[name] = pagesOf(plan)
	}
	token := uuid.New()
	explained("lockReady", lockReady, 100, []int64{}, time.Now().Add(-time.Second))
	explained("lockLanes", lockLanes, lanes)
	explained("promoteKeys", promoteKeys, lanes, []string{"often", "often"})
	explained("touchLanes", touchLanes, lanes, time.Duration(0))
	explained("reap", reap, lanes)
	explained("take", take, lanes, 10, token, time.Minute, []int64{}, []int32{})
	n := len(lanes)
	tokens, versions, signs, looks, gone := make([]uuid.UUID, n), make([]int64, n), make([]string, n), make([]*float64, n), make([]bool, n)
	for i := range lanes {
		tokens[i], versions[i], signs[i] = token, endpoints[i].Version, "answered"
	}
	explained("settleLanes", settleLanes, lanes, tokens, versions, signs, looks, gone)
	ids := make([]int64, n)
	for i, e := range endpoints {
		ids[i] = e.ID
	}
	explained("lockStatuses", lockStatuses, ids)
	explained("noteStatus", noteStatus, ids, make([]bool, n), make([]bool, n), make([]int32, n), make([]*uuid.UUID, n), make([]int32, n), make([]*string, n), make([]*string, n))
	if _, err := conn.Exec(f.t.Context(), "ROLLBACK"); err != nil {
		f.t.Fatal(err)
	}
	f.complete(Delivered, f.claim(100)...)
	return pages
}

var hitPages = regexp.MustCompile(`shared hit=(\d+)`)

// pagesOf reads the count of the topmost node, which includes those below it.
func pagesOf(plan []string) int {
	for _, line := range plan {
		if m := hitPages.FindStringSubmatch(line); m != nil {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				panic(fmt.Sprintf("%s: %v", line, err))
			}
			return n
		}
	}
	return 0
}

// An accept that commits late brings deliveries that became available before the bound of the search. Its touch says so;
// where the touch is lost, the sweep finds them.
func TestALateCommitIsFound(t *testing.T) {
	t.Parallel()
	for _, told := range []bool{true, false} {
		t.Run(fmt.Sprintf("told %v", told), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a")
			f.post("", 1, e)
			f.wake("", e)
			f.complete(Delivered, f.claim(10)...)
			f.settleDown(e)
			f.post("", 1, e)
			f.exec(`UPDATE postrider.delivery SET available_at = now() - interval '1 h'`)
			f.wake("", e)
			if claims := f.claim(10); len(claims) != 0 {
				t.Fatalf("claimed %d; want the search to begin later, or this test shows nothing", len(claims))
			}
			if told {
				if err := f.Touch(t.Context(), []Touched{{LaneID: e.LaneID, Since: time.Now().Add(-2 * time.Hour)}}); err != nil {
					t.Fatal(err)
				}
			} else if _, mended, err := f.SweepLanes(t.Context(), 0, 100); err != nil || mended != 1 {
				t.Fatalf("mended %d, %v; want the lane", mended, err)
			}
			if claims := f.claim(10); len(claims) != 1 {
				t.Errorf("claimed %d, want the late one", len(claims))
			}
		})
	}
}

// Also in a lane that is busy, whose due time tells nothing of it.
func TestALateCommitToABusyLaneIsFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.settleDown(e)
	late := f.post("", 1, e)[0]
	f.exec(`UPDATE postrider.delivery SET available_at = now() - interval '1 h'`)
	f.post("", 3, e)
	f.wake("", e)
	claims := f.claim(2) // and more is due
	if len(claims) != 2 || claims[0].EventID == late || claims[1].EventID == late {
		t.Fatalf("claimed %+v; want the search to begin later, or this test shows nothing", claims)
	}
	if _, mended, err := f.SweepLanes(t.Context(), 0, 100); err != nil || mended != 1 {
		t.Fatalf("mended %d, %v; want the lane", mended, err)
	}
	if claims = f.claim(1); len(claims) != 1 || claims[0].EventID != late {
		t.Errorf("claimed %+v, want the late one, which is due the longest", claims)
	}
}

// The search for ended leases has the same bound: it never comes to lie after what is in flight.
func TestAnEndedLeaseIsFoundHoweverLongItsDeliveryWasDue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 1, e)
	f.wake("", e)
	lost := f.claim(1)
	f.settleDown(e) // claims go on beside it
	f.endLeases()
	if claims := f.claim(10); len(claims) != 1 || claims[0].DeliveryID != lost[0].DeliveryID || claims[0].Attempt != 2 {
		t.Errorf("claimed %+v, want the delivery whose lease has ended", claims)
	}
	f.checkInFlight()
}

// What an accept commits within a quarter of a second after its beginning needs nobody to tell how late it is.
func TestWhatCommitsAMomentLaterNeedsNoHint(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.exec(`UPDATE postrider.lane SET due_at = now(), first_at = now() - interval '1 m'`)
	b, err := f.Claim(t.Context(), whole())
	if err != nil || len(b.Claims) != 0 || b.Lanes != 1 {
		t.Fatalf("got %+v, %v; want a claim that moves the bound", b, err)
	}
	f.post("", 1, e)
	f.exec(`UPDATE postrider.delivery SET available_at = $1`, b.At.Add(-200*time.Millisecond))
	f.wake("", e)
	if claims := f.claim(10); len(claims) != 1 {
		t.Errorf("claimed %d, want the one whose accept began before the last claim", len(claims))
	}
}

// A clock that was an hour ahead and is set back has left bounds in the future.
func TestAClockThatIsSetBackHidesNothing(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 3, e)
	f.wake("", e)
	f.claim(1)
	f.exec(`UPDATE postrider.lane SET first_at = now() + interval '1 h'`)
	if claims := f.claim(10); len(claims) != 2 {
		t.Errorf("claimed %d, want both that are due", len(claims))
	}
}

// A completion that waited long for its lane promotes a key as of when it began, which may be before the bound that a claim
// has set meanwhile.
func TestWhatALateCompletionPromotesIsFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.Ordered = true })
	f.post("k", 2, e)
	f.wake("k", e)
	head := f.claim(10)
	claimer := f.session()
	claimer.lockLane(e)
	late := f.as("late")
	completing := begin(t, func(ctx context.Context) ([]Recorded, error) { return late.Complete(ctx, results(Delivered, head...)) })
	if !f.blocked("late", completing.done) {
		t.Fatal("the completion does not wait for the lane")
	}
	began := ask[time.Time](f, `SELECT clock_timestamp()`)
	f.until("half a second has passed", func() bool {
		return ask[bool](f, `SELECT clock_timestamp() > $1::timestamptz + interval '500 ms'`, began)
	})
	claimer.exec(`UPDATE postrider.lane SET first_at = clock_timestamp() WHERE lane_id = $1`, e.LaneID)
	claimer.exec("COMMIT")
	completing.result()
	if claims := f.claim(10); len(claims) != 1 {
		t.Errorf("claimed %d, want the next of the key", len(claims))
	}
}

// All is searched as long as that is quick. After a slow search the next ones begin at the first lane that was found, and
// for ten times as long.
func TestTheSearchForReadyLanesIsBoundedAfterASlowOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c readyCursor
		at := time.Now()
		all := func() bool { from, _ := c.begin(); return from.InfinityModifier == pgtype.NegativeInfinity }
		from, began := c.begin()
		c.end(from, began, time.Time{}, at)
		if !all() {
			t.Error("bounded after a quick search")
		}
		from, began = c.begin()
		time.Sleep(50 * time.Millisecond)
		c.end(from, began, at.Add(-time.Minute), at)
		if from, _ := c.begin(); !from.Time.Equal(at.Add(-time.Minute)) {
			t.Errorf("the next begins at %v, want the first that was found", from)
		}
		from, began = c.begin()
		c.end(from, began, time.Time{}, at)
		if from, _ := c.begin(); !from.Time.Equal(at.Add(-readyMargin)) {
			t.Errorf("the next begins at %v, want %v before the clock", from, readyMargin)
		}
		time.Sleep(499 * time.Millisecond)
		if all() {
			t.Error("all is searched again too early")
		}
		time.Sleep(time.Millisecond)
		if !all() {
			t.Error("all is not searched again")
		}
	})
}

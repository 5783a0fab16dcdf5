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

// cost says how many pages the statements of a claim and a completion read for one delivery to each endpoint, and those that
// count what waits. All of it is rolled back, but for the delivery.
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
	if _, err := conn.Exec(f.t.Context(), openClaim, int64(claimBarrier), "0"); err != nil {
		f.t.Fatal(err)
	}
	explained("lockReady", lockReady, false, []int64{}, time.Now().Add(-time.Second), 100)
	explained("lockLanes", lockLanes, lanes)
	explained("promoteKeys", promoteKeys, lanes, []string{"often", "often"})
	explained("touchLanes", touchLanes, lanes, time.Duration(0))
	if _, err := conn.Exec(f.t.Context(), `SELECT set_config('postrider.lanes', $1::bigint[]::text, true), set_config('postrider.ended', $1::bigint[]::text, true)`, lanes); err != nil {
		f.t.Fatal(err)
	}
	explained("reap", reap)
	explained("take", take, 10*len(lanes), nil, token, time.Minute, []int64{}, []int32{})
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
	explained("backlogs", backlogs, ids[:1], CountLimit) // of the ordered one, what followed a key once is walked over still
	explained("queueFigures", queueFigures, CountLimit, figureLimit)
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

// Also where the touch had to wait for a connection, for longer than the accept had.
func TestALateCommitIsFoundByATouchThatIsLateToo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.settleDown(e)
	narrow := openWith(t, f.dsn, 1)
	only, err := narrow.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now().Add(-time.Hour)
	f.post("", 1, e)
	f.exec(`UPDATE postrider.delivery SET available_at = now() - interval '1 h'`)
	touched := make(chan error, 1)
	go func() {
		touched <- narrow.Touch(context.WithoutCancel(t.Context()), []Touched{{LaneID: e.LaneID, Since: began}})
	}()
	f.until("it has waited", func() bool { return time.Since(began) > time.Hour+200*time.Millisecond })
	only.Release()
	if err := <-touched; err != nil {
		t.Fatal(err)
	}
	if claims := f.claim(10); len(claims) != 1 {
		t.Errorf("claimed %d, want the late one", len(claims))
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

// What an accept commits within a tenth of a second after its beginning needs nobody to tell how late it is.
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
	f.exec(`UPDATE postrider.delivery SET available_at = $1`, b.At.Add(-80*time.Millisecond))
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

// All is searched as long as that is quick. After a slow search the next ones begin at the first lane that is ready, locked by
// somebody or not, and for a hundred times as long.
func TestTheSearchForReadyLanesIsBoundedAfterASlowOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c readyCursor
		at := time.Now()
		ago := func(d time.Duration) pgtype.Timestamptz { return pgtype.Timestamptz{Time: at.Add(-d), Valid: d != 0} }
		looked := func(took, first, oldest time.Duration) {
			from, _ := c.begin()
			c.searched(from, found{at: at, began: at, ended: at.Add(took), first: ago(first), oldest: ago(oldest)})
		}
		begins := func(why string, want time.Duration) {
			t.Helper()
			if from, overdue := c.begin(); overdue || from.InfinityModifier != pgtype.Finite || !from.Time.Equal(at.Add(-want)) {
				t.Errorf("%s: the next begins %v before the clock, %v; want %v", why, at.Sub(from.Time), overdue, want)
			}
		}
		looked(0, 0, 0)
		if from, overdue := c.begin(); from != searchAll || overdue {
			t.Error("bounded after a quick search")
		}
		looked(50*time.Millisecond, time.Minute, 2*time.Minute)
		begins("a lane was locked", 2*time.Minute)
		looked(6*time.Millisecond, time.Minute, 2*time.Minute)
		begins("searching from that lane took long", time.Minute)
		looked(0, 0, 0)
		begins("nothing was ready", readyMargin)
		time.Sleep(5*time.Second - time.Nanosecond)
		begins("all is searched again too early", readyMargin)
		time.Sleep(time.Nanosecond)
		if from, overdue := c.begin(); from != searchAll || !overdue {
			t.Error("all is not searched again")
		}
		c.searchedAll(50*time.Millisecond, ago(time.Hour))
		begins("a lane committed late", time.Hour)
		time.Sleep(5 * time.Second)
		c.searchedAll(0, ago(0))
		if from, overdue := c.begin(); from != searchAll || overdue {
			t.Error("bounded after a quick search of all")
		}
	})
}

// A bounded search begins where the last one found the first ready lane. One that was held and becomes ready again, whatever
// held it, takes its turn behind those that are: it does not come to lie before that.
func TestALaneWhoseHoldEndsIsFoundByABoundedSearch(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]struct {
		with func(*EndpointSpec)
		ends func(f *fixture, e Endpoint, claimed []Claim)
	}{
		"at its concurrency": {func(p *EndpointSpec) { p.MaxConcurrency = 1 }, func(f *fixture, _ Endpoint, claimed []Claim) { f.complete(Delivered, claimed...) }},
		"paused": {func(p *EndpointSpec) { p.MaxConcurrency = 2 }, func(f *fixture, e Endpoint, _ []Claim) {
			paused := f.apply(e, func(p *EndpointSpec) { p.State = Paused })
			f.exec(`UPDATE postrider.lane SET due_at = now() - interval '1 m'`)
			f.apply(paused, func(p *EndpointSpec) { p.State = Enabled })
		}},
		"its namespace paused": {func(p *EndpointSpec) { p.MaxConcurrency = 2 }, func(f *fixture, _ Endpoint, _ []Claim) {
			f.pause("billing", "")
			f.exec(`UPDATE postrider.lane SET due_at = now() - interval '1 m'`)
			if _, err := f.Resume(f.t.Context(), "billing"); err != nil {
				f.t.Fatal(err)
			}
		}},
		"its circuit open": {func(p *EndpointSpec) { p.MaxConcurrency, p.FailureThreshold = 2, 1 }, func(f *fixture, e Endpoint, claimed []Claim) {
			f.complete(Retry, claimed...)
			f.endCooldown(e)
			probe := f.claim(1)
			f.exec(`UPDATE postrider.lane SET due_at = now() - interval '1 m'`)
			f.complete(Delivered, probe...)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", hold.with)
			f.post("", 5, e)
			f.wake("", e)
			claimed := f.claim(1)
			f.exec(`UPDATE postrider.lane SET due_at = now() - interval '1 m'`)
			hold.ends(f, e, claimed)
			f.ready.mu.Lock()
			f.ready.from, f.ready.next = time.Now().Add(-readyMargin), time.Now().Add(time.Hour)
			f.ready.mu.Unlock()
			b, err := f.Store.Claim(t.Context(), whole())
			if err != nil || len(b.Claims) == 0 {
				t.Errorf("claimed %d, %v; want what waits in the lane", len(b.Claims), err)
			}
		})
	}
}

// What was accepted a moment ago and is about to be touched is no work for the sweep: it would lock every busy lane each time.
func TestTheSweepLeavesWhatIsAboutToBeTouched(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	plain, ordered := f.endpoint("plain"), f.endpoint("ordered", func(p *EndpointSpec) { p.Ordered = true })
	f.post("k", 2, plain, ordered)
	if n := f.mend(); n != 0 {
		t.Errorf("mended %d lanes and keys at once, want none", n)
	}
	f.loseTouches()
	if n := f.mend(); n != 2 {
		t.Errorf("mended %d lanes and keys a second later, want the lane and the key", n)
	}
}

// The search of all that lies before a lane's bound is paced by what it takes, and goes round all lanes all the same.
func TestOverlookedDeliveriesAreSearchedForInTurn(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var all []Endpoint
	for i := range 3 {
		all = append(all, f.endpoint(fmt.Sprint("e", i)))
	}
	f.post("", 1, all...)
	f.exec(`UPDATE postrider.delivery SET available_at = now() - interval '1 h'`)
	f.exec(`UPDATE postrider.lane SET first_at = now(), due_at = now()`) // nothing but the bound hides them
	sweep := func(want int) {
		t.Helper()
		if _, n, err := f.SweepLanes(t.Context(), 0, 1); n != want || err != nil {
			t.Errorf("mended %d, %v; want %d", n, err, want)
		}
	}
	f.overlooked.next = time.Time{}
	sweep(1)
	f.overlooked.next = time.Now().Add(time.Hour) // the search took long
	sweep(0)
	for range 2 {
		f.overlooked.next = time.Time{}
		sweep(1)
	}
	if claims := f.claim(10); len(claims) != 3 {
		t.Errorf("claimed %d, want all three", len(claims))
	}
}

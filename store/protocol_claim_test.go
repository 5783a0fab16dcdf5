package store

import (
	"context"
	"testing"
	"time"
)

// Rule 1, in the claim: a completion that holds the lane promotes the follower of a key while a claim waits for the lane.
// A claim that read the deliveries in the statement that waited would find none and park the lane over the follower.
func TestClaimSeesWhatWasCommittedWhileItWaitedForTheLane(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.Ordered = true })
	f.post("k", 2, e)
	f.wake("k", e)
	head := f.claim(10)
	f.wake("", e) // another touch: the lane is ready, though nothing is due

	slow := f.gated("completer", "UPDATE", "lane")
	completing := begin(t, func(ctx context.Context) ([]Recorded, error) { return slow.Complete(ctx, results(Delivered, head...)) })
	f.blocked("completer", completing.done)
	claimer := f.as("claimer")
	claiming := begin(t, func(ctx context.Context) (Batch, error) { return claimer.Claim(ctx, whole()) })
	if !f.blocked("claimer", claiming.done) {
		t.Error("the claim did not wait for the lane")
	}
	slow.open()
	completing.result()
	if got := claiming.result().Claims; len(got) != 1 {
		t.Errorf("claimed %d deliveries, want the promoted one; a later claim gets %d, lane due at %v", len(got), len(f.claim(10)),
			ask[string](f, `SELECT due_at::text FROM postrider.lane`))
	}
}

// Rule 1, in the touch: a claim has read the deliveries before an accept committed, and has not parked the lane yet when
// the accept's touch comes. A touch that does not wait for the lane finds it awake and leaves it; then it is parked.
func TestTouchWaitsForAClaimThatIsAboutToParkTheLane(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.wake("", e) // ready, though nothing is due

	slow := f.gated("claimer", "UPDATE", "lane")
	claiming := begin(t, func(ctx context.Context) (Batch, error) { return slow.Claim(ctx, whole()) })
	f.blocked("claimer", claiming.done)
	f.post("", 1, e)
	toucher := f.as("toucher")
	touching := begin(t, func(ctx context.Context) (int, error) { return 0, toucher.Touch(ctx, []Touched{{LaneID: e.LaneID}}) })
	f.blocked("toucher", touching.done)
	slow.open()
	if got := claiming.result().Claims; len(got) != 0 {
		t.Fatalf("the claim got %d deliveries that were accepted after it had read", len(got))
	}
	touching.result()
	if got := f.claim(10); len(got) != 1 {
		t.Errorf("claimed %d deliveries, want 1: the lane was parked over it", len(got))
	}
}

// A batch is bounded by lanes times quantum. An outer limit would leave lanes that got less than they might looking as if
// they were empty, and park them.
func TestABudgetSmallerThanWhatIsDueStrandsNoLane(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var all []Endpoint
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		all = append(all, f.endpoint(name))
	}
	f.post("", 10, all...)
	f.wake("", all...)
	claimed, rounds := 0, 0
	for ; rounds < 100; rounds++ {
		b, err := f.Claim(t.Context(), ClaimRequest{Budget: 7, Lanes: 5, PerLane: 10, Lease: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Claims) > 7 {
			t.Fatalf("claimed %d deliveries, budget 7", len(b.Claims))
		}
		claimed += len(b.Claims)
		if b.Lanes == 0 {
			break
		}
	}
	if claimed != 50 {
		t.Errorf("claimed %d of 50 deliveries in %d rounds: the others are stranded", claimed, rounds)
	}
}

// Skipped is not empty: where every ready lane is locked, the claim waits for the one that is ready longest.
func TestClaimWaitsForTheOldestLaneWhenAllAreLocked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	older, newer := f.endpoint("older"), f.endpoint("newer")
	f.post("", 1, older, newer)
	f.wake("", older)
	f.wake("", newer)
	one, two := f.session(), f.session()
	one.lockLane(older)
	two.lockLane(newer)
	claimer := f.as("claimer")
	claiming := begin(t, func(ctx context.Context) (Batch, error) { return claimer.Claim(ctx, whole()) })
	if !f.blocked("claimer", claiming.done) {
		t.Error("the claim did not wait, though two lanes are ready")
	}
	one.exec("COMMIT")
	if got := claiming.result().Claims; len(got) != 1 || got[0].LaneID != older.LaneID {
		t.Errorf("claimed %+v, want the delivery of the lane that is ready longest", got)
	}
}

// A claim that has to wait although it skips what is locked gives up what it has, and waits holding nothing.
func TestAClaimThatWaitsWhereItShouldSkipStartsAnew(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	claimer := f.as("claimer")
	f.post("", 2, e)
	f.wake("", e)
	one := whole()
	one.Budget = 1
	if _, err := claimer.Claim(t.Context(), one); err != nil { // its statements are prepared
		t.Fatal(err)
	}
	holder := f.session()
	holder.exec("LOCK TABLE postrider.lane IN ACCESS EXCLUSIVE MODE") // the moment in which Postgres waits by itself is not to be met
	claiming := begin(t, func(ctx context.Context) (Batch, error) { return claimer.Claim(ctx, whole()) })
	f.until("it waits for the oldest lane", func() bool {
		return ask[bool](f, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'claimer' AND wait_event_type = 'Lock' AND query LIKE '%oldest%')`)
	})
	holder.exec("COMMIT")
	if got := claiming.result().Claims; len(got) != 1 {
		t.Errorf("claimed %+v, want the delivery", got)
	}
}

// The lane that the claim waits for is no longer ready once its lock is got. The claim must end then, and not go on to wait
// for another lane while it holds this one: whoever holds that one and wants this would deadlock with it.
func TestClaimHoldsNoLaneWhileItWaitsForAnother(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	older, newer := f.endpoint("older"), f.endpoint("newer")
	f.post("", 1, older, newer)
	f.wake("", older)
	f.wake("", newer)
	one, two := f.session(), f.session()
	one.lockLane(older)
	two.lockLane(newer)
	claimer := f.as("claimer")
	claiming := begin(t, func(ctx context.Context) (Batch, error) { return claimer.Claim(ctx, whole()) })
	f.blocked("claimer", claiming.done)
	one.exec(`UPDATE postrider.lane SET due_at = 'infinity' WHERE lane_id = $1`, older.LaneID)
	one.exec("COMMIT")
	two.exec(`SET LOCAL lock_timeout = '5s'`)
	if err := two.try(`SELECT FROM postrider.lane WHERE lane_id = $1 FOR NO KEY UPDATE`, older.LaneID); err != nil {
		t.Errorf("the lane that is no longer ready stays locked while the claim waits for the next: %v", err)
	}
	two.exec("ROLLBACK")
	if got := claiming.result().Claims; len(got) != 0 {
		t.Errorf("claimed %d deliveries of a parked lane", len(got))
	}
	if got := f.claim(10); len(got) != 1 || got[0].LaneID != newer.LaneID {
		t.Errorf("claimed %d deliveries afterwards, want that of the other lane", len(got))
	}
}

// The recount must not be in the statement that waited for the lane: a completion that committed meanwhile would be counted
// as still in flight, and the lane would be short of one for ever.
func TestReapCountsInFlightAfterTheLaneIsLocked(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 2 })
	f.post("", 2, e)
	f.wake("", e)
	held := f.claim(10)
	f.endLeases()

	slow := f.gated("completer", "UPDATE", "lane")
	completing := begin(t, func(ctx context.Context) ([]Recorded, error) { return slow.Complete(ctx, results(Delivered, held[0])) })
	f.blocked("completer", completing.done)
	claimer := f.as("claimer")
	claiming := begin(t, func(ctx context.Context) (Batch, error) { return claimer.Claim(ctx, whole()) })
	f.blocked("claimer", claiming.done)
	slow.open()
	completing.result()
	b := claiming.result()
	if len(b.Claims) != 1 || b.Reaped != 1 || b.Claims[0].Attempt != 2 {
		t.Errorf("got %+v, want the one delivery whose lease had ended, at its second attempt", b)
	}
	f.checkInFlight()
}

// A reap passes over the row of a result that is being recorded, whose completion waits for the lane that the reap holds.
func TestReapNeitherWaitsForNorStealsFromACompletion(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 2 })
	f.post("", 2, e)
	f.wake("", e)
	held := f.claim(10)
	f.endLeases()

	slow := f.gated("completer", "INSERT", "attempt") // its row is locked, no lane is
	completing := begin(t, func(ctx context.Context) ([]Recorded, error) { return slow.Complete(ctx, results(Delivered, held[0])) })
	f.blocked("completer", completing.done)
	claimer := f.as("claimer")
	claiming := begin(t, func(ctx context.Context) (Batch, error) { return claimer.Claim(ctx, whole()) })
	if f.blocked("claimer", claiming.done) {
		t.Error("the claim waits for a claimed delivery while it holds the lane")
	}
	if b := claiming.result(); len(b.Claims) != 1 || b.Reaped != 1 || b.Claims[0].DeliveryID == held[0].DeliveryID {
		t.Errorf("got %+v, want the other delivery alone", b)
	}
	f.checkInFlight()
	slow.open()
	if r := completing.result(); r[0].Fenced {
		t.Error("a result that came first was fenced")
	}
	f.checkInFlight()
	if n := f.waiting(); n != 1 {
		t.Errorf("%d deliveries left, want 1", n)
	}
}

// A dispatcher that was killed while it used up an endpoint's whole concurrency blocks nothing once its leases end.
func TestALostDispatcherFreesItsConcurrency(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 3 })
	f.post("", 5, e)
	f.wake("", e)
	lost := f.claim(10)
	if len(lost) != 3 {
		t.Fatalf("claimed %d deliveries, want 3 at once", len(lost))
	}
	f.checkInFlight()
	if got := f.claim(10); len(got) != 0 {
		t.Fatalf("claimed %d deliveries over the limit", len(got))
	}
	f.endLeases()
	b, err := f.Claim(t.Context(), whole())
	if err != nil {
		t.Fatal(err)
	}
	if b.Reaped != 3 || len(b.Claims) != 3 {
		t.Fatalf("reaped %d and claimed %d, want 3 and 3", b.Reaped, len(b.Claims))
	}
	f.checkInFlight()
	for i, r := range f.record(Delivered, lost...) {
		if !r.Fenced {
			t.Errorf("late result %d was not fenced", i)
		}
	}
	f.checkInFlight()
	f.complete(Delivered, b.Claims...)
	f.complete(Delivered, f.claim(10)...)
	f.checkInFlight()
	if n := f.waiting(); n != 0 {
		t.Errorf("%d deliveries left", n)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.attempt`); n != 5 {
		t.Errorf("%d attempts recorded, want 5: the fenced results change nothing", n)
	}
}

// A lane with an ended lease waits for the next claim where there is other work, and for no more than that.
func TestAnEndedLeaseIsFreedByTheNextClaimAtTheLatest(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	lost, other := f.in("billing", "lost"), f.in("billing", "other")
	f.due(3, lost)
	f.claimFor(2, time.Microsecond)
	f.due(1, other)
	first, err := f.Claim(t.Context(), whole())
	if err != nil || first.Reaped != 0 || len(first.Claims) != 1 || first.Claims[0].LaneID != other.LaneID || !first.More {
		t.Errorf("got %+v, %v; want the delivery of the other lane, and that there is more", first, err)
	}
	second, err := f.Claim(t.Context(), whole())
	if err != nil || second.Reaped != 2 || len(second.Claims) != 3 {
		t.Errorf("got %+v, %v; want 2 leases freed and all 3 deliveries", second, err)
	}
	f.complete(Delivered, second.Claims...)
	f.due(1, other)
	third, err := f.Claim(t.Context(), whole())
	if err != nil || third.Reaped != 0 || len(third.Claims) != 1 {
		t.Errorf("got %+v, %v; want the delivery and nothing freed", third, err)
	}
}

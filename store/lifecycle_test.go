package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

func TestEndpointSurvivesTheRoundTrip(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	want := f.endpoint("ledger", func(p *EndpointSpec) {
		p.Rate = &Rate{Requests: 5, Per: time.Second, Burst: 3}
		p.Schedule = []time.Duration{time.Second, 5 * time.Minute, 2 * time.Hour}
		p.Headers = []byte("sealed headers")
		p.Ordered = true
		p.EventTypes = []string{"invoice.*", "refund.created"}
	})
	got, err := f.Endpoint(t.Context(), "billing", "ledger")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("read back differs from applied (-want +got):\n%s", d)
	}
	if got.Spec.Rate == nil || *got.Spec.Rate != (Rate{Requests: 5, Per: time.Second, Burst: 3}) || len(got.Spec.Schedule) != 3 || got.Spec.Schedule[1] != 5*time.Minute {
		t.Errorf("got %+v", got.Spec)
	}
	if _, err := f.Endpoint(t.Context(), "billing", "other"); !errors.Is(err, ErrNotFound) {
		t.Errorf("an endpoint that is not there: got %v, want ErrNotFound", err)
	}
}

func TestADeliveryFromAcceptToDeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.endpoint("a"), f.endpoint("b")
	ids := f.post("", 3, a, b)
	if got := f.claim(10); len(got) != 0 {
		t.Fatalf("claimed %d deliveries before the lanes were woken", len(got))
	}
	f.wake("", a, b)
	claims := f.claim(10)
	if len(claims) != 6 {
		t.Fatalf("claimed %d deliveries, want 6", len(claims))
	}
	if c := claims[0]; c.Attempt != 1 || c.EventType != "invoice.paid" || c.ContentType != "application/json" || len(c.Body) == 0 || c.BodyLost {
		t.Errorf("got %+v", c)
	}
	f.complete(Delivered, claims[:3]...)
	f.complete(Dead, claims[3])
	f.complete(Retry, claims[4])
	f.complete(Released, claims[5])
	again := f.claim(10)
	if len(again) != 2 {
		t.Fatalf("claimed %d deliveries again, want the retried and the released one", len(again))
	}
	for _, c := range again {
		want := 1
		if c.DeliveryID == claims[4].DeliveryID {
			want = 2
		}
		if c.Attempt != want {
			t.Errorf("delivery %d: attempt %d, want %d", c.DeliveryID, c.Attempt, want)
		}
	}
	f.complete(Delivered, again...)
	if n := ask[int](f, `SELECT count(*) FROM postrider.delivery`); n != 0 {
		t.Errorf("%d deliveries left", n)
	}
	if n := ask[int](f, `SELECT sum(inflight) FROM postrider.lane`); n != 0 {
		t.Errorf("%d in flight left", n)
	}

	detail, err := f.Event(t.Context(), "billing", "ns-1", claims[3].EventID)
	if err != nil {
		t.Fatal(err)
	}
	states := map[DeliveryState]int{}
	for _, d := range detail.Deliveries {
		states[d.State]++
		if d.State == StateDead && (d.Reason != "ServerError" || len(d.Attempts) != 1 || d.Attempts[0].Status != 500) {
			t.Errorf("dead delivery: %+v", d)
		}
	}
	if states[StateDead] != 1 || len(detail.Deliveries) != 2 {
		t.Errorf("got %+v", detail.Deliveries)
	}
	for _, tenant := range [][2]string{{"billing", "ns-2"}, {"other", "ns-1"}} {
		if _, err := f.Event(t.Context(), tenant[0], tenant[1], ids[0]); !errors.Is(err, ErrNotFound) {
			t.Errorf("tenant %v: got %v, want ErrNotFound", tenant, err)
		}
	}
	if _, err := f.Event(t.Context(), "billing", "ns-1", uuid.New()); !errors.Is(err, ErrNotFound) {
		t.Errorf("unknown event: got %v, want ErrNotFound", err)
	}

	acts, _, err := f.Activities(t.Context(), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if len(acts) != 2 {
		t.Fatalf("got %d activities", len(acts))
	}
	backlogs, err := f.Backlogs(t.Context(), []int64{a.ID, b.ID})
	if err != nil {
		t.Fatal(err)
	}
	if dead := backlogs[0].DeadLetters + backlogs[1].DeadLetters; dead != 1 {
		t.Errorf("%d dead letters counted, want 1", dead)
	}
	figures, err := f.QueueFigures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if figures.DeadLetters != 1 || figures.Claimable != 0 || figures.InFlight != 0 || figures.DaysAhead < 3 {
		t.Errorf("got %+v", figures)
	}
}

func TestChoresRunOnAnEmptyAndAFullQueue(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 5, e)
	f.loseTouches()
	next, mended, err := f.SweepLanes(t.Context(), 0, 100)
	if err != nil || next != 0 || mended != 1 {
		t.Fatalf("sweep: next %d, mended %d, %v; want the one stranded lane", next, mended, err)
	}
	if _, err := f.TombstoneEndpoint(t.Context(), "billing", "a", "uid-a"); err != nil {
		t.Fatal(err)
	}
	if n, err := f.BuryCancelled(t.Context(), 3); n != 3 || err != nil {
		t.Fatalf("buried %d, %v; want 3", n, err)
	}
	if n, err := f.BuryCancelled(t.Context(), 3); n != 2 || err != nil {
		t.Fatalf("buried %d, %v; want 2", n, err)
	}
	if n, err := f.BuryCancelled(t.Context(), 3); n != 0 || err != nil {
		t.Fatalf("buried %d, %v; want 0", n, err)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.pinned_event`); n != 5 {
		t.Errorf("%d bodies pinned, want 5", n)
	}
	for name, chore := range map[string]func() (int, error){
		"make days":   func() (int, error) { return f.MakeDays(t.Context()) },
		"drop days":   func() (int, error) { return f.DropDays(t.Context(), 72*time.Hour, 72*time.Hour) },
		"expire":      func() (int, error) { return f.ExpireBacklogs(t.Context(), 10) },
		"dead":        func() (int, error) { return f.PurgeDeadLetters(t.Context(), time.Hour, 10) },
		"idempotency": func() (int, error) { return f.PurgeIdempotency(t.Context(), 10) },
		"pinned":      func() (int, error) { return f.PurgePinned(t.Context(), 10) },
		"endpoints":   func() (int, error) { return f.PurgeEndpoints(t.Context(), time.Hour, 10) },
	} {
		if n, err := chore(); n != 0 || err != nil {
			t.Errorf("%s: %d, %v; want nothing to do", name, n, err)
		}
	}
}

// D8, as far as the queue goes: a delivery that is replayed twice while its retry is pending is three rows, each with its
// own attempts, and the retry comes when it was to come.
func TestReplaysStandBesideTheirDeliveryAndEachOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	id := f.post("", 1, e)[0]
	f.wake("", e)
	retried := results(Retry, f.claim(10)...)
	retried[0].Delay = time.Hour
	if _, err := f.Complete(t.Context(), retried); err != nil {
		t.Fatal(err)
	}
	due := `SELECT available_at FROM postrider.delivery WHERE replay_no = 0`
	before := ask[time.Time](f, due)
	f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, replay_no)
		SELECT $1, $2, $3, now(), n FROM generate_series(1, 2) n`, e.LaneID, e.ID, id)
	f.wake("", e)
	replays := f.claim(10)
	if len(replays) != 2 || replays[0].ReplayNo+replays[1].ReplayNo != 3 || replays[0].Attempt != 1 || replays[1].Attempt != 1 {
		t.Fatalf("claimed %+v, want the first attempts of the two replays", replays)
	}
	f.complete(Delivered, replays[0])
	f.complete(Retry, replays[1])
	f.complete(Dead, f.claim(10)...)
	if after := ask[time.Time](f, due); !after.Equal(before) {
		t.Errorf("the retry is due at %v, and was at %v", after, before)
	}
	f.exec(`UPDATE postrider.delivery SET available_at = now()`)
	f.wake("", e)
	last := f.claim(10)
	if len(last) != 1 || last[0].ReplayNo != 0 || last[0].Attempt != 2 {
		t.Fatalf("claimed %+v, want the second attempt of the delivery itself", last)
	}
	f.complete(Delivered, last...)
	detail, err := f.Event(t.Context(), "billing", "ns-1", id)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int]DeliveryDetail{}
	for _, d := range detail.Deliveries {
		got[d.ReplayNo] = d
	}
	for replay, want := range map[int]struct {
		state    DeliveryState
		attempts int
	}{0: {StateDelivered, 2}, replays[0].ReplayNo: {StateDelivered, 1}, replays[1].ReplayNo: {StateDead, 2}} {
		d := got[replay]
		if d.State != want.state || len(d.Attempts) != want.attempts {
			t.Errorf("replay %d: got %s after %d attempts, want %s after %d", replay, d.State, len(d.Attempts), want.state, want.attempts)
		}
		for i, a := range d.Attempts {
			if a.Number != i+1 {
				t.Errorf("replay %d: attempt %d has number %d", replay, i+1, a.Number)
			}
		}
	}
}

// What was cancelled counts until it is dead or recorded, beside what the endpoint got since it was enabled again.
func TestACancelledLaneIsCountedBesideItsSuccessor(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 3, e)
	f.wake("", e)
	claims := f.claim(1)
	e = f.apply(e, func(p *EndpointSpec) { p.State = Disabled })
	e = f.apply(e, func(p *EndpointSpec) { p.State = Enabled })
	f.post("", 2, e)
	f.wake("", e)
	check := func(when string, pending, inFlight int) {
		t.Helper()
		b, err := f.Backlogs(t.Context(), []int64{e.ID})
		if err != nil {
			t.Fatal(err)
		}
		q, err := f.QueueFigures(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if b[0].Pending != pending || q.InFlight != inFlight || q.Claimable != 2 {
			t.Errorf("%s: %d pending, %d in flight, %d claimable; want %d, %d, 2", when, b[0].Pending, q.InFlight, q.Claimable, pending, inFlight)
		}
	}
	check("cancelled", 5, 1)
	if _, err := f.BuryCancelled(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	check("buried", 3, 1)
	f.complete(Delivered, claims...)
	check("recorded", 2, 0)
}

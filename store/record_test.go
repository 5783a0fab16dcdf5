package store

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
)

// A value that the database refuses fails alone, wherever it sits in its batch.
func TestOneBadResultFailsAlone(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Result){
		"NUL in the reason":       func(r *Result) { r.Verdict, r.Reason = Retry, "a\x00b" },
		"not UTF-8 in the reason": func(r *Result) { r.Verdict, r.Reason = Dead, "a\xffb" },
		"NUL in the message":      func(r *Result) { r.Verdict, r.Reason, r.Message = Retry, "Timeout", "\x00" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			a, b := f.endpoint("a"), f.endpoint("b")
			f.post("", 10, a, b)
			f.wake("", a, b)
			batch := results(Delivered, f.claim(100)...)
			bad := map[int]bool{0: true, 7: true, 8: true, 19: true}
			for i := range bad {
				spoil(&batch[i])
			}
			recorded, err := f.Complete(t.Context(), batch)
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range recorded {
				if (r.Err != nil) != bad[i] || r.Fenced {
					t.Errorf("result %d: got %+v, want an error: %v", i, r, bad[i])
				}
				if r.Err != nil && strings.Contains(r.Err.Error(), "\x00") {
					t.Errorf("result %d: the error repeats the bad value: %q", i, r.Err)
				}
			}
			f.checkInFlight()
			if n := f.waiting(); n != len(bad) {
				t.Errorf("%d deliveries left, want the %d bad ones", n, len(bad))
			}
			f.endLeases()
			if got := f.claim(100); len(got) != len(bad) {
				t.Errorf("claimed %d deliveries after their leases, want %d", len(got), len(bad))
			}
		})
	}
}

// Without the day's partition nothing can be recorded. That is no fault of a row: the batch fails as one, and can be repeated.
func TestAMissingPartitionIsNoFaultOfARow(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 3, e)
	f.wake("", e)
	claims := f.claim(10)
	partition := ask[string](f, `SELECT 'postrider.attempt_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')`)
	f.exec(`ALTER TABLE postrider.attempt DETACH PARTITION ` + partition)
	if recorded, err := f.Complete(t.Context(), results(Delivered, claims...)); err == nil {
		t.Fatalf("got %+v, want the whole batch to fail", recorded)
	}
	f.checkInFlight()
	f.exec(`DROP TABLE ` + partition)
	if n, err := f.MakeDays(t.Context()); n != 1 || err != nil {
		t.Fatalf("made %d, %v; want today's", n, err)
	}
	f.complete(Delivered, claims...)
	f.checkInFlight()
}

func TestWhatIsRecordedOfAnAttempt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	id := f.post("", 1, e)[0]
	f.wake("", e)
	steps := []Result{
		{Verdict: Retry, Reason: "ServerError", Status: 503, Duration: 1500 * time.Microsecond, Response: []byte("busy"), Message: "answered 503"},
		{Verdict: Retry, Reason: "ConnectionRefused", Duration: time.Second},
		{Verdict: Retry, Reason: "KeyMissing", Unsent: true},
		{Verdict: Released},
		{Verdict: Dead, Reason: "ServerError", DeadReason: "AttemptsExhausted", Status: 500, Failing: true},
	}
	for i, r := range steps {
		claims := f.claim(10)
		if len(claims) != 1 {
			t.Fatalf("step %d: claimed %d deliveries", i, len(claims))
		}
		r.Claim, r.Version = claims[0], claims[0].Version
		if recorded, err := f.Complete(t.Context(), []Result{r}); err != nil || recorded[0].Fenced || recorded[0].Ready != (i < 4) {
			t.Fatalf("step %d: %+v, %v", i, recorded, err)
		}
	}
	got, err := f.Event(t.Context(), "billing", "ns-1", id)
	if err != nil {
		t.Fatal(err)
	}
	d := got.Deliveries[0]
	var seen []Attempt
	for _, a := range d.Attempts {
		if time.Since(a.At) > patience || a.At.After(time.Now().Add(time.Second)) {
			t.Errorf("attempt %d at %v", a.Number, a.At)
		}
		a.At = time.Time{}
		seen = append(seen, a)
	}
	want := []Attempt{
		{Number: 1, Outcome: Retry, Status: 503, Reason: "ServerError", Duration: time.Millisecond, Response: "busy"},
		{Number: 2, Outcome: Retry, Reason: "ConnectionRefused", Duration: time.Second},
		{Number: 3, Outcome: Dead, Status: 500, Reason: "ServerError"},
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if d.State != StateDead || d.Reason != "AttemptsExhausted" || !d.NextAttemptAt.IsZero() || d.Endpoint != "a" {
		t.Errorf("got %+v", d)
	}
	if n := ask[int](f, `SELECT attempts FROM postrider.dead_letter WHERE status = 500`); n != 3 {
		t.Errorf("the dead letter counts %d attempts, want 3", n)
	}
	if n := ask[int](f, `SELECT count(*) FROM postrider.pinned_event WHERE id = $1`, id); n != 1 {
		t.Error("the body of a dead letter is not pinned")
	}
}

// A busy endpoint's status is written at the first success of each step, and at any success after a failure.
func TestOfSuccessesInARowOneIsWrittenDown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	busy, other := f.endpoint("busy"), f.endpoint("other")
	f.post("", 12, busy, other)
	f.wake("", busy, other)
	claims := map[int64][]Claim{}
	for _, c := range f.claim(100) {
		claims[c.EndpointID] = append(claims[c.EndpointID], c)
	}
	// written records a verdict for one claim of each of some endpoints, and says of which the row was written.
	written := func(v Verdict, endpoints ...Endpoint) (is [2]bool) {
		t.Helper()
		const rows = `SELECT array_agg(ctid::text ORDER BY endpoint_id) FROM postrider.endpoint_status`
		var batch []Claim
		for _, e := range endpoints {
			batch = append(batch, claims[e.ID][0])
			claims[e.ID] = claims[e.ID][1:]
		}
		before := ask[[]string](f, rows)
		f.complete(v, batch...)
		for i, row := range ask[[]string](f, rows) {
			is[i] = row != before[i]
		}
		return is
	}
	check := func(when string, got, want [2]bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: written %v, want %v", when, got, want)
		}
	}
	stale := func() {
		f.exec(`UPDATE postrider.endpoint_status SET last_success_at = now() - $1::interval WHERE endpoint_id = $2`, SuccessStep, busy.ID)
	}
	fresh := func() { // whatever time this machine took
		f.exec(`UPDATE postrider.endpoint_status SET last_success_at = now() + 0.9 * $1::interval WHERE last_success_at IS NOT NULL`, SuccessStep)
	}
	check("the first success", written(Delivered, busy), [2]bool{true, false})
	fresh()
	check("the next one, and another endpoint's first", written(Delivered, busy, other), [2]bool{false, true})
	fresh()
	check("the next one of both", written(Delivered, busy, other), [2]bool{false, false})
	check("a failure", written(Retry, busy), [2]bool{true, false})
	check("the success after it", written(Delivered, busy), [2]bool{true, false})
	fresh()
	stale()
	check("a success after a step", written(Delivered, busy, other), [2]bool{true, false})
	f.exec(`UPDATE postrider.endpoint_status SET last_success_at = now() + interval '1 h'`)
	check("a success once the clock was set back", written(Delivered, busy), [2]bool{true, false})
}

// While a failure is being recorded, a success that need not be written down is recorded after it: it must be after all.
func TestASuccessBesideAFailureThatIsBeingRecordedIsWrittenDown(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 3, e)
	f.wake("", e)
	claims := f.claim(3)
	f.complete(Delivered, claims[0])
	f.exec(`UPDATE postrider.endpoint_status SET last_success_at = now() + 0.9 * $1::interval`, SuccessStep)
	failing, later := f.gated("failing", "UPDATE", "lane"), f.as("later")
	first := begin(t, func(ctx context.Context) ([]Recorded, error) { return failing.Complete(ctx, results(Dead, claims[1])) })
	if !f.blocked("failing", first.done) {
		t.Fatal("the failure was recorded through the gate")
	}
	second := begin(t, func(ctx context.Context) ([]Recorded, error) {
		return later.Complete(ctx, results(Delivered, claims[2]))
	})
	if !f.blocked("later", second.done) {
		t.Fatal("the success did not wait for the lane")
	}
	failing.open()
	first.result()
	second.result()
	if n := ask[int](f, `SELECT failures FROM postrider.endpoint_status`); n != 0 {
		t.Errorf("%d consecutive failures after a success that was recorded last, want none", n)
	}
}

func TestTheStatusOfAnEndpoint(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	ids := f.post("", 8, e)
	f.wake("", e)
	claims := f.claim(10)
	if got, _, err := f.Activities(t.Context(), time.Time{}); err != nil || len(got) != 1 || !got[0].LastSuccess.IsZero() || !got[0].LastFailure.At.IsZero() {
		t.Fatalf("got %+v, %v; want an endpoint without attempts", got, err)
	}
	byEvent := map[uuid.UUID]Claim{}
	for _, c := range claims {
		byEvent[c.EventID] = c
	}
	activity := func(batch ...Result) Activity {
		if _, err := f.Complete(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
		all, _, err := f.Activities(t.Context(), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return all[0]
	}
	fail := func(i int) Result {
		r := results(Retry, byEvent[ids[i]])[0]
		r.Delay, r.Message = time.Hour, "answered 500"
		return r
	}
	got := activity(fail(0), fail(1))
	if got.ConsecutiveFailures != 2 || got.LastFailure.EventID != ids[1] || got.LastFailure.Status != 500 || got.LastFailure.Reason != "ServerError" ||
		got.LastFailure.Message != "answered 500" || !got.LastSuccess.IsZero() {
		t.Errorf("after two failures: %+v", got)
	}
	got = activity(fail(2), results(Delivered, byEvent[ids[3]])[0], fail(4))
	if got.ConsecutiveFailures != 1 || got.LastSuccess.IsZero() || got.LastFailure.EventID != ids[4] {
		t.Errorf("after a failure, a success and a failure: %+v", got)
	}
	got = activity(results(Delivered, byEvent[ids[5]])[0])
	if got.ConsecutiveFailures != 0 || got.LastFailure.EventID != ids[4] || got.LastFailure.Message != "answered 500" {
		t.Errorf("a success forgets the last failure: %+v", got)
	}
	before := got
	if got = activity(results(Released, byEvent[ids[6]])[0]); got != before {
		t.Errorf("a release changed it: %+v", got)
	}
}

func TestActivitiesSince(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.endpoint("a"), f.endpoint("b")
	f.post("", 2, a, b)
	f.wake("", a)
	f.complete(Delivered, f.claim(1)...)
	all, mark, err := f.Activities(t.Context(), time.Time{})
	if err != nil || len(all) != 2 {
		t.Fatalf("got %+v, %v; want both", all, err)
	}
	f.wake("", b)
	for _, c := range f.claim(10) {
		if c.EndpointID == b.ID {
			f.complete(Retry, c)
		}
	}
	since, _, err := f.Activities(t.Context(), mark)
	if err != nil || len(since) != 1 || since[0].EndpointID != b.ID || since[0].ConsecutiveFailures == 0 || since[0].Name != "b" || since[0].UID != "uid-b" {
		t.Errorf("got %+v, %v; want the one that moved", since, err)
	}
	if _, err := f.TombstoneEndpoint(t.Context(), "billing", "a", "uid-a"); err != nil {
		t.Fatal(err)
	}
	if all, _, err = f.Activities(t.Context(), time.Time{}); err != nil || len(all) != 1 {
		t.Errorf("got %+v, %v; want the live one alone", all, err)
	}
}

func TestBacklogsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	full, empty, dead := f.endpoint("full"), f.endpoint("empty"), f.endpoint("dead")
	event := f.post("", 1, dead)[0]
	f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, accepted_at)
		SELECT $1, $2, $3, now(), now() - n * interval '1 ms' FROM generate_series(1, $4) n`, full.LaneID, full.ID, event, CountLimit+50)
	f.exec(`INSERT INTO postrider.dead_letter (endpoint_id, event_id, replay_no, reason, attempts, accepted_at)
		SELECT $1, $2, 0, 'Rejected', 1, now() FROM generate_series(1, $3)`, dead.ID, event, CountLimit+50)
	got, err := f.Backlogs(t.Context(), []int64{dead.ID, full.ID, empty.ID, 1 << 40})
	if err != nil {
		t.Fatal(err)
	}
	oldest := map[int64]bool{}
	for i := range got {
		oldest[got[i].EndpointID] = !got[i].OldestPending.IsZero()
		got[i].OldestPending = time.Time{}
	}
	want := []Backlog{
		{EndpointID: full.ID, Pending: CountLimit}, {EndpointID: empty.ID}, {EndpointID: dead.ID, Pending: 1, DeadLetters: CountLimit}, {EndpointID: 1 << 40},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if !oldest[full.ID] || oldest[empty.ID] || !oldest[dead.ID] {
		t.Errorf("oldest pending known: %v", oldest)
	}
}

func TestQueueFigures(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, paused := f.endpoint("a", fragile(1)), f.endpoint("paused", func(p *EndpointSpec) { p.State = Paused })
	broken := f.endpoint("broken", fragile(1))
	f.post("", 4, a, paused)
	f.post("", 3, broken)
	f.wake("", broken)
	f.complete(Retry, f.claim(1)...)
	f.wake("", a, paused)
	f.exec(`UPDATE postrider.delivery SET available_at = now() - interval '1 h' WHERE id = (SELECT min(id) FROM postrider.delivery WHERE lane_id = $1)`, a.LaneID)
	got, err := f.QueueFigures(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if wait := got.At.Sub(got.OldestDue); wait < time.Hour || wait > time.Hour+patience {
		t.Errorf("the oldest has been due for %v, want an hour", wait)
	}
	if got.Claimable != 4 || got.InFlight != 0 || got.OpenCircuits != 1 || got.DeadLetters != 0 || got.DaysAhead != 3 {
		t.Errorf("got %+v", got)
	}
	claims := f.claim(3)
	f.complete(Dead, claims[0])
	if got, err = f.QueueFigures(t.Context()); err != nil || got.Claimable != 1 || got.InFlight != 2 || got.DeadLetters != 1 {
		t.Errorf("got %+v, %v", got, err)
	}
	f.exec(`DROP TABLE ` + ask[string](f, `SELECT 'postrider.attempt_' || to_char((now() AT TIME ZONE 'UTC')::date + 2, 'YYYYMMDD')`))
	if got, err = f.QueueFigures(t.Context()); err != nil || got.DaysAhead != 1 {
		t.Errorf("%d days ahead beside a gap, want 1; %v", got.DaysAhead, err)
	}
}

package store

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

func ordered(p *EndpointSpec) { p.Ordered = true }

// visible counts the rows of a key that a claim may see, claimed ones included.
func (f *fixture) visible(key string) int {
	f.t.Helper()
	return ask[int](f, `SELECT count(*) FROM postrider.delivery WHERE ordering_key = $1 AND available_at < 'infinity'`, key)
}

func TestAKeyKeepsTheOrderOfAcceptance(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", ordered)
	want := slices.Concat(f.post("k", 3, e), f.post("k", 2, e))
	other := f.post("other", 1, e)
	free := f.post("", 2, e)
	f.wake("k", e)
	f.wake("k", e)
	f.wake("other", e)
	verdicts := []Verdict{Delivered, Dead, Released, Retry, Delivered, Retry, Delivered, Delivered, Delivered}
	first := f.claim(10)
	if len(first) != 4 {
		t.Fatalf("claimed %d deliveries, want the head of each key and the two without", len(first))
	}
	var head Claim
	for _, c := range first {
		if c.OrderingKey == "k" {
			head = c
		} else {
			f.complete(Delivered, c)
		}
	}
	n := 0
	for i, v := range verdicts {
		if f.visible("k") != 1 {
			t.Fatalf("step %d: %d visible rows of the key", i, f.visible("k"))
		}
		if got := f.claim(10); len(got) != 0 {
			t.Fatalf("step %d: claimed %d deliveries beside the one of the key", i, len(got))
		}
		if head.EventID != want[n] {
			t.Fatalf("step %d: event %v, want %v", i, head.EventID, want[n])
		}
		if f.complete(v, head); v == Delivered || v == Dead {
			n++
		}
		next := f.claim(10)
		if len(next) == 0 {
			break
		}
		if head = next[0]; len(next) != 1 {
			t.Fatalf("step %d: claimed %d deliveries", i, len(next))
		}
	}
	if n != 5 || f.waiting() != 0 {
		t.Errorf("%d of 5 ended in order, %d left; others were %v %v", n, f.waiting(), other, free)
	}
}

func TestARetryingHeadBlocksItsKeyAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", ordered)
	f.post("stuck", 2, e)
	f.post("free", 2, e)
	f.wake("stuck", e)
	f.wake("free", e)
	for _, c := range f.claim(10) {
		r := results(Delivered, c)
		if c.OrderingKey == "stuck" {
			r = results(Retry, c)
			r[0].Delay = time.Hour
		}
		if _, err := f.Complete(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	got := f.claim(10)
	if len(got) != 1 || got[0].OrderingKey != "free" {
		t.Errorf("claimed %+v, want the next of the free key", got)
	}
	f.wake("stuck", e)
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries past a head that waits for its retry", len(got))
	}
}

// 100,000 followers of a stuck key, and work of other keys on the same lane: claims and completions read none of the
// followers, and as many pages as without them.
func TestFollowersOfAStuckKeyCostAClaimNothing(t *testing.T) {
	t.Parallel()
	f := newLoneFixture(t)
	e := f.endpoint("a", ordered, func(p *EndpointSpec) { p.MaxConcurrency = 1000 })
	event := f.post("", 1)[0]
	work := func() (pages int) {
		f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, ordering_key)
			SELECT $1, $2, $3, now(), 'k' || n FROM generate_series(1, 200) n`, e.LaneID, e.ID, event)
		f.wake("", e)
		claimed := 0
		pages = f.pages(func() {
			for range 20 {
				b, err := f.Claim(t.Context(), ClaimRequest{Budget: 20, Lanes: 1, PerLane: 20, Lease: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				claimed += len(b.Claims)
				f.complete(Delivered, b.Claims...)
			}
		})
		if claimed != 200 {
			t.Errorf("claimed %d deliveries of other keys, want 200", claimed)
		}
		return pages
	}
	work()
	before := work()
	f.backlog(e, huge, true)
	f.exec(`UPDATE postrider.delivery SET available_at = now() + interval '1 h' WHERE available_at < 'infinity'`) // its head is to be retried
	after := work()
	t.Logf("claims and completions of 200 deliveries read %d pages, and %d beside the followers", before, after)
	// The indexes are a level or two higher.
	if after > 2*before {
		t.Errorf("claims and completions read %d pages, beside the followers %d", before, after)
	}
}

func TestFollowersOfALaneThatIsNoLongerOrderedAreFreed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", ordered)
	f.post("k", 3, e)
	f.wake("k", e)
	head := f.claim(10)
	e = f.apply(e, func(p *EndpointSpec) { p.Ordered = false })
	if got := f.claim(10); len(got) != 0 {
		t.Fatalf("claimed %d deliveries before the sweep", len(got))
	}
	if _, n, err := f.SweepLanes(t.Context(), 0, 100); err != nil || n == 0 {
		t.Fatalf("mended %d, %v", n, err)
	}
	got := f.claim(10)
	if len(got) != 2 {
		t.Errorf("claimed %d deliveries, want both followers", len(got))
	}
	f.complete(Delivered, append(head, got...)...)
	if _, n, err := f.SweepLanes(t.Context(), 0, 100); err != nil || n != 0 {
		t.Errorf("mended %d, %v; want nothing left to mend", n, err)
	}
	f.post("k", 2, e)
	f.wake("", e)
	if got := f.claim(10); len(got) != 2 {
		t.Errorf("claimed %d deliveries, want both at once", len(got))
	}
}

// What was visible when ordering began is parked behind the oldest of its key, or behind what is in flight.
func TestALaneThatBecomesOrderedKeepsOneVisibleRowOfAKey(t *testing.T) {
	t.Parallel()
	for _, inFlight := range []int{0, 1, 2} {
		t.Run(fmt.Sprint(inFlight, " in flight"), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a")
			want := f.post("k", 5, e)
			f.post("", 1, e)
			f.wake("", e)
			sent := f.claim(inFlight)
			f.apply(e, ordered)
			if _, n, err := f.SweepLanes(t.Context(), 0, 100); err != nil || n == 0 {
				t.Fatalf("mended %d, %v", n, err)
			}
			if got := f.visible("k"); got != max(1, inFlight) {
				t.Errorf("%d visible rows of the key, want %d", got, max(1, inFlight))
			}
			f.complete(Delivered, sent...)
			for n := inFlight; n < 5; n++ {
				got := f.claim(10)
				got = slices.DeleteFunc(got, func(c Claim) bool {
					if c.OrderingKey == "" {
						f.complete(Delivered, c)
					}
					return c.OrderingKey == ""
				})
				if len(got) != 1 || got[0].EventID != want[n] {
					t.Fatalf("claimed %d deliveries, want event %d of the key alone", len(got), n)
				}
				f.complete(Delivered, got...)
			}
			if _, n, err := f.SweepLanes(t.Context(), 0, 100); err != nil || n != 0 || f.waiting() != 0 {
				t.Errorf("mended %d, %v, %d left", n, err, f.waiting())
			}
		})
	}
}

// The walk over a lane's keys is bounded, and goes on where it stopped, until all keys were seen.
func TestTheSweepWalksAllKeysInBoundedSteps(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", ordered)
	event := f.post("", 1)[0]
	const keys = 2*sweepKeysMost + sweepKeysMost/2
	f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, ordering_key)
		SELECT $1, $2, $3, 'infinity', 'k' || n % $4 FROM generate_series(1, 2 * $4) n`, e.LaneID, e.ID, event, keys)
	f.loseTouches()
	for round := range 3 {
		next, _, err := f.SweepLanes(t.Context(), 0, 100)
		if err != nil || next != 0 {
			t.Fatalf("next %d, %v", next, err)
		}
		want := min(keys, (round+1)*sweepKeysMost)
		if got := ask[int](f, `SELECT count(*) FROM postrider.delivery WHERE available_at < 'infinity'`); got != want {
			t.Errorf("round %d: %d keys have a visible row, want %d", round, got, want)
		}
	}
	if two := ask[int](f, `SELECT count(*) FROM (SELECT FROM postrider.delivery WHERE available_at < 'infinity' GROUP BY ordering_key HAVING count(*) > 1) x`); two != 0 {
		t.Errorf("%d keys have two", two)
	}
	// After the end it begins again.
	f.exec(`UPDATE postrider.delivery SET available_at = 'infinity' WHERE ordering_key = 'k1'`)
	if _, n, err := f.SweepLanes(t.Context(), 0, 100); err != nil || n == 0 || f.visible("k1") != 1 {
		t.Errorf("mended %d, %v; the first key has %d visible rows, want 1", n, err, f.visible("k1"))
	}
}

func TestTheSweepGoesOverLanesInChunks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var all []Endpoint
	for i := range 5 {
		all = append(all, f.endpoint(fmt.Sprint("e", i)))
	}
	f.post("", 1, all...)
	f.loseTouches()
	var after int64
	for i, want := range []int{2, 2, 1} {
		next, n, err := f.SweepLanes(t.Context(), after, 2)
		if err != nil || n != want || (next == 0) != (i == 2) {
			t.Fatalf("chunk %d: next %d, mended %d, %v", i, next, n, err)
		}
		after = next
	}
	if got := f.claim(10); len(got) != 5 {
		t.Errorf("claimed %d deliveries, want 5", len(got))
	}
	// Another replica is at it: this one does nothing.
	other := f.session()
	other.exec(`SELECT pg_advisory_xact_lock($1)`, int64(choreSweep))
	f.post("", 1, all...)
	f.loseTouches()
	if next, n, err := f.SweepLanes(t.Context(), 0, 2); next != 0 || n != 0 || err != nil {
		t.Errorf("next %d, mended %d, %v; want nothing", next, n, err)
	}
}

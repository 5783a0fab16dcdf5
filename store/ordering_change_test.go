package store

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
)

func unordered(p *EndpointSpec) { p.Ordered = false }

// flights follows what is in flight of one key, and demands that what was accepted while the endpoint was ordered goes
// alone, and in the order of its acceptance.
type flights struct {
	f       *fixture
	alone   []uuid.UUID // accepted while ordered, in that order
	flying  []Claim
	arrived []uuid.UUID
}

// claim takes what it gets and judges it.
func (s *flights) claim() (got int) {
	s.f.t.Helper()
	claims := s.f.claim(100)
	s.flying = append(s.flying, claims...)
	for _, c := range claims {
		if i := slices.Index(s.alone, c.EventID); i >= 0 {
			if len(s.flying) > 1 {
				s.f.t.Errorf("event %d of those accepted while ordered is one of %d in flight of its key", i, len(s.flying))
			}
			for _, before := range s.alone[:i] {
				if !slices.Contains(s.arrived, before) {
					s.f.t.Errorf("event %d of those accepted while ordered was sent before an earlier one", i)
				}
			}
		}
	}
	return len(claims)
}

// end gives the first n in flight a verdict.
func (s *flights) end(v Verdict, n int) {
	s.f.t.Helper()
	n = min(n, len(s.flying))
	s.f.complete(v, s.flying[:n]...)
	if v == Delivered || v == Dead {
		for _, c := range s.flying[:n] {
			s.arrived = append(s.arrived, c.EventID)
		}
	}
	s.flying = slices.Delete(s.flying, 0, n)
}

// finish delivers all the rest, and demands that nothing is stuck.
func (s *flights) finish() {
	s.f.t.Helper()
	for s.claim() > 0 || len(s.flying) > 0 {
		s.end(Delivered, len(s.flying))
	}
	if n := s.f.waiting(); n != 0 {
		s.f.t.Errorf("%d deliveries are stuck", n)
	}
	s.f.checkInFlight()
}

func (f *fixture) mend() (mended int) {
	f.t.Helper()
	_, mended, err := f.SweepLanes(f.t.Context(), 0, 100)
	if err != nil {
		f.t.Fatal(err)
	}
	return mended
}

// None → Key with a backlog of one key. What was accepted before may still be in flight together; what comes afterwards
// waits until all of that is through, whenever the sweep comes, and then goes one by one.
func TestWhatIsAcceptedAfterOrderingBeganGoesAlone(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"never", "before the first is posted", "between", "at each step"} {
		for _, v := range []Verdict{Delivered, Dead, Retry, Released} {
			t.Run(fmt.Sprintf("swept %s, the first %s", when, v), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 2 })
				f.queue("k", 6, e)
				s := &flights{f: f}
				if got := s.claim(); got != 2 {
					t.Fatalf("claimed %d deliveries, want 2 without an order", got)
				}
				e = f.apply(e, ordered, func(p *EndpointSpec) { p.MaxConcurrency = 3 })
				if when == "before the first is posted" {
					f.mend()
				}
				s.alone = append(s.alone, f.queue("k", 2, e)...)
				s.claim()
				s.end(v, 2)
				if when == "between" {
					f.mend()
				}
				s.alone = append(s.alone, f.queue("k", 2, e)...)
				for range 4 {
					s.claim()
					if when == "at each step" {
						f.mend()
					}
					s.end(v, 1)
				}
				s.finish()
			})
		}
	}
}

// Key → None with a backlog behind a head that waits for its retry: the followers are released by the sweep, in chunks;
// the head keeps its own delay, and what comes afterwards does not wait for the sweep.
func TestFollowersOfAWaitingHeadAreReleasedWhenOrderingEnds(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", ordered, func(p *EndpointSpec) { p.MaxConcurrency = 1_000_000 })
	head := f.queue("k", 1, e)
	r := results(Retry, f.claim(1)...)
	r[0].Delay = time.Hour
	if _, err := f.Complete(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	const followers = 2*sweepRows + sweepRows/2
	f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, ordering_key)
		SELECT $1, $2, $3, 'infinity', 'k' FROM generate_series(1, $4::int)`, e.LaneID, e.ID, head[0], followers)
	e = f.apply(e, unordered)
	late := f.queue("k", 1, e)
	got := f.claim(20_000)
	if len(got) != 1 || got[0].EventID != late[0] {
		t.Fatalf("claimed %d deliveries, want the new one alone", len(got))
	}
	f.complete(Delivered, got...)
	for i, want := range []int{sweepRows, sweepRows, sweepRows / 2, 0} {
		f.mend()
		got := f.claim(20_000)
		if len(got) != want {
			t.Errorf("sweep %d: claimed %d deliveries, want %d", i, len(got), want)
		}
		for chunk := range slices.Chunk(got, 500) {
			f.complete(Delivered, chunk...)
		}
	}
	if n := f.waiting(); n != 1 {
		t.Errorf("%d deliveries left, want the head", n)
	}
	f.exec(`UPDATE postrider.delivery SET available_at = now()`)
	f.exec(`UPDATE postrider.lane SET due_at = now()`)
	if got := f.claim(10); len(got) != 1 || got[0].Attempt != 2 {
		t.Errorf("claimed %d deliveries, want the head's second attempt", len(got))
	}
}

// To and fro, with a backlog, results of all kinds and sweeps at any moment: what was accepted under an order goes alone
// for as long as that order lasts, and in the end nothing is stuck.
func TestOrderingSwitchedToAndFroWithABacklog(t *testing.T) {
	t.Parallel()
	for seed := range 6 {
		t.Run(fmt.Sprint("variant ", seed), func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", func(p *EndpointSpec) { p.MaxConcurrency = 4 })
			s := &flights{f: f}
			posted := 0
			for round := range 12 + seed%2 {
				if isOrdered := round%2 == 1; isOrdered {
					e = f.apply(e, ordered)
				} else {
					e = f.apply(e, unordered)
					s.alone = nil // the promise ends with the order
				}
				for step := range 4 {
					n := (seed+round+step)%3 + 1
					ids := f.queue("k", n, e)
					if posted += n; e.Spec.Ordered {
						s.alone = append(s.alone, ids...)
					}
					s.claim()
					if (seed+step)%2 == 0 {
						f.mend()
					}
					s.end([]Verdict{Delivered, Retry, Dead, Released, Delivered}[(seed+round+step)%5], 1+step%3)
				}
			}
			f.mend()
			s.finish()
			if len(s.arrived) != posted {
				t.Errorf("%d of %d deliveries came to their end", len(s.arrived), posted)
			}
		})
	}
}

// Two visible rows of a key, or more, are mended to one: to what is in flight, else to the oldest. A key without any gets
// one. A healthy key is left as it is.
func TestTheSweepMendsAKeysVisibleRows(t *testing.T) {
	t.Parallel()
	// A letter for each row of the key, oldest first: f a follower, d due, w waiting for its retry, c claimed.
	for rows, want := range map[string]string{
		"ffff": "dfff",
		"fdff": "fdff", // the oldest is not the head, as after a replay; still, it is one
		"ddff": "dfff",
		"dwff": "dfff",
		"wdff": "wfff",
		"ddd":  "dff",
		"cdf":  "cff",
		"dcf":  "fcf",
		"dccd": "fccf",
		"dfff": "dfff",
		"wfff": "wfff",
		"cfff": "cfff",
	} {
		t.Run(rows, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", ordered)
			f.queue("other", 2, e)
			event := f.post("", 1)[0]
			for _, letter := range rows {
				f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, ordering_key, available_at, claim_token, lease_until)
					SELECT $1, $2, $3, 'k', CASE $4 WHEN 'f' THEN 'infinity' WHEN 'w' THEN now() + interval '1 h' ELSE now() END,
						CASE $4 WHEN 'c' THEN gen_random_uuid() END, CASE $4 WHEN 'c' THEN now() + interval '1 m' END`, e.LaneID, e.ID, event, string(letter))
				if letter == 'c' {
					f.exec(`UPDATE postrider.lane SET inflight = inflight + 1, lease_end = now() + interval '1 m'`)
				}
			}
			f.loseTouches()
			f.mend()
			letters := func() string {
				return ask[string](f, `SELECT string_agg(CASE WHEN available_at = 'infinity' THEN 'f' WHEN claim_token IS NOT NULL THEN 'c'
					WHEN available_at > now() THEN 'w' ELSE 'd' END, '' ORDER BY id) FROM postrider.delivery WHERE ordering_key = 'k'`)
			}
			if got := letters(); got != want {
				t.Errorf("got %s, want %s", got, want)
			}
			if n := f.mend(); n != 0 && want != "fccf" { // two in flight can only be waited for
				t.Errorf("mended %d more in a second sweep", n)
			}
			if n := f.visible("other"); n != 1 {
				t.Errorf("%d visible rows of a key that was well", n)
			}
			heads := f.claim(10)
			mine := slices.DeleteFunc(heads, func(c Claim) bool { return c.OrderingKey != "k" })
			if len(mine) > 1 || len(mine) == 1 != (want[0] == 'd' || want == "fdff") {
				t.Errorf("claimed %d deliveries of %s", len(mine), want)
			}
		})
	}
}

// Accepts that lost their touch are found in one sweep, also among a thousand keys that are well; the work of a sweep is
// shared by the ordered lanes, so that many of them cost no more than a few.
func TestAKeyThatLostItsTouchIsFoundAmongManyKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", ordered)
	for i := range 20 { // no ordered ones
		f.endpoint(fmt.Sprint("other-", i))
	}
	event := f.post("", 1)[0]
	f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, ordering_key)
		SELECT $1, $2, $3, CASE WHEN n <= 1000 THEN now() ELSE 'infinity' END, 'k' || n % 1000 FROM generate_series(1, 2000) n`, e.LaneID, e.ID, event)
	f.post("lost", 2, e)
	f.loseTouches()
	f.mend()
	if n := f.visible("lost"); n != 1 {
		t.Errorf("%d visible rows after a sweep, want 1", n)
	}
	for orderedLanes, want := range map[int]int{0: sweepKeysMost, 1: sweepKeysMost, 40: 500, 500: sweepKeysLeast} {
		if got := keysEach(orderedLanes); got != want {
			t.Errorf("%d ordered lanes: %d keys of each, want %d", orderedLanes, got, want)
		}
	}
}

package store

import (
	"context"
	"fmt"
	"testing"
	"time"
)

// huge is a backlog that nobody could read through unnoticed: of the table alone it fills some 3,000 pages.
const huge = 100_000

// newLoneFixture is a fixture with one connection, whose reading of the queue can be counted.
func newLoneFixture(t testing.TB) *fixture {
	t.Helper()
	f := newFixture(t)
	f.exec(`ALTER TABLE postrider.delivery SET (autovacuum_enabled = off)`) // which would read too
	return &fixture{Store: openWith(t, f.dsn, 1), t: t, dsn: f.dsn}
}

// backlog gives an endpoint n due deliveries of one event, a millisecond apart, or behind one another with the same key.
func (f *fixture) backlog(e Endpoint, n int, oneKey bool) {
	f.t.Helper()
	event := f.post("", 1)[0]
	f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, ordering_key)
		SELECT $1, $2, $3, CASE WHEN $5 AND n > 1 THEN 'infinity' ELSE now() - interval '1 h' + n * interval '1 ms' END, CASE WHEN $5 THEN 'k' END
		FROM generate_series(1, $4::int) n`, e.LaneID, e.ID, event, n, oneKey)
	f.exec(`UPDATE postrider.lane SET due_at = now() - interval '1 h' WHERE lane_id = $1`, e.LaneID)
}

// pages counts how many pages of the queue, its indexes included, a call of a lone fixture reads or writes.
func (f *fixture) pages(call func()) int {
	f.t.Helper()
	count := func() int {
		f.exec(`SELECT pg_stat_force_next_flush()`)
		return ask[int](f, `SELECT sum(pg_stat_get_blocks_fetched(oid)) FROM pg_class
			WHERE relnamespace = 'postrider'::regnamespace AND relname LIKE 'delivery%' AND relkind IN ('r', 'i')`)
	}
	before := count()
	call()
	return count() - before
}

// Whatever is done to an endpoint with a huge backlog is in force at the next claim, and does not look at the backlog.
func TestHoldingOrCancellingAHugeBacklogDoesNotLookAtIt(t *testing.T) {
	t.Parallel()
	f := newLoneFixture(t)
	e, gone := f.endpoint("a"), f.endpoint("b")
	f.backlog(e, huge, false)
	f.backlog(gone, huge, false)
	lane, goneLane := e.LaneID, gone.LaneID
	state := func(s State) func() { return func() { e = f.apply(e, func(p *EndpointSpec) { p.State = s }) } }
	hold := func(reason string) func() { return func() { e.HoldReason = reason; e = f.apply(e) } }
	for _, step := range []struct {
		name string
		do   func()
		held []int64 // lanes that the next claim gets nothing of
	}{
		{"pause by its state", state(Paused), []int64{lane}},
		{"enable again", state(Enabled), nil},
		{"hold for a missing Secret", hold("SecretNotFound"), []int64{lane}},
		{"lift that", hold(""), nil},
		{"pause the namespace", func() { f.pause("billing", "") }, []int64{lane, goneLane}},
		{"resume the namespace", func() { f.resume("billing") }, nil},
		{"pause the installation", func() { f.pause(WholeInstallation, "") }, []int64{lane, goneLane}},
		{"resume the installation", func() { f.resume(WholeInstallation) }, nil},
		{"disable", state(Disabled), []int64{lane}},
		{"enable with a new lane", state(Enabled), []int64{lane}},
		{"delete", func() {
			if ok, err := f.TombstoneEndpoint(t.Context(), gone.Namespace, gone.Name, gone.UID); !ok || err != nil {
				t.Fatalf("%v, %v", ok, err)
			}
		}, []int64{lane, goneLane}},
	} {
		if got := f.pages(step.do); got != 0 {
			t.Errorf("%s: read or wrote %d pages of the queue, want none", step.name, got)
		}
		var claims []Claim
		got := f.pages(func() { claims = f.claim(10) })
		if len(claims) == 0 && len(step.held) < 2 {
			t.Errorf("%s: claimed nothing, though one endpoint is not held", step.name)
		}
		if bound := 40 * len(claims); got > bound {
			t.Errorf("%s: the claim of %d deliveries read %d pages, want at most %d", step.name, len(claims), got, bound)
		}
		for _, c := range claims {
			for _, l := range step.held {
				if c.LaneID == l {
					t.Fatalf("%s: claimed a delivery of lane %d", step.name, l)
				}
			}
		}
		f.complete(Released, claims...)
	}
	if n := f.waiting(); n != 2*huge {
		t.Errorf("%d deliveries, want all %d until the chore comes", n, 2*huge)
	}
}

// burials are the two ways in which the chores work off a backlog, and what makes one of due deliveries theirs.
var burials = map[string]struct {
	prepare func(*fixture, Endpoint)
	bury    func(*Store, context.Context, int) (int, error)
}{
	"cancelled": {
		func(f *fixture, e Endpoint) { f.apply(e, func(p *EndpointSpec) { p.State = Disabled }) },
		(*Store).BuryCancelled,
	},
	"expired": {
		func(f *fixture, e Endpoint) {
			f.exec(`UPDATE postrider.delivery SET accepted_at = now() - interval '2 d' WHERE lane_id = $1`, e.LaneID)
			f.exec(`UPDATE postrider.lane SET open_until = now() + interval '1 h', max_duration = '30 m' WHERE lane_id = $1`, e.LaneID)
			f.exec(`VACUUM postrider.delivery`)
		},
		(*Store).ExpireBacklogs,
	},
}

// The chores work off a huge backlog in transactions of so many rows, and the last of them reads no more than the first,
// though a held snapshot keeps all that the earlier ones have deleted.
func TestAHugeBacklogIsBuriedInBoundedSteps(t *testing.T) {
	t.Parallel()
	for how, b := range burials {
		for _, inOrder := range []bool{false, true} {
			t.Run(fmt.Sprint(how, ", behind one key ", inOrder), func(t *testing.T) {
				t.Parallel()
				f := newLoneFixture(t)
				e := f.endpoint("a", func(p *EndpointSpec) { p.Ordered = inOrder })
				f.backlog(e, huge, inOrder)
				b.prepare(f, e)
				holder := f.session()
				holder.exec(`SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`)
				holder.exec(`SELECT FROM postrider.lane`)
				f.buryAll(b.bury)
			})
		}
	}
}

// buryAll buries a huge backlog, chunk by chunk.
func (f *fixture) buryAll(bury func(*Store, context.Context, int) (int, error)) {
	f.t.Helper()
	const chunk = 500
	first, most, chunks, left := 0, 0, 0, huge
	for ; left > 0; chunks++ {
		n := 0
		read := f.pages(func() {
			var err error
			if n, err = bury(f.Store, f.t.Context(), chunk); err != nil {
				f.t.Fatal(err)
			}
		})
		// The next of a key that was promoted meanwhile waits for the next round.
		if left -= n; n > chunk || n < chunk && left > 1 || n == 0 {
			f.t.Fatalf("chunk %d: buried %d, want %d; %d are left", chunks, n, chunk, left)
		}
		if chunks == 0 {
			first = read
		}
		if n == chunk { // or else the search began again at the front
			most = max(most, read)
		}
	}
	f.t.Logf("%d rows in %d chunks: the first read %d pages of the queue, the worst %d", huge, chunks, first, most)
	if n := ask[int](f, `SELECT max(n) FROM (SELECT count(*) AS n FROM postrider.dead_letter GROUP BY xmin::text) x`); n != chunk {
		f.t.Errorf("%d rows in one transaction, want %d", n, chunk)
	}
	if most > first+100 {
		f.t.Errorf("a chunk read %d pages, the first one %d; want no more for what was buried before", most, first)
	}
}

// The search goes on where it was, and yet misses nothing: what an accept that knew the lane alive commits late lies before.
func TestWhatCommitsLateIsBuriedToo(t *testing.T) {
	t.Parallel()
	for how, b := range burials {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a")
			f.backlog(e, 6, false)
			b.prepare(f, e)
			bury := func(want int) {
				t.Helper()
				if n, err := b.bury(f.Store, t.Context(), 2); n != want || err != nil {
					t.Errorf("buried %d, %v; want %d", n, err, want)
				}
			}
			bury(2)
			bury(2)
			f.exec(`INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at, accepted_at)
				SELECT $1, $2, gen_random_uuid(), now() - interval '1 d', now() - interval '2 d'`, e.LaneID, e.ID)
			bury(2)
			bury(1)
			bury(0)
		})
	}
}

// While a chunk is being buried, the other lanes are accepted for, woken, claimed and completed, and nobody waits.
func TestBuryingABacklogDelaysNoOtherLane(t *testing.T) {
	t.Parallel()
	for how, b := range burials {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e, other := f.endpoint("a"), f.endpoint("b")
			f.backlog(e, 1000, false)
			b.prepare(f, e)
			slow := f.gated("chore", "INSERT", "dead_letter") // all its locks are held by then
			burying := begin(t, func(ctx context.Context) (int, error) { return b.bury(slow.Store, ctx, 500) })
			if !f.blocked("chore", burying.done) {
				t.Fatal("the chore is not in the midst of its chunk")
			}
			s, events := f.as("beside"), f.keyed("", "", "")
			working := begin(t, func(ctx context.Context) (claims []Claim, err error) {
				if _, err = s.Accept(ctx, events, time.Hour); err != nil {
					return nil, err
				}
				if err = s.Touch(ctx, []Touched{{LaneID: other.LaneID}}); err != nil {
					return nil, err
				}
				batch, err := s.Claim(ctx, whole())
				if err != nil {
					return nil, err
				}
				if _, err = s.Complete(ctx, results(Delivered, batch.Claims...)); err != nil {
					return nil, err
				}
				_, err = s.ApplyEndpoint(ctx, other.change(2))
				return batch.Claims, err
			})
			if f.blocked("beside", working.done) {
				t.Error("work of the other lane waits for the chore")
			} else if claims := working.result(); len(claims) != 3 {
				t.Errorf("claimed %d deliveries of the other lane, want 3", len(claims))
			}
			slow.open()
			if n := burying.result(); n != 500 {
				t.Errorf("buried %d, want 500", n)
			}
		})
	}
}

// A namespace that is deleted leaves many lanes with little in each: a chunk is so many rows, of however many lanes.
func TestAChunkIsOfAsManyLanesAsItTakes(t *testing.T) {
	t.Parallel()
	for how, b := range burials {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			for i := range 40 {
				e := f.endpoint(fmt.Sprint("e", i))
				f.backlog(e, 2, false)
				b.prepare(f, e)
			}
			for _, want := range []int{50, 30, 0} {
				if n, err := b.bury(f.Store, t.Context(), 50); n != want || err != nil {
					t.Errorf("buried %d, %v; want %d", n, err, want)
				}
			}
		})
	}
}

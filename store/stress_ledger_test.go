package store

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
)

func newID() uuid.UUID { return uuid.New() }

// ledger is what the clients of a stress saw, in one total order, to be judged afterwards.
type ledger struct {
	mu         sync.Mutex
	seq        int64
	lanes      map[int64]*laneEntry
	owed       map[owedKey]*owed
	claims     map[claimKey]*claimEntry
	keys       map[string]uuid.UUID // idempotency
	violations map[string]int
	tally      map[string]int
}

// owedKey names a delivery before its id is known.
type owedKey struct {
	event    uuid.UUID
	endpoint int64
}

type owed struct {
	lane       int64
	key        string
	start, end int64 // of the accepting call; end 0: its answer was lost
	index      int
	claims     []*claimEntry
}

// laneEntry holds the widest limits that a lane ever had.
type laneEntry struct {
	*stressed
	ordered    bool // all the time
	max, burst int
	rate       float64
	unlimited  bool // at some time
}

type claimEntry struct {
	Claim
	at, until              time.Time // the database's clock
	returned, submitted    int64     // positions in the ledger; submitted 0: never
	returnedAt, endAt      time.Time
	doneAt                 time.Time
	result                 Result
	fenced, unsure, closed bool
}

func newLedger() ledger {
	return ledger{
		lanes: map[int64]*laneEntry{}, owed: map[owedKey]*owed{}, claims: map[claimKey]*claimEntry{}, keys: map[string]uuid.UUID{},
		violations: map[string]int{}, tally: map[string]int{},
	}
}

func (l *ledger) violate(what string) { l.with(func() { l.violations[what]++ }) }
func (l *ledger) count(what string)   { l.add(what, 1) }

func (l *ledger) add(what string, n int) { l.with(func() { l.tally[what] += n }) }

func (l *ledger) with(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seq++
	f()
}

func (l *ledger) now() (seq int64) {
	l.with(func() { seq = l.seq })
	return seq
}

// lane notes the present limits of an endpoint's lane.
func (l *ledger) lane(e *stressed) {
	if e.row.LaneID == 0 {
		return
	}
	l.with(func() {
		x := l.lanes[e.row.LaneID]
		if x == nil {
			x = &laneEntry{stressed: e, ordered: e.row.Spec.Ordered}
			l.lanes[e.row.LaneID] = x
		}
		p := &e.row.Spec
		x.ordered, x.max = x.ordered && p.Ordered, max(x.max, p.MaxConcurrency)
		if p.Rate == nil {
			x.unlimited = true
			return
		}
		x.rate, x.burst = max(x.rate, float64(p.Rate.Requests)/p.Rate.Per.Seconds()), max(x.burst, p.Rate.Burst)
	})
}

func (l *ledger) sick(lane int64) (sick bool) {
	l.with(func() { sick = l.lanes[lane] != nil && l.lanes[lane].stressed.sick.Load() })
	return sick
}

func (l *ledger) accepted(start int64, events []NewEvent, accepted []Acceptance) (touched []Touched) {
	l.with(func() {
		for i, a := range accepted {
			if a.Stale {
				l.tally["stale"]++
				continue
			}
			if a.Err != nil { // its own, such as a key whose holder could not be read
				l.tally["not accepted"]++
				continue
			}
			if key := events[i].IdempotencyKey; key != "" {
				if first, ok := l.keys[key]; ok && first != a.EventID {
					l.violations["two events of one idempotency key"]++
				}
				l.keys[key] = a.EventID
			}
			if a.Original != nil {
				l.tally["repeated"]++
				continue
			}
			for _, t := range events[i].Targets {
				l.tally["accepted"]++
				o := l.delivery(owedKey{a.EventID, t.EndpointID})
				o.lane, o.key, o.start, o.end, o.index = t.LaneID, events[i].OrderingKey, start, l.seq, i
				touched = append(touched, Touched{LaneID: t.LaneID})
				if t.Ordered {
					touched[len(touched)-1].OrderingKey = o.key
				}
			}
		}
	})
	return touched
}

func (l *ledger) delivery(k owedKey) *owed {
	o := l.owed[k]
	if o == nil {
		o = &owed{}
		l.owed[k] = o
	}
	return o
}

func (l *ledger) claimed(b Batch) {
	l.with(func() {
		l.tally["reaped"] += b.Reaped
		for _, c := range b.Claims {
			x := &claimEntry{Claim: c, at: b.At, until: b.At.Add(stressLease), returned: l.seq, returnedAt: time.Now()}
			l.claims[claimKey{c.DeliveryID, c.Token}] = x
			o := l.delivery(owedKey{c.EventID, c.EndpointID})
			o.lane, o.key = c.LaneID, c.OrderingKey
			o.claims = append(o.claims, x)
			if c.BodyLost || string(c.Body) != "{}" {
				l.violations["a claim without its body"]++
			}
		}
	})
}

func (l *ledger) each(batch []Result, f func(i int, c *claimEntry)) {
	l.with(func() {
		for i, r := range batch {
			f(i, l.claims[claimKey{r.Claim.DeliveryID, r.Claim.Token}])
		}
	})
}

func (l *ledger) extended(c Claim, until time.Time) {
	l.with(func() { l.claims[claimKey{c.DeliveryID, c.Token}].until = until })
}

func (l *ledger) submitted(batch []Result) {
	l.each(batch, func(i int, c *claimEntry) { c.submitted, c.endAt, c.result = l.seq, time.Now(), batch[i] })
}

func (l *ledger) unsure(batch []Result) {
	l.each(batch, func(_ int, c *claimEntry) { c.unsure = true })
}

func (l *ledger) completed(batch []Result, recorded []Recorded) {
	l.each(batch, func(i int, c *claimEntry) {
		c.fenced, c.doneAt, c.closed = recorded[i].Fenced, time.Now(), true
		if recorded[i].Err != nil {
			l.violations[recorded[i].Err.Error()]++
		}
	})
}

// counted: the result was recorded, or perhaps.
func (c *claimEntry) counted() bool { return c.closed && (!c.fenced || c.unsure) }

func (c *claimEntry) final() bool {
	return c.counted() && (c.result.Verdict == Delivered || c.result.Verdict == Dead)
}

// over: the client surely no longer held it when another claim was made.
func (c *claimEntry) over(by *claimEntry) bool {
	return c.submitted > 0 && c.submitted < by.returned || !c.until.After(by.at)
}

// judge fails the test for whatever should not have happened.
func (w *stress) judge(left int) {
	l := &w.ledger
	buried := w.buried()
	l.mu.Lock()
	defer l.mu.Unlock()
	if left != 0 {
		l.violations[fmt.Sprintf("%d deliveries never ended", left)]++
	}
	perLane, perKey := map[int64][]*claimEntry{}, map[string][]*owed{}
	attempts := 0
	for k, o := range l.owed {
		attempts += l.judgeDelivery(o, buried[k], w.kill)
		perLane[o.lane] = append(perLane[o.lane], o.claims...)
		if x := l.lanes[o.lane]; x != nil && x.fixed && x.ordered && o.key != "" {
			name := fmt.Sprint(o.lane, "/", o.key)
			perKey[name] = append(perKey[name], o)
		}
	}
	for lane, claims := range perLane {
		if x := l.lanes[lane]; x != nil {
			l.judgeLane(x, claims)
		}
	}
	for _, all := range perKey {
		l.judgeKey(all)
	}
	if got := ask[int](w.fixture, `SELECT count(*) FROM postrider.attempt`); got != attempts && !w.kill {
		l.violations[fmt.Sprintf("%d attempts recorded, want %d", got, attempts)]++
	}
	if n := ask[int](w.fixture, `SELECT count(*) FROM postrider.lane WHERE inflight <> 0 OR lease_end IS NOT NULL`); n != 0 {
		l.violations[fmt.Sprintf("%d lanes count something in flight at the end", n)]++
	}
	for what, n := range map[string]int{"expired": l.tally["expired"], "cancelled": l.tally["cancelled"], "claims": l.tally["claims"], "delivered": l.tally["delivered"]} {
		if n == 0 && l.tally["accepted"] > 5000 {
			l.violations["the run never saw: "+what]++
		}
	}
	w.t.Logf("%v; %d keys, %d lanes, %d circuits open at most, %d snapshots, %d mended", l.tally, len(perKey), len(l.lanes), w.open.Load(), w.samples.Load(), w.mended.Load())
	for _, what := range slices.Sorted(maps.Keys(l.violations)) {
		w.t.Errorf("%d x %s", l.violations[what], what)
	}
}

// buried reads what became a dead letter through a chore.
func (w *stress) buried() map[owedKey]bool {
	rows, err := w.pool.Query(w.t.Context(), `SELECT event_id, endpoint_id FROM postrider.dead_letter WHERE reason IN ('Cancelled', 'Expired')`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	buried := map[owedKey]bool{}
	for rows.Next() {
		var k owedKey
		if err := rows.Scan(&k.event, &k.endpoint); err != nil {
			w.t.Fatal(err)
		}
		if buried[k] {
			w.ledger.violate("buried twice")
		}
		buried[k] = true
	}
	if err := rows.Err(); err != nil {
		w.t.Fatal(err)
	}
	return buried
}

func (l *ledger) judgeDelivery(o *owed, buried, cut bool) (attempts int) {
	finals, sure := 0, 0
	var before *claimEntry
	for _, c := range o.claims {
		l.tally["claims"]++
		if before != nil {
			if !before.over(c) {
				l.violations["claimed within another's valid lease"]++
			}
			want := before.Attempt + 1
			if before.counted() && (before.result.Verdict == Released || before.result.Unsent) {
				want--
			}
			if c.Attempt != want && !cut {
				l.violations["an attempt number is not the next one"]++
			}
		}
		before = c
		switch {
		case c.submitted == 0:
			l.tally["lost"]++
			continue
		case c.fenced && !c.unsure:
			l.tally["fenced"]++
			if c.until.After(c.doneAt) {
				l.violations["fenced within its valid lease"]++
			}
			continue
		}
		l.tally[string(c.result.Verdict)]++
		if c.result.Verdict != Released && !c.result.Unsent {
			attempts++
		}
		if c.final() {
			if finals++; !c.unsure {
				sure++
			}
		}
	}
	switch {
	case sure > 1:
		l.violations["ended twice"]++
	case sure == 1 && buried:
		l.violations["buried although it had ended"]++
	case finals == 0 && !buried && (!cut || o.end > 0 && len(o.claims) == 0):
		l.violations["vanished without an end"]++
	}
	return attempts
}

// judgeLane: never more in flight than allowed, never faster than rate and burst, one probe at a time.
func (l *ledger) judgeLane(x *laneEntry, claims []*claimEntry) {
	type edge struct {
		at time.Time
		by int
	}
	var edges []edge
	slices.SortFunc(claims, func(a, b *claimEntry) int { return cmp.Compare(a.returned, b.returned) })
	var probe *claimEntry
	for _, c := range claims {
		end := c.until
		if c.submitted > 0 && c.endAt.Before(end) {
			end = c.endAt
		}
		if c.returnedAt.Before(end) {
			edges = append(edges, edge{c.returnedAt, 1}, edge{end, -1})
		}
		if c.Probe {
			if probe != nil && probe.Version == c.Version && !probe.over(c) {
				l.violations["two probes at once"]++
			}
			probe = c
			l.tally["probes"]++
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.by, b.by)) })
	n := 0
	for _, e := range edges {
		if n += e.by; n > x.max {
			l.violations["over the concurrency"]++
		}
	}
	if x.unlimited {
		return
	}
	slices.SortFunc(claims, func(a, b *claimEntry) int { return a.at.Compare(b.at) })
	level := 0.0
	for i, c := range claims {
		if i > 0 {
			level = max(0, level-x.rate*c.at.Sub(claims[i-1].at).Seconds())
		}
		if level++; level > float64(x.burst)+0.001 {
			l.violations["over the rate of "+x.name]++
		}
	}
}

// judgeKey: one in flight, and what was answered before another was posted has ended before the other's first claim.
func (l *ledger) judgeKey(all []*owed) {
	var claims, live []*claimEntry
	for _, o := range all {
		claims = append(claims, o.claims...)
	}
	slices.SortFunc(claims, func(a, b *claimEntry) int { return cmp.Compare(a.returned, b.returned) })
	for _, c := range claims {
		live = slices.DeleteFunc(live, func(o *claimEntry) bool { return o.over(c) })
		for _, o := range live {
			if o.DeliveryID != c.DeliveryID || o.returned == c.returned {
				l.violations["two of a key in flight"]++
			}
		}
		live = append(live, c)
	}
	for _, later := range all {
		if later.end == 0 || len(later.claims) == 0 {
			continue
		}
		for _, o := range all {
			if o == later || o.end == 0 || o.end >= later.start && !(o.start == later.start && o.index < later.index) {
				continue
			}
			// A lost answer of a claim or of a burial leaves no trace here: only what was claimed is judged.
			if last := len(o.claims); last > 0 && o.claims[last-1].returned > later.claims[0].returned {
				l.violations["out of the order of acceptance"]++
			}
		}
	}
}

package controllers

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/postrider/postrider/store"
)

// budgets bound how often statuses are written. The zero budgets are those of the design.
type budgets struct {
	tick       time.Duration // between two looks at the store. 0: 1 s
	perSecond  int           // statuses enqueued in a second. 0: 200
	pause      time.Duration // between two writes of one status, so that a row of dead letters is one write. 0: 2 s
	settle     time.Duration // how long a circuit must be half open to be worth a write. 0: 3 s
	moving     time.Duration // the least time between two writes of moving figures. 0: 60 s
	movingRate int           // writes of moving figures in a second, over all endpoints. 0: 20
	retry      time.Duration // after which an endpoint that was enqueued in vain is again. 0: 10 s
}

func (b budgets) filled() budgets {
	return budgets{
		tick:       orDefault(b.tick, time.Second),
		perSecond:  orDefault(b.perSecond, 200),
		pause:      orDefault(b.pause, 2*time.Second),
		settle:     orDefault(b.settle, 3*time.Second),
		moving:     orDefault(b.moving, time.Minute),
		movingRate: orDefault(b.movingRate, 20),
		retry:      orDefault(b.retry, 10*time.Second),
	}
}

// movingInterval is how old moving figures may become: max(60 s, N/20 s).
func (b budgets) movingInterval(endpoints int) time.Duration {
	return max(b.moving, time.Duration(endpoints)*time.Second/time.Duration(b.movingRate))
}

// facts are what the store last told about each endpoint, and what its status shows. The feed fills them, the reconciler
// reads them; neither asks the store for a single endpoint.
type facts struct {
	budgets budgets
	clock   func() time.Time

	loaded    chan struct{} // closed when the store has told for the first time
	loadOnce  sync.Once
	mutex     sync.Mutex
	storeTime time.Time // of the last answer, by the store's clock
	localTime time.Time // of the same, by ours
	pauses    pauses
	endpoints map[int64]*endpointFacts
	ids       map[types.NamespacedName]int64 // of the endpoints that are tracked
	round     []int64                        // tracked ids, in the order in which their backlogs are counted next
}

type endpointFacts struct {
	name     types.NamespacedName // empty: no object was reconciled yet
	activity store.Activity
	backlog  *store.Backlog // nil: not counted yet

	uncounted bool // the backlog may have moved since it was counted
	failing   bool // and perhaps by a dead letter

	shown         *figures // by the status; nil: not reconciled yet
	shownAt       time.Time
	movingDue     time.Time
	changedAt     time.Time // when a material change was first seen that the status does not show; zero: none
	settlingSince time.Time
	enqueuedAt    time.Time // zero: not since the status was last looked at
}

func newFacts(b budgets, clock func() time.Time) *facts {
	return &facts{
		budgets:   b.filled(),
		clock:     clock,
		loaded:    make(chan struct{}),
		endpoints: map[int64]*endpointFacts{},
		ids:       map[types.NamespacedName]int64{},
	}
}

// await waits until the store has told for the first time. False: the context ended before.
func (f *facts) await(ctx context.Context) bool {
	select {
	case <-f.loaded:
		return true
	case <-ctx.Done():
		return false
	}
}

// learn takes in what the store told at a time of its clock.
func (f *facts) learn(activities []store.Activity, at time.Time) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	before := f.storeTime
	f.storeTime, f.localTime = at, f.clock()
	for _, a := range activities {
		e := f.endpoint(a.EndpointID)
		if e.activity == a { // told again by the overlap of two queries
			// Successes that were not written down may have followed until now: it is counted once more after that.
			e.uncounted = e.uncounted || before.Sub(a.LastSuccess) < store.SuccessStep+f.budgets.tick
			continue
		}
		e.uncounted = true
		e.failing = e.failing || e.activity.LastFailure != a.LastFailure || e.activity.Gone != a.Gone
		e.activity = a
	}
	f.loadOnce.Do(func() { close(f.loaded) })
}

func (f *facts) learnPauses(told []store.Pause) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.pauses = pausesOf(told)
}

func (f *facts) learnBacklogs(backlogs []store.Backlog) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, b := range backlogs {
		if e, ok := f.endpoints[b.EndpointID]; ok {
			e.backlog = &b
		}
	}
}

// endpoint returns the facts of an endpoint, made when it is first named. The mutex is held.
func (f *facts) endpoint(id int64) *endpointFacts {
	e, ok := f.endpoints[id]
	if !ok {
		e = &endpointFacts{}
		f.endpoints[id] = e
	}
	return e
}

// track notes that an object has a row. fresh: the row was made just now, so nothing waits for it.
func (f *facts) track(name types.NamespacedName, id int64, fresh bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if before, ok := f.ids[name]; ok {
		if before == id {
			return
		}
		delete(f.endpoints, before)
	}
	e := f.endpoint(id)
	e.name, e.uncounted = name, true
	if fresh {
		e.backlog = &store.Backlog{EndpointID: id}
	}
	f.ids[name] = id
	f.round = append(f.round, id)
}

// forget drops what is known of an object that is gone.
func (f *facts) forget(name types.NamespacedName) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	if id, ok := f.ids[name]; ok {
		delete(f.endpoints, id)
		delete(f.ids, name)
	}
}

// applied foresees what a write of the row does to its lane, until the store tells: it lifts a Gone if the spec changed,
// and makes an open circuit half open.
func (f *facts) applied(id int64, respecified bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	a := &f.endpoint(id).activity
	if respecified {
		a.Gone = false
	}
	a.Probing = false
	if now := f.storeNow(); a.OpenUntil.After(now) {
		a.OpenUntil = now
	}
}

// figures are those of now.
func (f *facts) figures(id int64) figures {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return f.figuresOf(f.endpoint(id))
}

func (f *facts) figuresOf(e *endpointFacts) figures {
	shows := figure(e.activity, e.backlog, f.storeNow())
	shows.Pauses = f.pauses.of(e.name.Namespace)
	return shows
}

// storeNow is the store's clock, carried on by ours. The mutex is held.
func (f *facts) storeNow() time.Time { return f.storeTime.Add(f.clock().Sub(f.localTime)) }

// mayMove reports whether moving figures alone are worth a write now.
func (f *facts) mayMove(id int64) bool {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	e := f.endpoint(id)
	return e.shown != nil && !f.clock().Before(e.movingDue)
}

// show notes what the status of an endpoint shows, after the reconciler looked at it.
func (f *facts) show(id int64, shown figures, written bool) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	e, now := f.endpoint(id), f.clock()
	interval := float64(f.budgets.movingInterval(len(f.ids)))
	switch {
	case written:
		e.shownAt = now
		e.movingDue = now.Add(time.Duration(interval * (0.8 + 0.2*rand.Float64()))) //nolint:gosec // jitter
	case e.shown == nil:
		// After a start all statuses are behind at once.
		e.movingDue = now.Add(time.Duration(interval * rand.Float64())) //nolint:gosec // jitter
	}
	e.shown = &shown
	e.changedAt, e.settlingSince, e.enqueuedAt = time.Time{}, time.Time{}, time.Time{}
}

// due returns the endpoints to enqueue now: those with a material change and those whose moving figures are old enough,
// the oldest first, as many as a tick's share of the budgets. lag is how long the oldest material change has been waiting.
func (f *facts) due() (urgentNames, idleNames []types.NamespacedName, lag time.Duration) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	now := f.clock()
	var urgent, idle []*endpointFacts
	for _, id := range f.ids {
		e := f.endpoints[id]
		if e == nil || e.shown == nil {
			continue
		}
		u := f.urgencyOf(e, now)
		if !e.changedAt.IsZero() {
			lag = max(lag, now.Sub(e.changedAt))
		}
		switch {
		case !e.enqueuedAt.IsZero() && now.Sub(e.enqueuedAt) < f.budgets.retry:
		case u == material && now.Sub(e.shownAt) >= f.budgets.pause:
			urgent = append(urgent, e)
		case u == moving && !now.Before(e.movingDue):
			idle = append(idle, e)
		}
	}
	slices.SortFunc(urgent, func(a, b *endpointFacts) int {
		return a.changedAt.Compare(b.changedAt)
	})
	slices.SortFunc(idle, func(a, b *endpointFacts) int {
		return a.movingDue.Compare(b.movingDue)
	})
	// A quarter more than the average, or jitter would let some fall ever further behind.
	return take(urgent, f.share(f.budgets.perSecond), now), take(idle, f.share(f.budgets.movingRate*5/4), now), lag
}

// share is a tick's part of what may be done in a second.
func (f *facts) share(perSecond int) int {
	return max(1, int(float64(perSecond)*f.budgets.tick.Seconds()))
}

func take(from []*endpointFacts, n int, now time.Time) (names []types.NamespacedName) {
	for _, e := range from[:min(len(from), n)] {
		e.enqueuedAt = now
		names = append(names, e.name)
	}
	return names
}

// urgencyOf compares what is shown with now, and keeps since when it has differed.
func (f *facts) urgencyOf(e *endpointFacts, now time.Time) urgency {
	u := compare(*e.shown, f.figuresOf(e))
	if u != settling {
		e.settlingSince = time.Time{}
	} else if e.settlingSince.IsZero() {
		e.settlingSince = now
	}
	if u == settling && now.Sub(e.settlingSince) >= f.budgets.settle {
		u = material
	}
	if u != material {
		e.changedAt = time.Time{}
	} else if e.changedAt.IsZero() {
		e.changedAt = now
	}
	return u
}

// toCount chooses the endpoints whose backlogs are counted next, at most n: those that may have got a dead letter, those
// with other activity, and of all the others (paused, replayed, purged: their figures move without activity) some more,
// in turns.
func (f *facts) toCount(n, turns int) []int64 {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	var failing, active, ids []int64
	for _, id := range f.ids {
		switch e := f.endpoints[id]; {
		case e == nil || !e.uncounted:
		case e.failing || e.backlog == nil:
			failing = append(failing, id)
		default:
			active = append(active, id)
		}
	}
	// Those that are left out of a busy round must not be the same ones each time.
	rand.Shuffle(len(active), func(i, j int) { active[i], active[j] = active[j], active[i] }) //nolint:gosec // fairness, no secret
	chosen := map[int64]bool{}
	choose := func(id int64) {
		if e := f.endpoints[id]; e != nil && !chosen[id] {
			e.uncounted, e.failing = false, false
			chosen[id] = true
			ids = append(ids, id)
		}
	}
	for _, id := range slices.Concat(failing, active) {
		if len(ids) == n {
			return ids
		}
		choose(id)
	}
	for ; turns > 0 && len(f.round) > 0 && len(ids) < n; turns-- {
		id := f.round[0]
		f.round = f.round[1:]
		if e := f.endpoints[id]; e == nil || f.ids[e.name] != id {
			continue // gone
		}
		f.round = append(f.round, id)
		choose(id)
	}
	return ids
}

// recount marks endpoints whose backlogs could not be counted.
func (f *facts) recount(ids []int64) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	for _, id := range ids {
		if e := f.endpoints[id]; e != nil {
			e.uncounted, e.failing = true, true
		}
	}
}

// tracked counts the endpoints with an object. Activity of others is dropped: their rows are gone, or are read when
// their object is reconciled.
func (f *facts) tracked() int {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	return len(f.ids)
}

package ingest

import (
	"container/list"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/postrider/postrider/store"
)

// load is what some events weigh.
type load struct {
	events int
	bytes  int64 // held in memory for them
	rows   int   // deliveries
}

func (l load) plus(o load) load { return load{l.events + o.events, l.bytes + o.bytes, l.rows + o.rows} }

func (l load) minus(o load) load {
	return load{l.events - o.events, l.bytes - o.bytes, l.rows - o.rows}
}

// fits tells that no part of it is above that of a bound.
func (l load) fits(most load) bool {
	return l.events <= most.events && l.bytes <= most.bytes && l.rows <= most.rows
}

// weight of an event: its texts, and 24 bytes for each target.
func weight(e *store.NewEvent) load {
	const event, target = 512, 24
	bytes := event + len(e.Body) + len(e.Type) + len(e.OrderingKey) + len(e.IdempotencyKey) + target*len(e.Targets)
	return load{events: 1, bytes: int64(bytes), rows: len(e.Targets)}
}

// A parcel is some events of one caller, which are committed in one group, in their order.
type parcel struct {
	events []store.NewEvent
	load   load
	came   time.Time
	wide   bool          // its fan-out is large
	place  *list.Element // in a queue; nil once a committer has it
	done   chan struct{}

	results []store.Acceptance // once done
	err     error
}

// gathering bounds a gatherer.
type gathering struct {
	committers int           // groups committed at once
	overlap    time.Duration // what a commit may take before the next one begins beside it
	group      load          // of a group at most; a single parcel may be larger
	wide       int           // more deliveries than this make a parcel wide
	waiting    load          // of all that wait, rows not counted
	patience   time.Duration // how long a parcel waits at most
}

// gatherer commits the events of concurrent requests together. A group is what came while the group before it was
// committed: a lone event waits for nobody, and the busier it is the larger the groups are. Two at once would each be half
// as large, and cost nearly as much; so the next one begins beside it only where a whole group waits, or where the commit
// takes long: on a slow disk two of them wait for it better than one.
//
// What waits is bounded, and beyond that it is refused at once. Parcels with a large fan-out take a time of their own, so
// they share groups with one another alone, and one committer at most: the others' wait is not for them.
type gatherer struct {
	gathering
	commit  func(context.Context, []*parcel)
	metrics *metrics

	mu         sync.Mutex
	work       *sync.Cond
	narrow     list.List // of *parcel, the oldest first
	wide       list.List
	waiting    load
	narrowBusy int // groups under way
	wideBusy   bool
	closed     bool
}

var (
	errCrowded   = errors.New("too many events wait to be committed")
	errOutwaited = errors.New("no commit was begun in time")
	errStopping  = errors.New("the server is stopping")
)

func newGatherer(bounds gathering, commit func(context.Context, []*parcel), m *metrics) *gatherer {
	g := &gatherer{gathering: bounds, commit: commit, metrics: m}
	g.work = sync.NewCond(&g.mu)
	return g
}

// put has some events committed and returns what became of each. An error stands for all of them; nothing is known to be
// stored then. While the events wait, the end of the context withdraws them; once they are under way, it does not.
func (g *gatherer) put(ctx context.Context, events []store.NewEvent) ([]store.Acceptance, error) {
	p := &parcel{events: events, came: time.Now(), done: make(chan struct{})}
	for i := range events {
		p.load = p.load.plus(weight(&events[i]))
	}
	p.wide = p.load.rows > g.gathering.wide
	if err := g.enter(p); err != nil {
		return nil, err
	}
	patience := time.NewTimer(g.patience)
	defer patience.Stop()
	select {
	case <-p.done:
	case <-patience.C:
		g.withdraw(p, errOutwaited)
	case <-ctx.Done():
		g.withdraw(p, ctx.Err())
	}
	<-p.done // what is under way ends in bounded time
	return p.results, p.err
}

func (g *gatherer) enter(p *parcel) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch total := g.waiting.plus(p.load); {
	case g.closed:
		return errStopping
	case g.waiting.events > 0 && (total.events > g.gathering.waiting.events || total.bytes > g.gathering.waiting.bytes):
		return errCrowded
	}
	queue := g.queue(p)
	p.place = queue.PushBack(p)
	g.count(g.waiting.plus(p.load))
	if queue.Len() == 1 || g.next() != nil { // else somebody waits for its time, or is about to look
		g.work.Signal()
	}
	return nil
}

func (g *gatherer) queue(p *parcel) *list.List {
	if p.wide {
		return &g.wide
	}
	return &g.narrow
}

// withdraw takes a parcel out of its queue, if it is there still.
func (g *gatherer) withdraw(p *parcel, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if p.place != nil {
		g.remove(p)
		p.err = err
		close(p.done)
	}
}

func (g *gatherer) remove(p *parcel) {
	g.queue(p).Remove(p.place)
	p.place = nil
	g.count(g.waiting.minus(p.load))
}

func (g *gatherer) count(waiting load) {
	g.waiting = waiting
	g.metrics.waitingEvents.Set(float64(waiting.events))
	g.metrics.waitingBytes.Set(float64(waiting.bytes))
}

// run commits groups until the gatherer is closed and empty. As many run at once as there are committers.
func (g *gatherer) run(ctx context.Context) {
	for {
		group := g.take()
		if group == nil {
			return
		}
		g.commit(ctx, group)
		g.finish(group)
	}
}

// close refuses what comes from now on. What waits is committed still.
func (g *gatherer) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	g.work.Broadcast()
}

// take waits for something to commit and returns a group of it; nil: there is nothing to come.
func (g *gatherer) take() []*parcel {
	g.mu.Lock()
	defer g.mu.Unlock()
	queue := g.next()
	for ; queue == nil; queue = g.next() {
		if g.closed {
			return nil // whoever is at work goes on
		}
		g.await()
	}
	var group []*parcel
	var sum load
	for p := first(queue); p != nil; p = first(queue) {
		if len(group) > 0 && !sum.plus(p.load).fits(g.group) {
			break
		}
		sum = sum.plus(p.load)
		group = append(group, p)
		g.remove(p)
		g.metrics.waitSeconds.Observe(time.Since(p.came).Seconds())
	}
	if queue == &g.wide {
		g.wideBusy = true
	} else {
		g.narrowBusy++
	}
	if g.narrow.Len()+g.wide.Len() > 0 {
		g.work.Signal() // somebody must look when it is time for the rest
	}
	g.metrics.groupEvents.Observe(float64(sum.events))
	return group
}

// await waits until something comes, a group is done, or the first parcel has waited for as long as a group under way may
// keep it.
func (g *gatherer) await() {
	if p := first(&g.narrow); p != nil {
		left := g.overlap - time.Since(p.came)
		defer time.AfterFunc(left, func() {
			g.mu.Lock() // or it could come between our look and our wait
			defer g.mu.Unlock()
			g.work.Broadcast()
		}).Stop()
	}
	g.work.Wait()
}

// next is the queue whose turn it is: that of the parcel that has waited the longest. But the wide ones have one committer
// at most, and the others have another one only where it is needed.
func (g *gatherer) next() *list.List {
	narrow, wide := first(&g.narrow), first(&g.wide)
	if wide != nil && g.wideBusy {
		wide = nil
	}
	if narrow != nil && g.narrowBusy > 0 && !g.urgent(narrow) {
		narrow = nil
	}
	switch {
	case narrow == nil && wide == nil:
		return nil
	case wide == nil:
		return &g.narrow
	case narrow == nil || wide.came.Before(narrow.came):
		return &g.wide
	}
	return &g.narrow
}

// urgent tells whether the first parcel, and those behind it, need not wait for the group under way.
func (g *gatherer) urgent(p *parcel) bool {
	return g.closed || g.waiting.events >= g.group.events || time.Since(p.came) >= g.overlap
}

// first of a queue; nil: it is empty.
func first(queue *list.List) *parcel {
	if queue.Len() == 0 {
		return nil
	}
	p, _ := queue.Front().Value.(*parcel) // it is nothing else
	return p
}

func (g *gatherer) finish(group []*parcel) {
	g.mu.Lock()
	if group[0].wide {
		g.wideBusy = false
	} else {
		g.narrowBusy--
	}
	g.mu.Unlock()
	for _, p := range group {
		close(p.done)
	}
}

package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/store"
)

// disk plays what commits groups: each takes a time, and is remembered.
type disk struct {
	*gatherer

	t    *testing.T // in the bubble
	took func([]*parcel) time.Duration

	mu     sync.Mutex
	groups [][]string // types of the events
	at     int
	most   int // at once
}

// inBubble runs a gatherer with committers in a bubble of its own time.
func inBubble(t *testing.T, change func(*gathering), took func([]*parcel) time.Duration, use func(*disk)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		bounds := DefaultConfig().gathering()
		if change != nil {
			change(&bounds)
		}
		d := &disk{t: t, took: took}
		d.gatherer = newGatherer(bounds, d.commit, newMetrics(prometheus.NewRegistry()))
		var committers sync.WaitGroup
		for range bounds.committers {
			committers.Go(func() { d.run(t.Context()) })
		}
		use(d)
		d.close()
		committers.Wait()
		if d.gatherer.waiting != (load{}) || d.narrow.Len()+d.gatherer.wide.Len() > 0 {
			t.Errorf("in the end %+v waits", d.gatherer.waiting)
		}
	})
}

func (d *disk) commit(_ context.Context, group []*parcel) {
	var types []string
	for _, p := range group {
		for _, e := range p.events {
			types = append(types, e.Type)
			p.results = append(p.results, store.Acceptance{})
		}
	}
	d.mu.Lock()
	d.groups = append(d.groups, types)
	d.at++
	d.most = max(d.most, d.at)
	d.mu.Unlock()
	time.Sleep(d.took(group))
	d.mu.Lock()
	d.at--
	d.mu.Unlock()
}

// begin puts an event in a goroutine of its own.
func (d *disk) begin(all *sync.WaitGroup) {
	d.t.Helper()
	all.Go(func() {
		if _, err := d.put(d.t.Context(), typed("a")); err != nil {
			d.t.Error(err)
		}
	})
}

// occupy has all committers busy from now on, with an event each.
func (d *disk) occupy(all *sync.WaitGroup) {
	d.t.Helper()
	for range d.committers {
		d.begin(all)
		time.Sleep(d.overlap)
		synctest.Wait()
	}
}

func always(took time.Duration) func([]*parcel) time.Duration {
	return func([]*parcel) time.Duration { return took }
}

func typed(types ...string) []store.NewEvent {
	events := make([]store.NewEvent, len(types))
	for i, name := range types {
		events[i].Type = name
	}
	return events
}

func TestALoneEventWaitsForNobody(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, always(time.Millisecond), func(d *disk) {
		t := d.t
		for range 3 {
			began := time.Now()
			if _, err := d.put(t.Context(), typed("a")); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took != time.Millisecond {
				t.Errorf("took %v, want its own commit and no more", took)
			}
		}
	})
}

func TestWhatComesDuringACommitIsTheNextGroup(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, always(time.Second), func(d *disk) {
		t := d.t
		began := time.Now()
		var all sync.WaitGroup
		for range 700 {
			all.Go(func() {
				results, err := d.put(t.Context(), typed("a"))
				if err != nil || len(results) != 1 {
					t.Errorf("got %v, %v", results, err)
				}
			})
		}
		all.Wait()
		if d.most != committers || len(d.groups) > 6 || time.Since(began) > 4*time.Second {
			t.Errorf("700 events took %d groups, %d at once, and %v; want few, %d at once", len(d.groups), d.most, time.Since(began), committers)
		}
		for _, group := range d.groups {
			if len(group) > groupEvents {
				t.Errorf("a group of %d, want %d at most", len(group), groupEvents)
			}
		}
	})
}

// Groups follow one another while commits are quick, since two halves cost more than one whole. On a slow disk, and where a
// whole group waits, the next one begins beside the one under way.
func TestAnotherCommitBeginsBesideAQuickOneOnlyForAWholeGroup(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		took, between time.Duration
		least, most   int // groups of 100 events
		atOnce        int
	}{
		"quick":                {overlap - time.Millisecond, time.Millisecond, 20, 26, 1},
		"slow":                 {4 * overlap, time.Millisecond, 10, 12, 2},
		"more than whole ones": {overlap, 0, 10, 11, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(g *gathering) { g.group.events = 10 }, always(c.took), func(d *disk) {
				t := d.t
				var all sync.WaitGroup
				for range 100 {
					d.begin(&all)
					time.Sleep(c.between)
					synctest.Wait()
				}
				all.Wait()
				if n := len(d.groups); n < c.least || n > c.most || d.most != c.atOnce {
					t.Errorf("%d groups, %d at once, want %d to %d, %d at once", n, d.most, c.least, c.most, c.atOnce)
				}
			})
		})
	}
}

func TestWhatWaitsIsBoundedAndTheRestIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*gathering){
		"by number": func(g *gathering) { g.waiting.events = 10 },
		"by size":   func(g *gathering) { g.waiting.bytes = 10 * weight(&typed("a")[0]).bytes },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, change, always(time.Second), func(d *disk) {
				t := d.t
				var all sync.WaitGroup
				var mu sync.Mutex
				refused := 0
				d.occupy(&all)
				for range 30 {
					all.Go(func() {
						began := time.Now()
						_, err := d.put(t.Context(), typed("a"))
						mu.Lock()
						defer mu.Unlock()
						if errors.Is(err, errCrowded) {
							refused++
							if took := time.Since(began); took != 0 {
								t.Errorf("refused after %v, want at once", took)
							}
						} else if err != nil {
							t.Error(err)
						}
					})
				}
				all.Wait()
				if refused != 20 {
					t.Errorf("%d of 30 were refused, want 20", refused)
				}
			})
		})
	}
}

// What is larger than all bounds goes alone, rather than never.
func TestAnEventLargerThanTheBoundsIsTaken(t *testing.T) {
	t.Parallel()
	inBubble(t, func(g *gathering) { g.waiting.bytes, g.group.bytes = 1, 1 }, always(time.Second), func(d *disk) {
		t := d.t
		if _, err := d.put(t.Context(), typed("a")); err != nil {
			t.Error(err)
		}
	})
}

func TestWaitingEndsInTime(t *testing.T) {
	t.Parallel()
	inBubble(t, nil, always(8*time.Second), func(d *disk) {
		t := d.t
		var all sync.WaitGroup
		d.occupy(&all)
		began := time.Now()
		if _, err := d.put(t.Context(), typed("late")); !errors.Is(err, errOutwaited) || time.Since(began) != d.patience {
			t.Errorf("got %v after %v, want %v after %v", err, time.Since(began), errOutwaited, d.patience)
		}
		all.Wait()
	})
}

// A request that ends leaves the queue, and the others of its group-to-be are none the wiser. Under way, it stays.
func TestAnEndedRequestLeavesTheQueueButNoCommit(t *testing.T) {
	t.Parallel()
	inBubble(t, func(g *gathering) { g.committers = 1 }, always(time.Second), func(d *disk) {
		t := d.t
		var all sync.WaitGroup
		put := func(ctx context.Context, name string, want error) {
			all.Go(func() {
				if _, err := d.put(ctx, typed(name)); !errors.Is(err, want) {
					t.Errorf("%s: got %v, want %v", name, err, want)
				}
			})
			synctest.Wait()
		}
		ending, end := context.WithCancel(t.Context())
		put(ending, "under way", nil)
		put(t.Context(), "before", nil)
		put(ending, "ended", context.Canceled)
		put(t.Context(), "after", nil)
		end()
		all.Wait()
		if want := "[[under way] [before after]]"; fmt.Sprint(d.groups) != want {
			t.Errorf("committed %v, want %s", d.groups, want)
		}
	})
}

// Large fan-outs take four seconds each here, and one committer at most. The others go on beside them.
func TestALargeFanOutDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	slow := func(group []*parcel) time.Duration {
		if group[0].wide {
			return 4 * time.Second
		}
		return time.Millisecond
	}
	inBubble(t, nil, slow, func(d *disk) {
		t := d.t
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				events := typed("wide")
				events[0].Targets = make([]store.Target, 10_000)
				if _, err := d.put(t.Context(), events); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		for range 1000 {
			began := time.Now()
			if _, err := d.put(t.Context(), typed("narrow")); err != nil || time.Since(began) > 2*time.Millisecond {
				t.Fatalf("beside a large fan-out: %v after %v", err, time.Since(began))
			}
		}
		all.Wait()
		for _, group := range d.groups {
			if slices.Contains(group, "wide") && len(group) > 1 {
				t.Errorf("a group of %v, want each fan-out of 10,000 alone", group)
			}
		}
	})
}

func TestWhatWaitsAtTheStopIsCommittedAndNothingIsTakenAfter(t *testing.T) {
	t.Parallel()
	inBubble(t, func(g *gathering) { g.committers = 1 }, always(time.Second), func(d *disk) {
		t := d.t
		var all sync.WaitGroup
		for range 3 {
			d.begin(&all)
			synctest.Wait()
		}
		d.close()
		if _, err := d.put(t.Context(), typed("late")); !errors.Is(err, errStopping) {
			t.Errorf("got %v, want %v", err, errStopping)
		}
		all.Wait()
	})
}

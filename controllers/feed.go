package controllers

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/postrider/postrider/store"
)

const (
	// activityOverlap is how far queries for activity reach back over one another: what commits late carries the time
	// at which its transaction began. And a success that closes a circuit but is not written down (store.SuccessStep) is told
	// by it.
	activityOverlap = 10 * time.Second
	// countAtOnce bounds the backlogs counted in one tick, countRound is in how many ticks all have had their turn.
	countAtOnce   = 500
	countRound    = 60
	minCountTurns = 20
	feedPatience  = 10 * time.Second
)

// feed makes the status of endpoints follow the store: it asks for all of them at once and enqueues those whose status
// has something to say. It writes nothing itself. Only the leader runs it.
type feed struct {
	store     Store
	facts     *facts
	ownership *ownership
	metrics   *metrics
	review    *review
	log       *slog.Logger

	mutex sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // nil: the controller is not started yet

	since time.Time // what the store told is complete up to here, by its clock
	away  bool      // the store could not be read the last time
}

// source is where the controller gets what the feed enqueues.
func (f *feed) source() source.Source {
	return source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		f.mutex.Lock()
		defer f.mutex.Unlock()
		f.queue = queue
		return nil
	})
}

// Start implements manager.Runnable.
func (f *feed) Start(ctx context.Context) error {
	if !f.ownership.owned(ctx) {
		return nil
	}
	ticker := time.NewTicker(f.facts.budgets.tick)
	defer ticker.Stop()
	for {
		f.tick(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (f *feed) NeedLeaderElection() bool { return true }

func (f *feed) tick(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, feedPatience)
	defer cancel()
	err := f.read(ctx)
	switch {
	case err == nil && f.away:
		f.away = false
		f.log.Info("the store can be read again; statuses follow it")
	case err != nil && !f.away && ctx.Err() == nil:
		f.away = true
		f.log.Warn("the store cannot be read; statuses stay as they are until it can", "reason", err.Error())
	}
	// Also without news: a circuit becomes half open by itself, and figures fall due.
	urgent, idle, lag := f.facts.due()
	f.metrics.statusLag.Set(lag.Seconds())
	f.enqueue(urgent, 0)
	f.enqueue(idle, handler.LowPriority)
	f.enqueueReview()
}

// read asks for pauses, for activity and for backlogs, each in one query for all endpoints.
func (f *feed) read(ctx context.Context) error {
	pauses, err := f.store.Pauses(ctx)
	if err != nil {
		return err
	}
	activities, now, err := f.store.Activities(ctx, f.since)
	if err != nil {
		return err
	}
	f.facts.learnPauses(pauses) // before the first statuses are written
	f.facts.learn(activities, now)
	f.since = now.Add(-activityOverlap)

	ids := f.facts.toCount(countAtOnce, max(minCountTurns, f.facts.tracked()/countRound))
	if len(ids) == 0 {
		return nil
	}
	backlogs, err := f.store.Backlogs(ctx, ids)
	if err != nil {
		f.facts.recount(ids)
		return err
	}
	f.facts.learnBacklogs(complete(backlogs, ids))
	return nil
}

// complete adds the endpoints that the store did not mention: they have no backlog.
func complete(backlogs []store.Backlog, ids []int64) []store.Backlog {
	mentioned := map[int64]bool{}
	for _, b := range backlogs {
		mentioned[b.EndpointID] = true
	}
	for _, id := range ids {
		if !mentioned[id] {
			backlogs = append(backlogs, store.Backlog{EndpointID: id})
		}
	}
	return backlogs
}

func (f *feed) enqueue(names []types.NamespacedName, priority int) {
	f.mutex.Lock()
	queue := f.queue
	f.mutex.Unlock()
	if queue == nil {
		return // they fall due again
	}
	for _, name := range names {
		request := reconcile.Request{NamespacedName: name}
		if q, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
			q.AddWithOpts(priorityqueue.AddOpts{Priority: &priority}, request)
			continue
		}
		queue.Add(request)
	}
}

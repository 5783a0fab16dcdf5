package controllers

import (
	"context"
	"errors"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
)

const (
	sweepPage = 500
	// sweepPause is between two sweeps that are asked for, sweepRetry until a sweep is tried again that failed, and
	// sweepReview until one is that was refused: the objects may be back.
	sweepPause  = 5 * time.Second
	sweepRetry  = 10 * time.Second
	sweepReview = 5 * time.Minute
	// sweepUnasked is how many rows may go unasked however few there are. In a small installation a tenth is less than
	// one, and whoever has to confirm the deletion of a single endpoint soon confirms everything. What a tenth is there
	// to prevent, taking another cluster's emptiness for deletions, ownership prevents by the cluster's uid too.
	sweepUnasked = 5
)

// sweeper gives up the rows whose objects vanished while nobody watched: after a start, and after a watch was lost. Only
// the leader runs it.
type sweeper struct {
	cached    client.Reader
	watched   func(namespace string) bool // whether the cache knows a namespace at all
	synced    func(context.Context) bool  // waits until the cache holds all objects
	live      client.Reader
	store     Store
	ownership *ownership
	metrics   *metrics
	log       *slog.Logger
	confirmed bool
	asked     chan struct{} // holds one
	refused   int           // rows, by the last sweep
}

func newSweeper() *sweeper { return &sweeper{asked: make(chan struct{}, 1)} }

// ask has the rows swept soon.
func (s *sweeper) ask() {
	select {
	case s.asked <- struct{}{}:
	default: // asked already
	}
}

// Start implements manager.Runnable.
func (s *sweeper) Start(ctx context.Context) error {
	if !s.synced(ctx) || !s.ownership.owned(ctx) {
		return nil
	}
	for ctx.Err() == nil {
		found, err := s.sweep(ctx)
		s.wait(ctx, s.review(found, err))
	}
	return nil
}

// review tells what came of a sweep, and returns after how long to sweep again unasked. 0: never.
func (s *sweeper) review(found finding, err error) time.Duration {
	if errors.Is(err, context.Canceled) {
		return 0
	}
	if err != nil {
		s.log.Warn("the sweep of rows whose object is gone failed and is tried again", "reason", err.Error())
		return sweepRetry
	}
	if found.refused > 0 && found.refused != s.refused {
		s.log.Error("so many rows have lost their object that the sweep stops: was etcd restored, is this the right cluster, "+
			"was watchNamespaces narrowed? If the objects are meant to be gone, start once with --confirm-sweep",
			"gone", found.refused, "rows", found.rows)
	}
	s.refused = found.refused
	s.metrics.sweepRefused.Set(float64(found.refused))
	if found.refused > 0 {
		return sweepReview
	}
	return 0
}

// wait waits until it is time, or until a sweep is asked for and one lost watch's deletions had time to gather.
func (s *sweeper) wait(ctx context.Context, length time.Duration) {
	var again <-chan time.Time
	if length > 0 {
		again = time.After(length)
	}
	select {
	case <-ctx.Done():
	case <-again:
	case <-s.asked:
		select {
		case <-ctx.Done():
		case <-time.After(sweepPause):
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (s *sweeper) NeedLeaderElection() bool { return true }

// finding of a sweep.
type finding struct {
	rows       int // live ones
	gone       int // whose object is gone
	tombstoned int
	refused    int // gone, but too many at once
}

func (s *sweeper) sweep(ctx context.Context) (finding, error) {
	var f finding
	var suspects []store.EndpointRef
	for after := int64(0); ; {
		page, err := s.page(ctx, after)
		if err != nil {
			return f, err
		}
		if len(page) == 0 {
			break
		}
		f.rows += len(page)
		after = page[len(page)-1].ID
		for _, row := range page {
			missing, err := s.missing(ctx, row)
			if err != nil {
				return f, err
			}
			if missing {
				suspects = append(suspects, row)
			}
		}
	}
	gone, err := s.confirmGone(ctx, suspects, f.rows)
	f.gone = len(gone)
	if err != nil {
		return f, err
	}
	if !s.confirmed && tooMany(f.gone, f.rows) {
		f.refused = f.gone
		return f, nil
	}
	for _, row := range gone {
		found, err := s.tombstone(ctx, row)
		if err != nil {
			return f, err
		}
		if found {
			f.tombstoned++
			s.metrics.tombstoned.WithLabelValues("sweep").Inc()
			s.log.Info("endpoint gone while nobody watched; what was pending is cancelled", "endpoint", nameOfRow(row).String())
		}
	}
	return f, nil
}

// missing reports whether the cache lacks a row's object.
func (s *sweeper) missing(ctx context.Context, row store.EndpointRef) (bool, error) {
	if !s.watched(row.Namespace) {
		return true, nil
	}
	err := s.cached.Get(ctx, nameOfRow(row), &v1alpha1.WebhookEndpoint{})
	return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
}

// tooMany is more than a tenth, but never so few that asking would be a habit.
func tooMany(gone, rows int) bool { return gone > sweepUnasked && gone*10 > rows }

// confirmGone asks the API server itself for each object that the cache lacks. Only a NotFound counts, and only that of
// the object: a missing CRD answers 404 as well. It stops asking when there are too many in any case.
func (s *sweeper) confirmGone(ctx context.Context, suspects []store.EndpointRef, rows int) ([]store.EndpointRef, error) {
	var gone []store.EndpointRef
	forbidden := 0
	for _, row := range suspects {
		err := s.live.Get(ctx, nameOfRow(row), &v1alpha1.WebhookEndpoint{})
		switch {
		case err == nil: // the cache does not show it yet, or it is not in a watched namespace
		case objectNotFound(err, row.Name):
			gone = append(gone, row)
		case apierrors.IsForbidden(err):
			forbidden++
		default:
			return gone, err
		}
		if !s.confirmed && tooMany(len(gone), rows) {
			break
		}
	}
	if forbidden > 0 {
		s.log.Warn("rows whose objects this installation may not read are left alone", "rows", forbidden)
	}
	return gone, nil
}

func objectNotFound(err error, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Name == name && len(details.Causes) == 0
}

func (s *sweeper) page(ctx context.Context, after int64) ([]store.EndpointRef, error) {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	return s.store.LiveEndpoints(ctx, after, sweepPage)
}

func (s *sweeper) tombstone(ctx context.Context, row store.EndpointRef) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	return s.store.TombstoneEndpoint(ctx, row.Namespace, row.Name, row.UID)
}

func nameOfRow(row store.EndpointRef) types.NamespacedName {
	return types.NamespacedName{Namespace: row.Namespace, Name: row.Name}
}

package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
)

// Store is what this part needs of the store. *store.Store is one.
type Store interface {
	Own(ctx context.Context, in store.Installation, takeOver bool) error
	SealedValues(ctx context.Context, after int64, n int) ([]store.SealedValue, error)

	RecordNamespace(ctx context.Context, name, uid string) error
	ForgetNamespace(ctx context.Context, name, uid string) (tombstoned int, err error)

	Endpoint(ctx context.Context, namespace, name string) (store.Endpoint, error)
	ApplyEndpoint(ctx context.Context, change store.EndpointChange) (store.Endpoint, error)
	TombstoneEndpoint(ctx context.Context, namespace, name, uid string) (bool, error)
	LiveEndpoints(ctx context.Context, after int64, n int) ([]store.EndpointRef, error)

	Activities(ctx context.Context, since time.Time) ([]store.Activity, time.Time, error)
	Backlogs(ctx context.Context, endpointIDs []int64) ([]store.Backlog, error)
	Pauses(ctx context.Context) ([]store.Pause, error)
}

const (
	// storePatience bounds the work on one row, so that time is left to say in the status that the store is away.
	storePatience = 10 * time.Second
	// storePause is how long work waits for a store that is away, and as much again at random.
	storePause = 3 * time.Second
	// conflictPause lets the cache catch up with a write that was not ours.
	conflictPause = 250 * time.Millisecond
	// olderPause is between two looks at an object that is older than its row.
	olderPause = 30 * time.Second
)

// errOutdated means that the cache is behind the API server or the row. What it does not show yet brings a reconcile.
var errOutdated = errors.New("the object in the cache is outdated")

// Reconciler makes one row of the store follow one WebhookEndpoint, and the object's status follow the store. It is the
// only writer of that status.
type Reconciler struct {
	client     client.Client // reads from the cache
	live       client.Reader // reads from the API server
	store      Store
	keyring    *keyring.Keyring
	settings   *atomic.Pointer[settings]
	namespaces bool // their metadata is watched
	ownership  *ownership
	deletions  *deletions
	facts      *facts
	recorder   events.EventRecorder
	metrics    *metrics
	log        *slog.Logger
	clock      func() time.Time

	mutex  sync.Mutex
	agreed map[types.NamespacedName]agreement
}

// +kubebuilder:rbac:groups=webhooks.postrider.dev,resources=webhookendpoints,verbs=get;list;watch
// +kubebuilder:rbac:groups=webhooks.postrider.dev,resources=webhookendpoints/status,verbs=patch
// +kubebuilder:rbac:groups="",resources=secrets,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=namespaces,verbs=get;list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// Reconcile brings the row of one name up to date with its object, and the object's status with both.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (result ctrl.Result, err error) {
	name := request.NamespacedName
	object, err := r.get(ctx, name)
	if err != nil {
		return ctrl.Result{}, err
	}
	var t truth
	defer func() {
		err = r.writeStatus(ctx, object, t, err)
		result, err = r.conclude(t, err)
	}()
	if err := r.ownership.check(ctx); err != nil {
		return ctrl.Result{}, err
	}
	// After the object was read: who finds a new one in the cache finds its predecessor among the deletions.
	if err := r.bury(ctx, name, object); err != nil {
		return ctrl.Result{}, err
	}
	if gone(object) {
		r.drop(name) // a row whose object vanished unseen is the sweep's
		return ctrl.Result{}, nil
	}
	t, err = r.agree(ctx, object)
	if err != nil {
		return ctrl.Result{}, err
	}
	if !r.facts.await(ctx) {
		return ctrl.Result{}, errStoreAwaited
	}
	t.figures = r.facts.figures(t.row.ID)
	return ctrl.Result{}, nil
}

// get reads an object from the cache. Nil: there is none.
func (r *Reconciler) get(ctx context.Context, name types.NamespacedName) (*v1alpha1.WebhookEndpoint, error) {
	object := &v1alpha1.WebhookEndpoint{}
	err := r.client.Get(ctx, name, object)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read from the cache: %w", err)
	}
	return object, nil
}

// gone reports whether nothing is to be delivered for an object any more. One whose deletion somebody's finalizer holds
// up is gone for us.
func gone(object *v1alpha1.WebhookEndpoint) bool {
	return object == nil || !object.DeletionTimestamp.IsZero()
}

// bury tombstones the rows of this name whose objects were seen deleted.
func (r *Reconciler) bury(ctx context.Context, name types.NamespacedName, object *v1alpha1.WebhookEndpoint) error {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	uids := r.deletions.of(name)
	if object != nil && gone(object) {
		uids = append(uids, object.UID)
	}
	for _, uid := range uids {
		if !gone(object) && object.UID == uid {
			continue // the cache does not show its deletion yet
		}
		found, err := r.store.TombstoneEndpoint(ctx, name.Namespace, name.Name, string(uid))
		if err != nil {
			return atStore(err)
		}
		r.deletions.done(name, uid)
		if found {
			r.metrics.tombstoned.WithLabelValues("deletion").Inc()
			r.log.Info("endpoint deleted; what was pending is cancelled", "endpoint", name.String())
		}
	}
	return nil
}

// writeStatus is the one place where a status is written: only if it differs in what somebody may wait for, or if its
// moving figures have their turn. It takes and returns the error of the work before.
func (r *Reconciler) writeStatus(ctx context.Context, object *v1alpha1.WebhookEndpoint, t truth, err error) error {
	if gone(object) || ctx.Err() != nil {
		return err
	}
	next := object.DeepCopy()
	switch {
	case err == nil:
		next.Status = describe(object.Status, t)
	case waits(err):
		next.Status = describeUnavailable(object.Status, object.Generation, r.clock())
	case apierrors.IsForbidden(err):
		next.Status = describeForbidden(object.Status, object.Generation, err.Error(), r.clock())
	default:
		return err
	}
	change := compareStatus(object.Status, next.Status, t.figures)
	if change == unchanged || change == moving && !r.facts.mayMove(t.row.ID) {
		r.show(t, shownBy(object.Status, t.figures), false)
		return err
	}
	patch := client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{})
	if failed := r.client.Status().Patch(ctx, next, patch); failed != nil {
		// A status of an object that is gone is of no use to anybody.
		return errors.Join(err, client.IgnoreNotFound(failed))
	}
	r.metrics.statusWrites.WithLabelValues(change.String()).Inc()
	r.show(t, t.figures, true)
	for _, a := range announcements(object.Status, next.Status) {
		r.recorder.Eventf(next, nil, a.kind, a.reason, "Reconcile", "%s", a.note)
	}
	return err
}

func (r *Reconciler) show(t truth, shown figures, written bool) {
	if t.row.ID != 0 {
		r.facts.show(t.row.ID, shown, written)
	}
}

// conclude decides when to look again, and counts what came of this look.
func (r *Reconciler) conclude(t truth, err error) (ctrl.Result, error) {
	outcome, again := readiness(t).Reason, time.Duration(0)
	switch {
	case err == nil && t.row.ID == 0:
		outcome = "Deleted"
	case err == nil:
		again = r.next(t)
	case errors.Is(err, errOutdated):
		outcome, err = "Outdated", nil
	case waits(err):
		outcome, err = v1alpha1.ReasonStoreUnavailable, nil
		again = storePause + rand.N(storePause) //nolint:gosec // jitter
	case apierrors.IsConflict(err), errors.Is(err, store.ErrConflict):
		outcome, err, again = "Conflict", nil, conflictPause
	default:
		outcome = "Error"
	}
	r.metrics.reconciles.WithLabelValues(outcome).Inc()
	return ctrl.Result{RequeueAfter: again}, err
}

// next is when time alone changes something: a replaced key ceases to sign. 0: never.
func (r *Reconciler) next(t truth) time.Duration {
	if t.hold.Reason == ReasonOlderGeneration {
		return olderPause
	}
	end := nextEnd(t.row.Keys)
	if end.IsZero() {
		return 0
	}
	return max(end.Sub(t.now), time.Millisecond)
}

// storeError marks an error as the store's: the same kinds of error (a deadline, a refused connection) come from the API
// server too, and mean something else then.
type storeError struct{ error }

func (e storeError) Unwrap() error { return e.error }

func atStore(err error) error {
	if err == nil {
		return nil
	}
	return storeError{err}
}

// waits reports whether an error means that the store is away: everything resumes by itself once it is back.
func waits(err error) bool {
	var e storeError
	return errors.Is(err, errStoreAwaited) || errors.As(err, &e) && store.IsUnavailable(e)
}

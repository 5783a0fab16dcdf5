package controllers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
)

const (
	// eventSource names us in Kubernetes Events.
	eventSource = "postrider-controller"
	// reconcilePatience bounds one reconcile.
	reconcilePatience = 30 * time.Second
	// Retries after an error grow from a moment to half a minute: whatever comes back is noticed within that.
	retryFirst = 50 * time.Millisecond
	retryMost  = 30 * time.Second
)

// URLPolicy answers early whether a URL may be an endpoint's. A *destination.Policy is one.
type URLPolicy interface {
	CheckURL(u *url.URL) error
}

// Controllers is this part. It is made by New and runs once.
type Controllers struct {
	api  *rest.Config
	part *part
}

// New makes the controllers. It fails for a configuration that Config.Validate refuses, and reaches for nothing.
func New(api *rest.Config, s Store, ring *keyring.Keyring, policy URLPolicy, c Config) (*Controllers, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("configuration of the controllers:\n%w", err)
	}
	return &Controllers{api: api, part: newPart(s, ring, policy, c)}, nil
}

// Run runs until the context ends or it cannot go on, and waits for all that it started. It waits for a database and an
// API server that are not there yet.
//
// Errors that no restart mends: store.ErrOwned (the database belongs to another installation) and ErrKeyMissing. When the
// leader loses its Lease, Run ends with an error, and the process should.
func (c *Controllers) Run(ctx context.Context) error {
	mgr, err := c.part.manager(ctx, c.api)
	if ctx.Err() != nil {
		return nil //nolint:nilerr // it was stopped while it waited
	}
	if err != nil {
		return err
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	return nil
}

// Ready says why this replica does not work yet, or nil: from the moment on at which the database was ours. One that goes
// away later is told of in the endpoints' status.
func (c *Controllers) Ready() error { return c.part.ownership.ready() }

// part is what the pieces of one run share.
type part struct {
	config     Config
	store      Store
	keyring    *keyring.Keyring
	settings   atomic.Pointer[settings]
	metrics    *metrics
	facts      *facts
	ownership  *ownership
	sweeper    *sweeper
	endpoints  *deletions
	namespaces *deletions
}

func newPart(s Store, ring *keyring.Keyring, policy URLPolicy, c Config) *part {
	p := &part{
		config: c, store: s, keyring: ring,
		metrics:    newMetrics(orDefault[prometheus.Registerer](c.registerer, ctrlmetrics.Registry)),
		facts:      newFacts(c.budgetsOfStatus(), c.now()),
		ownership:  newOwnership(),
		sweeper:    newSweeper(),
		namespaces: newDeletions(nil),
	}
	p.endpoints = newDeletions(p.sweeper.ask)
	p.settings.Store(settingsOf(c, policy))
	return p
}

// manager assembles everything and starts nothing.
func (p *part) manager(ctx context.Context, api *rest.Config) (ctrl.Manager, error) {
	api = rest.CopyConfig(api)
	if api.QPS == 0 {
		api.QPS = -1 // the API server's priority and fairness does this better than client-go's default of 5 a second
	}
	mgr, err := p.newManager(ctx, api)
	if err != nil {
		return nil, fmt.Errorf("assemble the controllers: %w", err)
	}
	if err := warm(ctx, mgr.GetCache(), p.all()); err != nil {
		return nil, err
	}
	p.setUpOwnership(mgr)
	p.setUpSweeper(mgr)
	feed := &feed{store: p.store, facts: p.facts, ownership: p.ownership, metrics: p.metrics, log: p.config.logger(), review: newReview(&p.settings)}
	for _, runnable := range []manager.Runnable{p.ownership, p.sweeper, feed} {
		if err := mgr.Add(runnable); err != nil {
			return nil, fmt.Errorf("assemble the controllers: %w", err)
		}
	}
	if err := p.addLeaseOwner(mgr); err != nil {
		return nil, fmt.Errorf("assemble the controllers: %w", err)
	}
	if err := p.addEndpoints(mgr, feed); err != nil {
		return nil, fmt.Errorf("assemble the controller of endpoints: %w", err)
	}
	if err := p.addNamespaces(mgr); err != nil {
		return nil, fmt.Errorf("assemble the controller of namespaces: %w", err)
	}
	return mgr, nil
}

// newManager waits for an API server that is not there yet, or does not know our kind yet.
func (p *part) newManager(ctx context.Context, api *rest.Config) (ctrl.Manager, error) {
	var told string
	for {
		mgr, err := ctrl.NewManager(api, p.options())
		if err == nil || !mayCome(err) {
			return mgr, err
		}
		if err.Error() != told {
			told = err.Error()
			p.config.logger().Warn("waiting for the API server and the CRD of WebhookEndpoint", "reason", told)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(ownPause):
		}
	}
}

// mayCome reports whether an error is one of the API server's, or of the way to it.
func mayCome(err error) bool {
	var network net.Error
	return meta.IsNoMatchError(err) || errors.As(err, &network) || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown
}

// all reports whether all namespaces are watched.
func (p *part) all() bool { return len(p.config.WatchNamespaces) == 0 }

func (p *part) watches(namespace string) bool {
	return p.all() || slices.Contains(p.config.WatchNamespaces, namespace)
}

func (p *part) options() ctrl.Options {
	c := p.config
	shutdown := orDefault(c.ShutdownTimeout, defaultShutdownTimeout)
	o := ctrl.Options{
		Scheme:                        newScheme(),
		Logger:                        libraryLogger(c.logger().Handler()),
		Cache:                         cacheOptions(c.WatchNamespaces, c.resync, p.endpoints, p.namespaces),
		HealthProbeBindAddress:        "0", // the process serves probes and metrics for all its parts
		Metrics:                       metricsserver.Options{BindAddress: "0"},
		LeaderElection:                c.LeaderElection,
		LeaderElectionID:              c.leaseName(),
		LeaderElectionNamespace:       c.Namespace,
		LeaderElectionReleaseOnCancel: true,
		GracefulShutdownTimeout:       &shutdown,
	}
	if c.lease != (leaseTimes{}) {
		o.LeaseDuration, o.RenewDeadline, o.RetryPeriod = &c.lease.duration, &c.lease.renew, &c.lease.retry
	}
	// A process may run this part more than once, after one another or, in tests, at once.
	o.Controller.SkipNameValidation = new(true)
	return o
}

func (p *part) setUpOwnership(mgr ctrl.Manager) {
	o := p.ownership
	o.store, o.live, o.keyring, o.log = p.store, mgr.GetAPIReader(), p.keyring, p.config.logger()
	o.installation = store.Installation{Namespace: p.config.Namespace, Release: p.config.release()}
	o.takeOver, o.narrowed = p.config.TakeOver, !p.all()
}

func (p *part) setUpSweeper(mgr ctrl.Manager) {
	s := p.sweeper
	s.cached, s.live, s.synced = mgr.GetCache(), mgr.GetAPIReader(), mgr.GetCache().WaitForCacheSync
	s.store, s.ownership, s.metrics, s.log = p.store, p.ownership, p.metrics, p.config.logger()
	s.confirmed, s.watched = p.config.ConfirmSweep, p.watches
}

func (p *part) addLeaseOwner(mgr ctrl.Manager) error {
	if !p.config.LeaderElection {
		return nil
	}
	client, err := kubernetes.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	return mgr.Add(&leaseOwner{
		client: client, namespace: p.config.Namespace, name: p.config.leaseName(), poll: leasePoll, log: p.config.logger(),
	})
}

func (p *part) reconciler(cached client.Client, live client.Reader) *Reconciler {
	return &Reconciler{
		client: cached, live: live,
		store: p.store, keyring: p.keyring, settings: &p.settings, namespaces: p.all(),
		ownership: p.ownership, deletions: p.endpoints, facts: p.facts, metrics: p.metrics,
		log: p.config.logger(), clock: p.config.now(),
		agreed: map[types.NamespacedName]agreement{},
	}
}

func (p *part) addEndpoints(mgr ctrl.Manager, feed *feed) error {
	r := p.reconciler(mgr.GetClient(), mgr.GetAPIReader())
	r.recorder = mgr.GetEventRecorder(eventSource)
	return ctrl.NewControllerManagedBy(mgr).
		Named("webhookendpoint").
		Watches(&v1alpha1.WebhookEndpoint{}, remembering(p.endpoints, p.sweeper.ask), builder.WithPredicates(notOurOwnWrites())).
		WatchesMetadata(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(referrers(mgr.GetClient()))).
		WatchesRawSource(feed.source()).
		WithOptions(p.controllerOptions(orDefault(p.config.Workers, defaultWorkers))).
		Complete(r)
}

func (p *part) addNamespaces(mgr ctrl.Manager) error {
	r := &NamespaceReconciler{
		reader: mgr.GetClient(), store: p.store, ownership: p.ownership, deletions: p.namespaces,
		metrics: p.metrics, log: p.config.logger(),
	}
	b := ctrl.NewControllerManagedBy(mgr).Named("namespace").WithOptions(p.controllerOptions(2))
	if p.all() {
		return b.WatchesMetadata(&corev1.Namespace{}, remembering(p.namespaces, p.sweeper.ask), builder.WithPredicates(notOurOwnWrites())).Complete(r)
	}
	// A Role allows to get its own namespace, but neither to list nor to watch namespaces.
	r.reader, r.poll = mgr.GetAPIReader(), namespacePoll
	return b.WatchesRawSource(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		for _, namespace := range p.config.WatchNamespaces {
			queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Name: namespace}})
		}
		return nil
	})).Complete(r)
}

func (p *part) controllerOptions(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		ReconciliationTimeout:   reconcilePatience,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](retryFirst, retryMost),
	}
}

// remembering enqueues an object's name, after taking note of a deletion that was seen. One that was only inferred, from
// a list after a lost watch, is left to the sweep: a restored etcd looks like that too.
func remembering(d *deletions, sweep func()) handler.EventHandler {
	enqueue := func(o client.Object, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.Add(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)})
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			enqueue(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			if e.DeleteStateUnknown {
				sweep()
			} else {
				d.deleted(e.Object)
			}
			enqueue(e.Object, q)
		},
	}
}

// notOurOwnWrites lets through what a reconcile may have to act on: another object or another generation, which a
// deletion that waits for a finalizer brings too, and the resync, by which old and new are the same. It keeps out
// writes of the status and changes of labels.
func notOurOwnWrites() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID() ||
			e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() ||
			e.ObjectOld.GetResourceVersion() == e.ObjectNew.GetResourceVersion()
	}}
}

// referrers finds the endpoints that refer to a Secret.
func referrers(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, secret client.Object) []reconcile.Request {
		var list v1alpha1.WebhookEndpointList
		err := reader.List(ctx, &list, client.InNamespace(secret.GetNamespace()), client.MatchingFields{secretIndex: secret.GetName()},
			client.UnsafeDisableDeepCopy)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "find the endpoints that refer to a Secret") // the cache, which has the index
			return nil
		}
		var requests []reconcile.Request
		for _, endpoint := range list.Items {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&endpoint)})
		}
		return requests
	}
}

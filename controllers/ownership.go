package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
)

const (
	ownPatience = 10 * time.Second
	ownPause    = 2 * time.Second
)

// errStoreAwaited is what work is put off with until the store has been reached for the first time.
var errStoreAwaited = errors.New("the store has not been reached yet")

// ownership claims the database for this installation before anything is read from it or written to it. While the
// database, its schema or the API server is not there yet, it keeps trying; if the database belongs to another
// installation, or the keyring lacks a key, it ends this part with an error.
type ownership struct {
	store        Store
	live         client.Reader
	keyring      *keyring.Keyring
	installation store.Installation
	takeOver     bool
	narrowed     bool // only some namespaces are watched, so kube-system may be out of sight
	log          *slog.Logger
	pause        time.Duration

	tried     chan struct{} // closed after the first try
	triedOnce sync.Once
	granted   chan struct{} // closed when the database is ours
	mutex     sync.Mutex
	problem   error // of the last try
}

func newOwnership() *ownership {
	return &ownership{pause: ownPause, tried: make(chan struct{}), granted: make(chan struct{}), problem: errStoreAwaited}
}

// Start implements manager.Runnable.
func (o *ownership) Start(ctx context.Context) error {
	var told string
	for ctx.Err() == nil {
		err := o.try(ctx)
		if errors.Is(err, store.ErrOwned) || errors.Is(err, ErrKeyMissing) {
			return err
		}
		o.mutex.Lock()
		o.problem = err
		o.mutex.Unlock()
		if err == nil {
			close(o.granted)
		}
		o.triedOnce.Do(func() { close(o.tried) })
		if err == nil {
			return nil
		}
		if err.Error() != told && ctx.Err() == nil {
			told = err.Error()
			o.log.Warn("waiting for the database, its schema or the API server", "reason", told)
		}
		select {
		case <-ctx.Done():
		case <-time.After(o.pause):
		}
	}
	return nil
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: a replica that must not run says so when it starts, not
// when it is needed.
func (o *ownership) NeedLeaderElection() bool { return false }

func (o *ownership) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ownPatience)
	defer cancel()
	in := o.installation
	var err error
	if in.ClusterUID, err = o.clusterUID(ctx); err != nil {
		return err
	}
	if err := o.store.Own(ctx, in, o.takeOver); err != nil {
		return err
	}
	return CheckKeyring(ctx, o.store, o.keyring)
}

// clusterUID identifies the cluster. Where only some namespaces are watched, the right to read kube-system may be
// missing; then release and namespace must suffice.
func (o *ownership) clusterUID(ctx context.Context) (string, error) {
	meta := metadataOf("Namespace")
	err := o.live.Get(ctx, types.NamespacedName{Name: "kube-system"}, meta)
	if o.narrowed && apierrors.IsForbidden(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("identify the cluster by its namespace kube-system: %w", err)
	}
	return string(meta.GetUID()), nil
}

// owned waits until the database is ours. False: the context ended before.
func (o *ownership) owned(ctx context.Context) bool {
	select {
	case <-o.granted:
		return true
	case <-ctx.Done():
		return false
	}
}

// check reports whether the database is ours: an errStoreAwaited if it is not, as far as the first try knows.
func (o *ownership) check(ctx context.Context) error {
	select {
	case <-o.granted:
		return nil
	default:
	}
	select {
	case <-o.tried:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", errStoreAwaited, ctx.Err())
	}
	o.mutex.Lock()
	defer o.mutex.Unlock()
	if o.problem != nil {
		return fmt.Errorf("%w: %w", errStoreAwaited, o.problem)
	}
	return nil
}

// ready is check without its wait for the first try.
func (o *ownership) ready() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return o.check(ctx)
}

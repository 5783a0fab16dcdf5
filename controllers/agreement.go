package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
)

// agreement is what an object, its Secret and its row looked like when they were last found in agreement. While the
// first two look the same and are judged by the same settings, a status can be made without asking the store or the API
// server again.
type agreement struct {
	uid        types.UID
	generation int64
	secret     string // revision
	settings   *settings
	hold       hold
	row        store.Endpoint
	found      time.Time
}

// agreementAge is how long an agreement is relied on: a row that somebody changed behind our back, by restoring the
// database for one, is found again.
const agreementAge = time.Hour

// agree makes the row say what object and Secret say, and returns what is true then, figures left out.
func (r *Reconciler) agree(ctx context.Context, object *v1alpha1.WebhookEndpoint) (truth, error) {
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	secret, err := r.secretRevision(ctx, object)
	if err != nil {
		return truth{}, err
	}
	now, by := r.clock(), r.settings.Load()
	if a, ok := r.agreement(object, secret, by, now); ok {
		return truth{generation: a.generation, hold: a.hold, row: a.row, now: now}, nil
	}
	row, namespaceUID, err := r.row(ctx, object)
	if err != nil {
		return truth{}, err
	}
	if row != nil && row.UID == string(object.UID) && row.Generation > object.Generation {
		return r.older(ctx, object, *row, now)
	}
	a, err := r.apply(ctx, object, row, namespaceUID, by, now)
	if err != nil {
		return truth{}, err
	}
	r.facts.track(nameOf(object), a.row.ID, row == nil)
	r.mutex.Lock()
	r.agreed[nameOf(object)] = a
	r.mutex.Unlock()
	return truth{generation: a.generation, hold: a.hold, row: a.row, now: now}, nil
}

// agreement returns the last one, if it still stands.
func (r *Reconciler) agreement(object *v1alpha1.WebhookEndpoint, secret string, by *settings, now time.Time) (agreement, bool) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	a, ok := r.agreed[nameOf(object)]
	end := nextEnd(a.row.Keys)
	return a, ok && a.uid == object.UID && a.generation == object.Generation && a.secret == secret && a.settings == by &&
		(end.IsZero() || now.Before(end)) && now.Sub(a.found) < agreementAge
}

// drop forgets an object that is gone.
func (r *Reconciler) drop(name types.NamespacedName) {
	r.facts.forget(name)
	r.mutex.Lock()
	defer r.mutex.Unlock()
	delete(r.agreed, name)
}

// row returns the live row that is the object's or becomes it, nil if it gets a new one, and the uid of the object's
// namespace.
func (r *Reconciler) row(ctx context.Context, object *v1alpha1.WebhookEndpoint) (*store.Endpoint, string, error) {
	var row *store.Endpoint
	e, err := r.store.Endpoint(ctx, object.Namespace, object.Name)
	switch {
	case err == nil:
		row = &e
	case !errors.Is(err, store.ErrNotFound):
		return nil, "", atStore(err)
	}
	namespaceUID, err := r.namespaceUID(ctx, object, row)
	if err != nil {
		return nil, "", err
	}
	name := nameOf(object).String()
	switch identify(row, string(object.UID), namespaceUID) {
	case current:
		return row, namespaceUID, nil
	case adopts:
		r.log.Info("the row of an object that nobody saw deleted is adopted with its backlog", "endpoint", name)
	case replaces:
		r.log.Info("the row of an object in an earlier namespace of this name is given up", "endpoint", name)
		if _, err := r.store.TombstoneEndpoint(ctx, object.Namespace, object.Name, row.UID); err != nil {
			return nil, "", atStore(err)
		}
		r.metrics.tombstoned.WithLabelValues("deletion").Inc()
		row = nil
	case unheard:
	}
	return row, namespaceUID, atStore(r.store.RecordNamespace(ctx, object.Namespace, namespaceUID))
}

// namespaceUID returns the uid of the namespace that the object is in. A namespace may have been deleted and made again,
// and the caches of namespaces and of endpoints know nothing of each other; a wrong answer would show one tenant's
// events to another. So where the row does not vouch for the answer, it is proved: the object was seen before the
// namespace is read, and is still there after. It was there meanwhile, and so was its namespace.
func (r *Reconciler) namespaceUID(ctx context.Context, object *v1alpha1.WebhookEndpoint, row *store.Endpoint) (string, error) {
	name := types.NamespacedName{Name: object.Namespace}
	if row != nil && row.UID == string(object.UID) {
		seen := row.NamespaceUID
		if r.namespaces {
			namespace := metadataOf("Namespace")
			if err := r.client.Get(ctx, name, namespace); client.IgnoreNotFound(err) != nil {
				return "", fmt.Errorf("read namespace %s from the cache: %w", name.Name, err)
			}
			seen = string(namespace.UID)
		}
		if seen == row.NamespaceUID {
			return seen, nil
		}
	}
	namespace := metadataOf("Namespace")
	if err := r.live.Get(ctx, name, namespace); err != nil {
		return "", outdatedIfGone(fmt.Errorf("read namespace %s: %w", name.Name, err))
	}
	now := &v1alpha1.WebhookEndpoint{}
	if err := r.live.Get(ctx, nameOf(object), now); err != nil {
		return "", outdatedIfGone(fmt.Errorf("read the object again: %w", err))
	}
	if now.UID != object.UID {
		return "", errOutdated
	}
	return string(namespace.UID), nil
}

func outdatedIfGone(err error) error {
	if apierrors.IsNotFound(err) {
		return errOutdated
	}
	return err
}

// older deals with a row that is newer than its object. Mostly the cache is behind; if the API server itself is, etcd
// was restored from a backup. Then the row is left alone, since nobody can tell which spec is meant, and the status
// says so.
func (r *Reconciler) older(ctx context.Context, object *v1alpha1.WebhookEndpoint, row store.Endpoint, now time.Time) (truth, error) {
	live := &v1alpha1.WebhookEndpoint{}
	if err := r.live.Get(ctx, nameOf(object), live); err != nil {
		return truth{}, outdatedIfGone(fmt.Errorf("read the object again: %w", err))
	}
	if live.UID != object.UID || live.Generation > object.Generation {
		return truth{}, errOutdated
	}
	r.facts.track(nameOf(object), row.ID, false)
	return truth{generation: object.Generation, row: row, now: now, hold: hold{ReasonOlderGeneration, fmt.Sprintf(
		"The store holds generation %d of this object, the API server only %d, as after a restore of etcd. The newer one stays in force: "+
			"delete this object and apply it again to put this one in force, without what is pending", row.Generation, object.Generation)}}, nil
}

// apply makes the row say what the object says, and writes nothing if it does already.
func (r *Reconciler) apply(ctx context.Context, object *v1alpha1.WebhookEndpoint, row *store.Endpoint, namespaceUID string, by *settings, now time.Time) (agreement, error) {
	secret, err := r.readSecret(ctx, object)
	if err != nil {
		return agreement{}, err
	}
	defer clear(secret.value)
	w := interpret(&object.Spec, by.defaults, by.limits, by.checkURL)
	a := agreement{uid: object.UID, generation: object.Generation, secret: secret.revision, settings: by, hold: w.hold, found: now}
	if a.hold == (hold{}) {
		a.hold = secret.hold
	}
	change, err := r.change(object, row, w, secret, now)
	if err != nil {
		return agreement{}, err
	}
	change.NamespaceUID, change.HoldReason = namespaceUID, a.hold.Reason
	if row != nil && same(*row, change) {
		a.row = *row
		return a, nil
	}
	a.row, err = r.store.ApplyEndpoint(ctx, change)
	switch {
	case errors.Is(err, store.ErrStale):
		return agreement{}, errOutdated
	case err != nil:
		return agreement{}, atStore(err)
	}
	r.facts.applied(a.row.ID, row == nil || row.Generation != change.Generation || row.UID != change.UID)
	r.log.Info("endpoint applied", "endpoint", nameOf(object).String(), "generation", object.Generation, "reason", orDefault(a.hold.Reason, v1alpha1.ReasonSynced))
	return a, nil
}

// change is what the row should say, with all that is secret in it sealed.
func (r *Reconciler) change(object *v1alpha1.WebhookEndpoint, row *store.Endpoint, w wish, secret signingSecret, now time.Time) (store.EndpointChange, error) {
	if row == nil {
		id, err := uuid.NewV7()
		if err != nil {
			return store.EndpointChange{}, fmt.Errorf("make an endpoint id: %w", err)
		}
		row = &store.Endpoint{PublicID: id}
	}
	s := sealerOf(r.keyring, row.PublicID)
	held, corrupt, err := s.openKeys(row.Keys)
	if err != nil {
		return store.EndpointChange{}, err
	}
	if corrupt > 0 {
		r.log.Error("stored signing keys cannot be read and are dropped; the present one is read from its Secret again",
			"endpoint", nameOf(object).String(), "keys", corrupt)
	}
	keys, err := s.sealKeys(rotate(held, secret.key, w.window, now), secret.value)
	if err != nil {
		return store.EndpointChange{}, err
	}
	if w.spec.Headers, err = s.sealHeaders(w.headers, row.Spec.Headers); err != nil {
		return store.EndpointChange{}, err
	}
	return store.EndpointChange{
		PublicID:   row.PublicID,
		Namespace:  object.Namespace,
		Name:       object.Name,
		UID:        string(object.UID),
		Generation: object.Generation,
		Spec:       w.spec,
		Keys:       keys,
		IfVersion:  row.Version,
	}, nil
}

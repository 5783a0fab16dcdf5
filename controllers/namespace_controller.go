package controllers

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// namespacePoll is how often the few watched namespaces are looked at where watching all is not allowed.
const namespacePoll = 10 * time.Second

// NamespaceReconciler tells the store which namespaces there are, by uid: a namespace that is deleted and made again is
// another tenant, which sees nothing of the first.
type NamespaceReconciler struct {
	reader    client.Reader
	poll      time.Duration // 0: namespaces are watched
	store     Store
	ownership *ownership
	deletions *deletions
	log       *slog.Logger
	metrics   *metrics
}

// Reconcile forgets the namespaces of a name that were seen deleted, and records the one that is there. What vanished
// unseen is not forgotten here: with its endpoints it is the sweep's, which stops where too much is gone at once.
func (r *NamespaceReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	err := r.ownership.check(ctx)
	if err == nil {
		err = r.tell(ctx, request)
	}
	if waits(err) {
		return ctrl.Result{RequeueAfter: storePause}, nil
	}
	return ctrl.Result{RequeueAfter: r.poll}, err
}

func (r *NamespaceReconciler) tell(ctx context.Context, request ctrl.Request) error {
	namespace := metadataOf("Namespace")
	err := r.reader.Get(ctx, request.NamespacedName, namespace)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read namespace: %w", err)
	}
	there := !apierrors.IsNotFound(err)
	ctx, cancel := context.WithTimeout(ctx, storePatience)
	defer cancel()
	for _, uid := range r.deletions.of(request.NamespacedName) {
		if there && namespace.UID == uid {
			continue // the cache does not show its deletion yet
		}
		tombstoned, err := r.store.ForgetNamespace(ctx, request.Name, string(uid))
		if err != nil {
			return atStore(err)
		}
		r.deletions.done(request.NamespacedName, uid)
		r.metrics.tombstoned.WithLabelValues("deletion").Add(float64(tombstoned))
		r.log.Info("namespace deleted", "namespace", request.Name, "endpoints", tombstoned)
	}
	if !there {
		return nil
	}
	return atStore(r.store.RecordNamespace(ctx, request.Name, string(namespace.UID)))
}

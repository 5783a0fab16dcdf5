package controllers

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
)

// secretIndex finds the endpoints that refer to a Secret.
const secretIndex = ".spec.signing.secretRef.name" //nolint:gosec // the name of an index

// newScheme returns the types that this part reads and writes.
func newScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(v1alpha1.AddToScheme(scheme))
	return scheme
}

// cacheOptions says what is kept in memory of what is watched: endpoints, and of Secrets and namespaces the metadata.
//
// An applied Secret has its values a second time in an annotation (kubectl.kubernetes.io/last-applied-configuration),
// and their field names in managedFields. Both are stripped before the cache holds the object.
func cacheOptions(namespaces []string, resync time.Duration, endpoints, spaces *deletions) cache.Options {
	o := cache.Options{
		ByObject: map[client.Object]cache.ByObject{
			&v1alpha1.WebhookEndpoint{}: {Transform: observing(endpoints)},
			&corev1.Secret{}:            {Transform: strip},
			&corev1.Namespace{}:         {Transform: observing(spaces)},
		},
		DefaultTransform: strip,
	}
	if resync > 0 {
		o.SyncPeriod = &resync
	}
	if len(namespaces) > 0 {
		o.DefaultNamespaces = map[string]cache.Config{}
		for _, namespace := range namespaces {
			o.DefaultNamespaces[namespace] = cache.Config{}
		}
	}
	return o
}

// strip removes what nobody here reads. Objects in the cache are never written back whole, so nothing is lost.
func strip(object any) (any, error) {
	if o, ok := object.(metav1.Object); ok {
		o.SetManagedFields(nil)
		o.SetAnnotations(nil)
	}
	return object, nil
}

func observing(d *deletions) toolscache.TransformFunc {
	return func(object any) (any, error) {
		if o, ok := object.(metav1.Object); ok {
			d.observe(o)
		}
		return strip(object)
	}
}

// warm makes the caches fill before this replica is the leader, so that it can take over within seconds, and adds the
// index.
func warm(ctx context.Context, c cache.Cache, allNamespaces bool) error {
	err := c.IndexField(ctx, &v1alpha1.WebhookEndpoint{}, secretIndex, func(o client.Object) []string {
		if endpoint, ok := o.(*v1alpha1.WebhookEndpoint); ok {
			return []string{endpoint.Spec.Signing.SecretRef.Name}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("index endpoints by their Secret: %w", err)
	}
	kinds := []string{"Secret"}
	if allNamespaces {
		kinds = append(kinds, "Namespace")
	}
	for _, kind := range kinds {
		if _, err := c.GetInformer(ctx, metadataOf(kind), cache.BlockUntilSynced(false)); err != nil {
			return fmt.Errorf("watch the metadata of kind %s: %w", kind, err)
		}
	}
	return nil
}

// metadataOf returns an object to read the metadata of a core kind with.
func metadataOf(kind string) *metav1.PartialObjectMetadata {
	meta := &metav1.PartialObjectMetadata{}
	meta.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind(kind))
	return meta
}

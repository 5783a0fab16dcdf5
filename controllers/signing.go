package controllers

import (
	"cmp"
	"context"
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/signature"
)

// signingSecret is what an endpoint's Secret gave, just now.
type signingSecret struct {
	key      signature.Key // zero: none
	value    []byte        // what key was read from; the caller clears it
	hold     hold          // why there is no key
	revision string        // of the Secret; "": there is none
}

// secretName names the Secret that an endpoint refers to.
func secretName(object *v1alpha1.WebhookEndpoint) types.NamespacedName {
	return types.NamespacedName{Namespace: object.Namespace, Name: object.Spec.Signing.SecretRef.Name}
}

// secretRevision tells versions of an endpoint's Secret apart, from the cache, which knows no values. "": there is none.
func (r *Reconciler) secretRevision(ctx context.Context, object *v1alpha1.WebhookEndpoint) (string, error) {
	meta := metadataOf("Secret")
	if err := r.client.Get(ctx, secretName(object), meta); err != nil {
		return "", client.IgnoreNotFound(err)
	}
	return revision(meta), nil
}

func revision(o metav1.Object) string { return string(o.GetUID()) + "/" + o.GetResourceVersion() }

// readSecret reads the signing key from the API server itself. A Secret that is not there, or holds no key, is a hold
// and no error: the watch tells when that changes.
func (r *Reconciler) readSecret(ctx context.Context, object *v1alpha1.WebhookEndpoint) (signingSecret, error) {
	name := secretName(object)
	secret := &corev1.Secret{}
	// At its most verbose client-go logs the bodies of responses to the logger of the context.
	err := r.live.Get(logr.NewContext(ctx, logr.Discard()), name, secret)
	if apierrors.IsNotFound(err) {
		return signingSecret{hold: hold{v1alpha1.ReasonSecretNotFound, fmt.Sprintf(
			"spec.signing.secretRef.name: there is no Secret %q in namespace %s; create it, deliveries wait until then", name.Name, name.Namespace)}}, nil
	}
	if err != nil {
		return signingSecret{}, fmt.Errorf("read Secret %s: %w", name, err)
	}
	s := signingSecret{revision: revision(secret)}
	entry := cmp.Or(object.Spec.Signing.SecretRef.Key, v1alpha1.DefaultSigningSecretKey)
	value, ok := secret.Data[entry]
	if !ok {
		s.hold = hold{v1alpha1.ReasonSecretKeyMissing, fmt.Sprintf(
			"spec.signing.secretRef.key: Secret %q has no entry %q; add it, or name the entry that holds the signing key", name.Name, entry)}
		return s, nil
	}
	if s.key, err = signature.ParseKey(value); err != nil {
		s.hold = hold{v1alpha1.ReasonInvalidSigningKey, fmt.Sprintf("Secret %q, entry %q: %v", name.Name, entry, err)}
		return s, nil
	}
	s.value = value // as it is: what reads it again drops one trailing newline, not two
	return s, nil
}

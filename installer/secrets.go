package installer

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// ErrEntryMissing is returned for a Secret that exists and lacks the entry that is wanted. It is never added: whoever
// made the Secret meant something by it.
var ErrEntryMissing = errors.New("the Secret exists and has no such entry")

// Wanted is a Secret that an installation cannot do without.
type Wanted struct {
	// Name of the Secret, and the Entry in it.
	Name, Entry string
	// Make returns the value of a new one. It is not called while the Secret exists.
	Make func() (string, error)
}

// Outcome is what EnsureSecrets found or did.
type Outcome struct {
	Name    string
	Created bool
}

// EnsureSecrets creates the Secrets that are absent and never changes one: what they hold has been used by then, and a
// new value would lock everybody out. Two at once are safe. It needs the verbs create, and get on these names.
//
// The Secrets have no label of the release: tools that delete what they did not apply themselves find their own by it,
// and must not find these. They stay when the release is uninstalled.
func EnsureSecrets(ctx context.Context, secrets corev1client.SecretInterface, wanted []Wanted) ([]Outcome, error) {
	var outcomes []Outcome
	for _, w := range wanted {
		created, err := ensureSecret(ctx, secrets, w)
		if err != nil {
			return outcomes, fmt.Errorf("secret %s: %w", w.Name, err)
		}
		outcomes = append(outcomes, Outcome{Name: w.Name, Created: created})
	}
	return outcomes, nil
}

func ensureSecret(ctx context.Context, secrets corev1client.SecretInterface, w Wanted) (created bool, err error) {
	existing, err := secrets.Get(ctx, w.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		value, err := w.Make()
		if err != nil {
			return false, fmt.Errorf("make entry %q: %w", w.Entry, err)
		}
		_, err = secrets.Create(ctx, newSecret(w, value), metav1.CreateOptions{FieldManager: "postrider-installer"})
		if err == nil {
			return true, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return false, fmt.Errorf("create: %w", err)
		}
		existing, err = secrets.Get(ctx, w.Name, metav1.GetOptions{}) // somebody was faster
		if err != nil {
			return false, fmt.Errorf("read: %w", err)
		}
	} else if err != nil {
		return false, fmt.Errorf("read: %w", err)
	}
	if len(existing.Data[w.Entry]) == 0 {
		return false, fmt.Errorf("%w %q; add it, or delete the Secret if nothing was encrypted or set up with it", ErrEntryMissing, w.Entry)
	}
	return false, nil
}

func newSecret(w Wanted, value string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name:        w.Name,
			Labels:      map[string]string{"app.kubernetes.io/part-of": "postrider"},
			Annotations: map[string]string{"webhooks.postrider.dev/keep": "made once by `postrider secrets ensure`; the database is of no use without it: keep a copy"},
		},
		StringData: map[string]string{w.Entry: value},
	}
}

package access

import (
	"context"
	"fmt"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// May returns nil if an identity may do something with a resource, or ErrRefused.
func (a *API) May(ctx context.Context, who Identity, what authorizationv1.ResourceAttributes) error {
	return a.permitted(ctx, who, authorizationv1.SubjectAccessReviewSpec{ResourceAttributes: &what})
}

// MayReach returns nil if an identity may do something with a path that is no resource's, as /metrics, or ErrRefused.
// The verb is an HTTP method in lower case.
func (a *API) MayReach(ctx context.Context, who Identity, what authorizationv1.NonResourceAttributes) error {
	return a.permitted(ctx, who, authorizationv1.SubjectAccessReviewSpec{NonResourceAttributes: &what})
}

func (a *API) permitted(ctx context.Context, who Identity, spec authorizationv1.SubjectAccessReviewSpec) error {
	spec.User, spec.UID, spec.Groups = who.Name, who.UID, who.Groups
	if who.Extra != nil {
		spec.Extra = make(map[string]authorizationv1.ExtraValue, len(who.Extra))
		for name, values := range who.Extra {
			spec.Extra[name] = values
		}
	}
	var answer *authorizationv1.SubjectAccessReview
	if err := a.review(ctx, func(ctx context.Context) (err error) {
		answer, err = a.accesses.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return fmt.Errorf("review access: %w", err)
	}
	return permits(answer.Status)
}

// permits reads the verdict. Denied outweighs allowed. No opinion refuses, also where it comes from an error while rules
// were evaluated: the others were, and none allowed it; nor does such an error take back what another rule allows.
func permits(status authorizationv1.SubjectAccessReviewStatus) error {
	if status.Denied || !status.Allowed {
		return ErrRefused
	}
	return nil
}

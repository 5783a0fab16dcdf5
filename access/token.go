package access

import (
	"context"
	"fmt"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Identity is whom the Kubernetes API takes a token's bearer for.
type Identity struct {
	Name   string // of the user, see [Identity.Namespace] for that of a ServiceAccount
	UID    string
	Groups []string
	Extra  map[string][]string
}

// Whose returns the identity that a token belongs to, or ErrRefused. With an audience, the API server must confirm that
// the token was issued for it: an answer without audiences, which some authenticators give, is a refusal. With "" the
// token must be one for the API server itself.
func (a *API) Whose(ctx context.Context, token, audience string) (Identity, error) {
	question := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	if audience != "" {
		question.Spec.Audiences = []string{audience}
	}
	var answer *authenticationv1.TokenReview
	if err := a.review(ctx, func(ctx context.Context) (err error) {
		answer, err = a.tokens.Create(ctx, question, metav1.CreateOptions{})
		return err
	}); err != nil {
		return Identity{}, fmt.Errorf("review a token: %w", err)
	}
	return accepted(answer.Status, audience)
}

// accepted reads the verdict. An error beside a token that is called authentic, which no API server answers, refuses.
func accepted(status authenticationv1.TokenReviewStatus, audience string) (Identity, error) {
	if !status.Authenticated || status.Error != "" || (audience != "" && !slices.Contains(status.Audiences, audience)) {
		return Identity{}, ErrRefused
	}
	who := Identity{Name: status.User.Username, UID: status.User.UID, Groups: authenticated(status.User)}
	if status.User.Extra != nil {
		who.Extra = make(map[string][]string, len(status.User.Extra))
		for name, values := range status.User.Extra {
			who.Extra[name] = values
		}
	}
	return who, nil
}

const (
	anonymous         = "system:anonymous"
	inAuthenticated   = "system:authenticated"
	inUnauthenticated = "system:unauthenticated"
)

// authenticated returns a user's groups with that of all who have been authenticated, which an authenticator may leave
// to whoever asked it to add, and which roles may be bound to.
func authenticated(user authenticationv1.UserInfo) []string {
	if user.Username == anonymous || slices.Contains(user.Groups, inAuthenticated) || slices.Contains(user.Groups, inUnauthenticated) {
		return user.Groups
	}
	return append(slices.Clone(user.Groups), inAuthenticated)
}

// accountPrefix begins the user name of a ServiceAccount, system:serviceaccount:NAMESPACE:NAME.
const accountPrefix = "system:serviceaccount:"

// Namespace is that of the ServiceAccount that the identity is, "" if it is none. A user name that only resembles a
// ServiceAccount's has none: both parts must be names that Kubernetes accepts.
func (i Identity) Namespace() string {
	account, ok := strings.CutPrefix(i.Name, accountPrefix)
	if !ok {
		return ""
	}
	namespace, name, ok := strings.Cut(account, ":")
	if !ok || len(validation.ValidateNamespaceName(namespace, false)) > 0 ||
		len(validation.ValidateServiceAccountName(name, false)) > 0 { // which has no colon
		return ""
	}
	return namespace
}

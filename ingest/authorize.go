package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"
)

// What RBAC is asked about: a subresource, so that no wildcard on events grants it.
const (
	group       = "webhooks.postrider.dev"
	version     = "v1alpha1"
	resource    = "webhookendpoints"
	subresource = "events"

	verbPost = "create"
	verbRead = "get"
)

// accessReviewer asks the API server what an identity may do.
type accessReviewer struct{ authorizer authorizer.Authorizer }

func newAccessReviewer(config *rest.Config, client *http.Client) (*accessReviewer, error) {
	reviews, err := authorizationclient.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, fmt.Errorf("make the client for access reviews: %w", err)
	}
	delegate, err := authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: reviews,
		WebhookRetryBackoff:       reviewBackoff(),
		AllowCacheTTL:             0, // verdicts remembers
		DenyCacheTTL:              0,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("make the authorizer: %w", err)
	}
	return &accessReviewer{authorizer: delegate}, nil
}

// ask returns the question whether an identity may do something with the events of a namespace.
func (a *accessReviewer) ask(who identity, verb, namespace string) func(context.Context) (permission, error) {
	return func(ctx context.Context) (permission, error) {
		decision, _, err := a.authorizer.Authorize(ctx, authorizer.AttributesRecord{
			User: who.info, Verb: verb, Namespace: namespace, ResourceRequest: true,
			APIGroup: group, APIVersion: version, Resource: resource, Subresource: subresource,
		})
		switch {
		case decision == authorizer.DecisionAllow && err == nil:
			return permission{}, nil
		case decision == authorizer.DecisionNoOpinion && err != nil:
			return permission{}, err // the library fails with no opinion where it could not ask
		}
		return permission{}, errRefused
	}
}

// ownExtra prefixes what differs between the tokens of one ServiceAccount (its pod, its token's id). RBAC does not look
// at it, and with it in the key a denial heard by one token would leave another's allowing answer in memory.
const ownExtra = "authentication.kubernetes.io/"

// digest is the key of what an identity may do: everything of it that an authorizer may decide by.
func (i identity) digest(verb, namespace string) digest {
	return accessDigest(i.info, verb, namespace)
}

func accessDigest(who user.Info, verb, namespace string) digest {
	hash := sha256.New()
	part := func(values ...string) {
		var length [8]byte
		binary.BigEndian.PutUint64(length[:], uint64(len(values)))
		hash.Write(length[:])
		for _, value := range values {
			binary.BigEndian.PutUint64(length[:], uint64(len(value)))
			hash.Write(length[:])
			hash.Write([]byte(value))
		}
	}
	part(verb, namespace, who.GetName(), who.GetUID())
	part(slices.Sorted(slices.Values(who.GetGroups()))...)
	extra := who.GetExtra()
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		if !strings.HasPrefix(name, ownExtra) {
			part(name)
			part(extra[name]...)
		}
	}
	return digest(hash.Sum(nil))
}

package ingest

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/postrider/postrider/access"
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

// may returns the question whether an identity may do something with the events of a namespace.
func may(api *access.API, who identity, verb, namespace string) func(context.Context) (permission, error) {
	return func(ctx context.Context) (permission, error) {
		return permission{}, api.May(ctx, who.Identity, authorizationv1.ResourceAttributes{
			Verb: verb, Namespace: namespace, Group: group, Version: version, Resource: resource, Subresource: subresource,
		})
	}
}

// ownExtra prefixes what differs between the tokens of one ServiceAccount (its pod, its token's id). RBAC does not look
// at it, and with it in the key a denial heard by one token would leave another's allowing answer in memory.
const ownExtra = "authentication.kubernetes.io/"

// digest is the key of what an identity may do: everything of it that an authorizer may decide by.
func (i identity) digest(verb, namespace string) digest {
	return accessDigest(i.Identity, verb, namespace)
}

func accessDigest(who access.Identity, verb, namespace string) digest {
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
	part(verb, namespace, who.Name, who.UID)
	part(slices.Sorted(slices.Values(who.Groups))...)
	for _, name := range slices.Sorted(maps.Keys(who.Extra)) {
		if !strings.HasPrefix(name, ownExtra) {
			part(name)
			part(who.Extra[name]...)
		}
	}
	return digest(hash.Sum(nil))
}

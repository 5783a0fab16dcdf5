package controllers

import (
	"bytes"
	"slices"

	"github.com/postrider/postrider/store"
)

// same reports whether a row holds already all that a change would write. ApplyEndpoint writes always, and each write
// makes every dispatcher read the row anew; so nothing is written that is the same.
//
// Sealed values are compared as they are: whoever makes the change takes over the row's where they still serve.
func same(row store.Endpoint, c store.EndpointChange) bool {
	return row.UID == c.UID &&
		row.NamespaceUID == c.NamespaceUID &&
		row.Generation == c.Generation &&
		row.HoldReason == c.HoldReason &&
		sameSpec(row.Spec, c.Spec) &&
		slices.EqualFunc(row.Keys, c.Keys, sameKey)
}

func sameKey(a, b store.SealedKey) bool {
	return a.Fingerprint == b.Fingerprint && a.ExpiresAt.Equal(b.ExpiresAt) && bytes.Equal(a.Sealed, b.Sealed)
}

func sameSpec(a, b store.EndpointSpec) bool {
	return a.State == b.State &&
		a.URL == b.URL &&
		slices.Equal(a.EventTypes, b.EventTypes) &&
		a.Timeout == b.Timeout &&
		a.MaxConcurrency == b.MaxConcurrency &&
		sameRate(a.Rate, b.Rate) &&
		a.Ordered == b.Ordered &&
		a.Payload == b.Payload &&
		bytes.Equal(a.Headers, b.Headers) &&
		a.MaxAttempts == b.MaxAttempts &&
		a.MaxDuration == b.MaxDuration &&
		a.BackoffBase == b.BackoffBase &&
		a.BackoffFactor == b.BackoffFactor &&
		a.BackoffCap == b.BackoffCap &&
		slices.Equal(a.Schedule, b.Schedule) &&
		a.FailureThreshold == b.FailureThreshold &&
		a.Cooldown == b.Cooldown &&
		a.MaxCooldown == b.MaxCooldown
}

func sameRate(a, b *store.Rate) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

package controllers

import (
	"time"

	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
)

// maxKeys bounds the keys that sign at once.
const maxKeys = 10

// heldKey is a signing key with its row's form of it. A key that is not sealed yet has no Sealed.
type heldKey struct {
	store.SealedKey
	key signature.Key
}

// rotate returns the keys that sign from now on, the newest first: present, and the older ones of held (newest first)
// whose end has not come.
//
// The key that present replaces ends one window from now; a key that was replaced earlier keeps its own end. No old key
// outlives the window as it stands now, so whoever shortens the window ends them sooner, with 0 at once; whoever
// lengthens it gives nothing back. A key that comes back becomes the present one. Of more than ten, the oldest go.
//
// A zero present means that the Secret gives no key: then the present one stays, and only ends are kept.
//
// Ends are whole seconds, as the status shows them. The result depends on now only where an end has come or is set, so
// that calling it again changes nothing.
func rotate(held []heldKey, present signature.Key, window time.Duration, now time.Time) []heldKey {
	latest := now.Add(window).Truncate(time.Second).UTC()
	signing := make([]heldKey, 0, len(held)+1)
	if !present.IsZero() {
		signing = append(signing, newest(held, present))
	}
	for _, k := range held {
		if !present.IsZero() {
			if k.key.Equal(present) {
				continue
			}
			if k.ExpiresAt.IsZero() || k.ExpiresAt.After(latest) {
				k.ExpiresAt = latest
			}
		}
		if k.ExpiresAt.IsZero() || k.ExpiresAt.After(now) {
			signing = append(signing, k)
		}
	}
	if len(signing) > maxKeys {
		signing = signing[:maxKeys]
	}
	return signing
}

// newest is the present key in the form that is held already, if it is.
func newest(held []heldKey, present signature.Key) heldKey {
	for _, k := range held {
		if k.key.Equal(present) {
			k.ExpiresAt = time.Time{}
			return k
		}
	}
	return heldKey{key: present, SealedKey: store.SealedKey{Fingerprint: present.Fingerprint()}}
}

// nextEnd is when the first of the keys ends; zero: none does.
func nextEnd(keys []store.SealedKey) time.Time {
	var next time.Time
	for _, k := range keys {
		if !k.ExpiresAt.IsZero() && (next.IsZero() || k.ExpiresAt.Before(next)) {
			next = k.ExpiresAt
		}
	}
	return next
}

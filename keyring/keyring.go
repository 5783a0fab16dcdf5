package keyring

import (
	"crypto/cipher"
	"fmt"
	"log/slog"
	"slices"
	"strings"
)

// Keyring holds named keys: the first one encrypts, all of them decrypt. It is
// made by [Parse], never changes afterwards, and may be used by many goroutines
// at once. It shows the names of its keys, never their bytes, however it is
// printed or logged.
type Keyring struct {
	keys []namedKey // at least one
}

// namedKey keeps the prepared cipher; the bytes it was made of are not kept.
type namedKey struct {
	name string

	// Behind a function, for fmt cannot call our methods where a struct holds a
	// Keyring in an unexported field, follows pointers there, and the cipher's
	// schedule begins with the key. Of a function it prints the address alone.
	aead func() cipher.AEAD
}

// Primary is the name of the key that [Keyring.Seal] uses.
func (k *Keyring) Primary() string { return k.keys[0].name }

// Names are the names of all keys in the order of the file, the primary first.
func (k *Keyring) Names() []string {
	names := make([]string, len(k.keys))
	for i := range k.keys {
		names[i] = k.keys[i].name
	}
	return names
}

// Has reports whether a key of that name can decrypt.
func (k *Keyring) Has(name string) bool {
	_, ok := k.find(name)
	return ok
}

func (k *Keyring) find(name string) (cipher.AEAD, bool) {
	i := slices.IndexFunc(k.keys, func(n namedKey) bool { return n.name == name })
	if i < 0 {
		return nil, false
	}
	return k.keys[i].aead(), true
}

// String returns "keyring [2026-08 2025-11]": names, the primary first.
func (k *Keyring) String() string {
	if k == nil || len(k.keys) == 0 {
		return "keyring []"
	}
	return "keyring [" + strings.Join(k.Names(), " ") + "]"
}

// GoString answers %#v as [Keyring.String] does.
func (k *Keyring) GoString() string { return k.String() }

// Format answers every verb of fmt as [Keyring.String] does.
func (k *Keyring) Format(s fmt.State, _ rune) { _, _ = fmt.Fprint(s, k.String()) }

// LogValue logs the names.
func (k *Keyring) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText gives [Keyring.String]; there is no way back.
func (k *Keyring) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

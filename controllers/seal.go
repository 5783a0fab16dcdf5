package controllers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
)

// What is sealed under store.ColumnKey is the Secret's value as it is, which signature.ParseKey reads again; under
// store.ColumnHeaders it is the text of store.MarshalHeaders. The endpoint's public id and the column
// are the associated data.

// sealer seals and opens the columns of one endpoint's row.
type sealer struct {
	keyring *keyring.Keyring
	id      string
}

func sealerOf(ring *keyring.Keyring, id uuid.UUID) sealer {
	return sealer{keyring: ring, id: id.String()}
}

// openKeys opens a row's keys. One that is corrupt is left out and counted: the present one comes back from its Secret,
// an older one is lost. One that is sealed with a key we do not have is an error: another replica has it.
func (s sealer) openKeys(keys []store.SealedKey) (held []heldKey, corrupt int, err error) {
	for _, k := range keys {
		value, err := s.keyring.Open(k.Sealed, s.id, store.ColumnKey)
		if errors.Is(err, keyring.ErrCorrupt) {
			corrupt++
			continue
		}
		if err != nil {
			return nil, 0, fmt.Errorf("open signing key %s: %w", k.Fingerprint, err)
		}
		key, err := signature.ParseKey(value)
		clear(value)
		if err != nil {
			corrupt++
			continue
		}
		held = append(held, heldKey{SealedKey: k, key: key})
	}
	return held, corrupt, nil
}

// sealKeys returns the keys as the row keeps them. value is that of the present key, the first, which is sealed if it
// was not held before. What is under an older key of the keyring is sealed anew.
func (s sealer) sealKeys(keys []heldKey, value []byte) ([]store.SealedKey, error) {
	var sealed []store.SealedKey
	for i, k := range keys {
		var err error
		switch {
		case k.Sealed == nil && i == 0:
			k.Sealed, err = s.keyring.Seal(value, s.id, store.ColumnKey)
		default:
			k.Sealed, err = s.reseal(k.Sealed, store.ColumnKey)
		}
		if err != nil {
			return nil, fmt.Errorf("seal signing key %s: %w", k.Fingerprint, err)
		}
		sealed = append(sealed, k.SealedKey)
	}
	return sealed, nil
}

// sealHeaders returns headers as the row keeps them: the stored form if it says the same and is under the primary key.
func (s sealer) sealHeaders(headers []store.Header, stored []byte) ([]byte, error) {
	text, err := store.MarshalHeaders(headers)
	if err != nil || text == nil {
		return nil, err
	}
	if stored != nil {
		open, err := s.keyring.Open(stored, s.id, store.ColumnHeaders)
		if err == nil && bytes.Equal(open, text) && s.underPrimary(stored) {
			return stored, nil
		}
	}
	sealed, err := s.keyring.Seal(text, s.id, store.ColumnHeaders)
	if err != nil {
		return nil, fmt.Errorf("seal headers: %w", err)
	}
	return sealed, nil
}

// reseal returns a sealed value under the primary key: the same one, if it is already.
func (s sealer) reseal(sealed []byte, column string) ([]byte, error) {
	if s.underPrimary(sealed) {
		return sealed, nil
	}
	value, err := s.keyring.Open(sealed, s.id, column)
	if err != nil {
		return nil, err
	}
	defer clear(value)
	return s.keyring.Seal(value, s.id, column)
}

func (s sealer) underPrimary(sealed []byte) bool {
	name, err := keyring.KeyName(sealed)
	return err == nil && name == s.keyring.Primary()
}

const sealedPage = 500

// ErrKeyMissing is what CheckKeyring returns, wrapped, where a key is still needed.
var ErrKeyMissing = errors.New("the keyring lacks a key that stored values are encrypted with")

// CheckKeyring reads all encrypted values of the store and reports, as an ErrKeyMissing, the keys that the keyring
// lacks, with the number of endpoints that need each. Any other error is the store's.
func CheckKeyring(ctx context.Context, s interface {
	SealedValues(ctx context.Context, after int64, n int) ([]store.SealedValue, error)
}, ring *keyring.Keyring,
) error {
	needed := map[string]map[int64]bool{} // key name: endpoints
	for after := int64(0); ; {
		values, err := s.SealedValues(ctx, after, sealedPage)
		if err != nil {
			return err
		}
		if len(values) == 0 {
			break
		}
		for _, v := range values {
			after = max(after, v.EndpointID)
			// A corrupt value names no key; its endpoint's reconcile deals with it.
			name, err := keyring.KeyName(v.Sealed)
			if err != nil || ring.Has(name) {
				continue
			}
			if needed[name] == nil {
				needed[name] = map[int64]bool{}
			}
			needed[name][v.EndpointID] = true
		}
	}
	if len(needed) == 0 {
		return nil
	}
	var missing []string
	for name, endpoints := range needed {
		missing = append(missing, fmt.Sprintf("%q (needed by %d endpoints)", name, len(endpoints)))
	}
	slices.Sort(missing)
	return fmt.Errorf("%w: %s; add it to the end of the keyring again, and remove it only once all is encrypted anew",
		ErrKeyMissing, strings.Join(missing, ", "))
}

package keyring

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The sealed form, version 1:
//
//	1 byte    version, 1
//	1 byte    length of the key's name
//	n bytes   the key's name
//	12 bytes  nonce
//	m bytes   AES-256-GCM ciphertext
//	16 bytes  tag
//
// Authenticated with it: everything before the nonce, and where it belongs.
const (
	version      = 1
	headerBytes  = 2
	gcmOverhead  = 12 + 16
	maxSealBytes = headerBytes + MaxNameBytes + MaxPlaintextBytes + gcmOverhead
)

// MaxPlaintextBytes is the longest plaintext that is sealed: the size of the
// largest Kubernetes Secret, where all of it comes from.
const MaxPlaintextBytes = 1 << 20

var (
	// ErrCorrupt is returned for bytes that no key of this keyring ever sealed
	// for this place: truncated, altered, or copied from another row.
	ErrCorrupt = errors.New("sealed value is corrupt or belongs elsewhere")

	// ErrUnknownKey is what every [*UnknownKeyError] is, for [errors.Is].
	ErrUnknownKey = errors.New("sealed with a key that is not in the keyring")
)

// UnknownKeyError says which key is missing; putting it back at the end of the
// keyring file is the remedy.
type UnknownKeyError struct {
	Name string // a valid key name
}

// Error names the key and the remedy.
func (e *UnknownKeyError) Error() string {
	return fmt.Sprintf("%v: %q; add this key to the end of the keyring again", ErrUnknownKey, e.Name)
}

// Is reports whether target is [ErrUnknownKey].
func (e *UnknownKeyError) Is(target error) bool { return target == ErrUnknownKey }

// Seal encrypts plaintext with the primary key and binds it to a place: the
// same strings, in the same order, have to be given to [Keyring.Open]. Give the
// endpoint's id and the column. Two calls never give the same bytes.
//
// It fails for a plaintext over [MaxPlaintextBytes] and for no place at all,
// which could only be a mistake.
func (k *Keyring) Seal(plaintext []byte, place ...string) ([]byte, error) {
	if len(plaintext) > MaxPlaintextBytes {
		return nil, fmt.Errorf("keyring: sealing %d bytes, at most %d are possible", len(plaintext), MaxPlaintextBytes)
	}
	if len(place) == 0 {
		return nil, errors.New("keyring: sealing needs a place: the row's id and the column")
	}
	primary := k.keys[0]
	header := make([]byte, 0, headerBytes+len(primary.name)+len(plaintext)+gcmOverhead)
	header = append(header, version, byte(len(primary.name)))
	header = append(header, primary.name...)
	return primary.aead().Seal(header, nil, plaintext, associatedData(header, place)), nil //nolint:gosec // no nonce is given: the AEAD draws one
}

// Open decrypts what [Keyring.Seal] made for the same place. Errors: one that is
// [ErrCorrupt], or an [*UnknownKeyError].
func (k *Keyring) Open(sealed []byte, place ...string) ([]byte, error) {
	name, err := KeyName(sealed)
	if err != nil {
		return nil, err
	}
	aead, ok := k.find(name)
	if !ok {
		return nil, &UnknownKeyError{Name: name}
	}
	header, box := sealed[:headerBytes+len(name)], sealed[headerBytes+len(name):]
	plaintext, err := aead.Open(nil, nil, box, associatedData(header, place))
	if err != nil {
		// The cipher's error says no more, and is no part of our promise.
		return nil, ErrCorrupt
	}
	return plaintext, nil
}

// KeyName tells which key sealed a value, without opening it and without a
// keyring; it is not authenticated. The error is one that is [ErrCorrupt].
func KeyName(sealed []byte) (string, error) {
	if len(sealed) < headerBytes || len(sealed) > maxSealBytes {
		return "", fmt.Errorf("%w: %d bytes long", ErrCorrupt, len(sealed))
	}
	if sealed[0] != version {
		return "", fmt.Errorf("%w: version %d, this release reads version %d", ErrCorrupt, sealed[0], version)
	}
	length := int(sealed[1])
	if len(sealed) < headerBytes+length+gcmOverhead {
		return "", fmt.Errorf("%w: truncated", ErrCorrupt)
	}
	name := string(sealed[headerBytes : headerBytes+length])
	if !validName(name) {
		return "", fmt.Errorf("%w: no valid key name in it", ErrCorrupt)
	}
	return name, nil
}

// associatedData is what is authenticated beside the plaintext: the header, how
// many strings name the place, and each of them behind its length, so that no
// two places read the same ("ab","c" and "a","bc").
func associatedData(header []byte, place []string) []byte {
	size := len(header) + 8
	for _, s := range place {
		size += 8 + len(s)
	}
	data := make([]byte, 0, size)
	data = append(data, header...)
	data = binary.BigEndian.AppendUint64(data, uint64(len(place)))
	for _, s := range place {
		data = binary.BigEndian.AppendUint64(data, uint64(len(s)))
		data = append(data, s...)
	}
	return data
}

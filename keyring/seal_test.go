package keyring_test

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/postrider/postrider/keyring"
)

const (
	endpointID = "0198c1f2-7d11-7c39-9a55-1f0a9c2e77aa"
	column     = "signing_keys"
)

func mustSeal(t testing.TB, ring *keyring.Keyring, plaintext string, place ...string) []byte {
	t.Helper()
	sealed, err := ring.Seal([]byte(plaintext), place...)
	if err != nil {
		t.Fatalf("Seal: %v", err)
	}
	return sealed
}

func TestOpenGivesBackWhatWasSealed(t *testing.T) {
	t.Parallel()
	ring := mustParse(t, line("k", 1))
	for name, plaintext := range map[string]string{
		"a key": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "nothing": "", "binary": "\x00\xff\n",
		"the longest": strings.Repeat("x", keyring.MaxPlaintextBytes),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sealed := mustSeal(t, ring, plaintext, endpointID, column)
			if len(plaintext) > 2 && bytes.Contains(sealed, []byte(plaintext)) {
				t.Error("the plaintext stands in the sealed bytes")
			}
			got, err := ring.Open(sealed, endpointID, column)
			if err != nil || string(got) != plaintext {
				t.Errorf("got %d bytes and %v, want the %d sealed", len(got), err, len(plaintext))
			}
		})
	}
}

func TestSealRefuses(t *testing.T) {
	t.Parallel()
	ring := mustParse(t, line("k", 1))
	if _, err := ring.Seal(make([]byte, keyring.MaxPlaintextBytes+1), endpointID, column); err == nil {
		t.Error("too long a plaintext: got no error")
	}
	if _, err := ring.Seal([]byte("x")); err == nil || !strings.Contains(err.Error(), "place") {
		t.Errorf("no place: got %v", err)
	}
}

// TestACiphertextOpensInItsPlaceOnly moves one to other rows and columns, and to
// places that would read the same if they were merely strung together.
func TestACiphertextOpensInItsPlaceOnly(t *testing.T) {
	t.Parallel()
	ring := mustParse(t, line("k", 1))
	sealed := mustSeal(t, ring, "secret", endpointID, column)
	for name, place := range map[string][]string{
		"another row":           {"0198c1f2-7d11-7c39-9a55-000000000000", column},
		"another column":        {endpointID, "headers"},
		"swapped":               {column, endpointID},
		"cut elsewhere":         {endpointID + column[:1], column[1:]},
		"strung together":       {endpointID + column},
		"the row only":          {endpointID},
		"an empty one more":     {endpointID, column, ""},
		"an empty one before":   {"", endpointID, column},
		"nothing":               nil,
		"in capitals":           {strings.ToUpper(endpointID), column},
		"with a length in it":   {endpointID, "\x00\x00\x00\x00\x00\x00\x00\x0c" + column},
		"with a NUL in between": {endpointID + "\x00" + column},
	} {
		if got, err := ring.Open(sealed, place...); !errors.Is(err, keyring.ErrCorrupt) {
			t.Errorf("%s: got %q and %v, want %v", name, got, err, keyring.ErrCorrupt)
		}
	}
	if _, err := ring.Open(sealed, endpointID, column); err != nil {
		t.Errorf("its own place: %v", err)
	}
}

func TestEveryFlippedBitIsNoticed(t *testing.T) {
	t.Parallel()
	ring := mustParse(t, line("new", 1), line("old", 2))
	sealed := mustSeal(t, ring, "secret", endpointID, column)
	for i := range sealed {
		for bit := range 8 {
			flipped := bytes.Clone(sealed)
			flipped[i] ^= 1 << bit
			got, err := ring.Open(flipped, endpointID, column)
			// In the name a flip may make another valid name.
			if !errors.Is(err, keyring.ErrCorrupt) && !errors.Is(err, keyring.ErrUnknownKey) {
				t.Fatalf("byte %d, bit %d: got %q and %v", i, bit, got, err)
			}
		}
	}
}

func TestEveryTruncationIsNoticed(t *testing.T) {
	t.Parallel()
	ring := mustParse(t, line("k", 1))
	sealed := mustSeal(t, ring, "secret", endpointID, column)
	for i := range sealed {
		if _, err := ring.Open(sealed[:i], endpointID, column); !errors.Is(err, keyring.ErrCorrupt) {
			t.Errorf("first %d bytes: got %v, want %v", i, err, keyring.ErrCorrupt)
		}
	}
	for name, other := range map[string][]byte{
		"nil": nil, "a byte more": append(bytes.Clone(sealed), 0), "twice": append(bytes.Clone(sealed), sealed...),
		"plaintext": []byte("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"), "too long": append(bytes.Clone(sealed), make([]byte, 2<<20)...),
	} {
		if _, err := ring.Open(other, endpointID, column); !errors.Is(err, keyring.ErrCorrupt) {
			t.Errorf("%s: got %v, want %v", name, err, keyring.ErrCorrupt)
		}
	}
}

func TestALaterVersionSaysSo(t *testing.T) {
	t.Parallel()
	ring := mustParse(t, line("k", 1))
	sealed := mustSeal(t, ring, "secret", endpointID, column)
	sealed[0] = 2
	if _, err := ring.Open(sealed, endpointID, column); !errors.Is(err, keyring.ErrCorrupt) || !strings.Contains(err.Error(), "version 2") {
		t.Errorf("got %v", err)
	}
}

// TestRotation goes the way of an operator: a new key at the head, everything
// sealed anew, the old key removed.
func TestRotation(t *testing.T) {
	t.Parallel()
	before := mustParse(t, line("old", 1))
	sealed := mustSeal(t, before, "secret", endpointID, column)

	both := mustParse(t, line("new", 2), line("old", 1))
	plaintext, err := both.Open(sealed, endpointID, column)
	if err != nil || string(plaintext) != "secret" {
		t.Fatalf("with both keys: got %q and %v", plaintext, err)
	}
	if name, err := keyring.KeyName(sealed); err != nil || name != "old" || name == both.Primary() {
		t.Fatalf("got key name %q and %v, want old", name, err)
	}
	resealed := mustSeal(t, both, string(plaintext), endpointID, column)
	if name, err := keyring.KeyName(resealed); err != nil || name != "new" {
		t.Fatalf("sealed anew: got key name %q and %v, want new", name, err)
	}

	after := mustParse(t, line("new", 2))
	if got, err := after.Open(resealed, endpointID, column); err != nil || string(got) != "secret" {
		t.Errorf("after removal: got %q and %v", got, err)
	}
	_, err = after.Open(sealed, endpointID, column)
	var unknown *keyring.UnknownKeyError
	if !errors.As(err, &unknown) || unknown.Name != "old" || !errors.Is(err, keyring.ErrUnknownKey) || errors.Is(err, keyring.ErrCorrupt) {
		t.Errorf("what was forgotten: got %v, want an *UnknownKeyError for old", err)
	}
	if err == nil || !strings.Contains(err.Error(), `"old"`) {
		t.Errorf("message %q does not name the key", err)
	}
}

func TestAnotherKeyOfTheSameNameDoesNotOpen(t *testing.T) {
	t.Parallel()
	sealed := mustSeal(t, mustParse(t, line("k", 1)), "secret", endpointID, column)
	if _, err := mustParse(t, line("k", 2)).Open(sealed, endpointID, column); !errors.Is(err, keyring.ErrCorrupt) {
		t.Errorf("got %v, want %v", err, keyring.ErrCorrupt)
	}
}

// TestTheNameIsAuthenticated renames the key in the sealed bytes and in the
// keyring: the same key under another name does not open it either.
func TestTheNameIsAuthenticated(t *testing.T) {
	t.Parallel()
	sealed := mustSeal(t, mustParse(t, line("aa", 1)), "secret", endpointID, column)
	renamed := bytes.Replace(sealed, []byte("aa"), []byte("bb"), 1)
	if _, err := mustParse(t, line("bb", 1)).Open(renamed, endpointID, column); !errors.Is(err, keyring.ErrCorrupt) {
		t.Errorf("got %v, want %v", err, keyring.ErrCorrupt)
	}
}

func TestKeyNameRefusesWhatCannotBeOne(t *testing.T) {
	t.Parallel()
	for name, sealed := range map[string][]byte{
		"a name with a newline": append([]byte{1, 3, 'a', '\n', 'b'}, make([]byte, 28)...),
		"an empty name":         append([]byte{1, 0}, make([]byte, 28)...),
		"too long a name":       append([]byte{1, 33}, bytes.Repeat([]byte("n"), 33+28)...),
		"no room for the tag":   append([]byte{1, 1, 'a'}, make([]byte, 27)...),
	} {
		if got, err := keyring.KeyName(sealed); !errors.Is(err, keyring.ErrCorrupt) || got != "" {
			t.Errorf("%s: got %q and %v, want %v", name, got, err, keyring.ErrCorrupt)
		}
	}
}

func TestNoncesNeverRepeat(t *testing.T) {
	t.Parallel()
	ring := mustParse(t, line("k", 1))
	const workers, each = 4, 5000
	seen := make([]map[string]bool, workers)
	var group sync.WaitGroup
	for worker := range workers {
		seen[worker] = map[string]bool{}
		group.Go(func() {
			for range each {
				sealed, err := ring.Seal([]byte("the same"), endpointID, column)
				if err != nil {
					t.Error(err)
					return
				}
				seen[worker][string(sealed[3:15])] = true
			}
		})
	}
	group.Wait()
	all := map[string]bool{}
	for _, nonces := range seen {
		for nonce := range nonces {
			all[nonce] = true
		}
	}
	if len(all) != workers*each {
		t.Errorf("got %d different nonces of %d", len(all), workers*each)
	}
}

func FuzzOpen(f *testing.F) {
	ring := mustParse(f, line("k", 1), line("j", 2))
	f.Add(mustSeal(f, ring, "secret", endpointID, column), endpointID, column)
	f.Add(mustSeal(f, ring, "", "a", ""), "a", "")
	f.Add(mustSeal(f, mustParse(f, line("gone", 3)), "secret", endpointID, column), endpointID, column)
	f.Add([]byte{}, "", "")
	f.Add([]byte{1, 255, 'k'}, endpointID, column)
	f.Add([]byte{2, 1, 'k', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, endpointID, column)
	f.Fuzz(func(t *testing.T, sealed []byte, row, col string) {
		name, nameErr := keyring.KeyName(sealed)
		plaintext, err := ring.Open(sealed, row, col)
		switch {
		case err == nil:
			// Only seeds open: nobody forges without a key. What opens is whole.
			if nameErr != nil || !ring.Has(name) || len(plaintext) != len(sealed)-2-len(name)-28 {
				t.Fatalf("opened %d bytes with key %q, %v", len(plaintext), name, nameErr)
			}
		case plaintext != nil:
			t.Fatalf("got %d bytes beside %v", len(plaintext), err)
		case errors.Is(err, keyring.ErrUnknownKey):
			if nameErr != nil || ring.Has(name) {
				t.Fatalf("unknown key %q, %v", name, nameErr)
			}
		case !errors.Is(err, keyring.ErrCorrupt):
			t.Fatalf("got %v, want %v or %v", err, keyring.ErrCorrupt, keyring.ErrUnknownKey)
		}
	})
}

// FuzzSealThenOpen holds for every plaintext and place, and for no other place.
func FuzzSealThenOpen(f *testing.F) {
	ring := mustParse(f, line("k", 1))
	f.Add([]byte("secret"), endpointID, column, "other", column)
	f.Add([]byte{}, "", "", "", "x")
	f.Add([]byte{0}, "ab", "c", "a", "bc")
	f.Fuzz(func(t *testing.T, plaintext []byte, row, col, otherRow, otherCol string) {
		sealed, err := ring.Seal(plaintext, row, col)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := ring.Open(sealed, row, col); err != nil || !bytes.Equal(got, plaintext) {
			t.Fatalf("got %x and %v, want %x", got, err, plaintext)
		}
		if _, err := ring.Open(sealed, otherRow, otherCol); (row != otherRow || col != otherCol) && !errors.Is(err, keyring.ErrCorrupt) {
			t.Fatalf("another place: got %v, want %v", err, keyring.ErrCorrupt)
		}
	})
}

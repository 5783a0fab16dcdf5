package keyring_test

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/postrider/postrider/keyring"
)

// line is a line of a keyring file whose key is made from a seed.
func line(name string, seed byte) string {
	return name + ":" + base64.StdEncoding.EncodeToString(keyOf(seed)) + "\n"
}

func keyOf(seed byte) []byte {
	key := make([]byte, keyring.KeyBytes)
	for i := range key {
		key[i] = seed + byte(i)*7
	}
	return key
}

func mustParse(t testing.TB, lines ...string) *keyring.Keyring {
	t.Helper()
	ring, err := keyring.Parse([]byte(strings.Join(lines, "")))
	if err != nil {
		t.Fatalf("Parse: %v", err)
	}
	return ring
}

func TestTheFirstKeyIsPrimaryAndOrderIsKept(t *testing.T) {
	t.Parallel()
	ring := mustParse(t, line("2026-08", 1), line("2025-11", 2), line("a", 3))
	if got := ring.Primary(); got != "2026-08" {
		t.Errorf("primary: got %q", got)
	}
	if got, want := ring.Names(), []string{"2026-08", "2025-11", "a"}; !slices.Equal(got, want) {
		t.Errorf("names: got %q, want %q", got, want)
	}
	for name, want := range map[string]bool{"2026-08": true, "a": true, "b": false, "": false, "A": false} {
		if got := ring.Has(name); got != want {
			t.Errorf("Has(%q): got %v, want %v", name, got, want)
		}
	}
	ring.Names()[0] = "changed"
	if got := ring.Primary(); got != "2026-08" {
		t.Errorf("a caller changed the keyring: primary %q", got)
	}
}

// TestKeyringNeverShowsKeys prints a keyring in every way that a log line, a test
// failure or a careless struct dump would, and looks for each key as bytes, words
// (of which the cipher's schedule is made), hex and base64.
func TestKeyringNeverShowsKeys(t *testing.T) {
	t.Parallel()
	ring := mustParse(t, line("new", 0x51), line("old", 0xa2))
	type exported struct{ Ring *keyring.Keyring }
	type unexported struct{ ring *keyring.Keyring }
	type value struct{ ring keyring.Keyring }
	values := map[string]any{
		"pointer": ring, "value": *ring, "field": exported{ring}, "unexported field": unexported{ring},
		"pointer to unexported field": &unexported{ring}, "unexported value": value{*ring}, "pointer to unexported value": &value{*ring},
		"slice": []*keyring.Keyring{ring},
	}
	shown := map[string]string{}
	for name, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%o", "%e", "%p"} {
			shown[name+" "+verb] = fmt.Sprintf(verb, v)
		}
		var text, asJSON bytes.Buffer
		slog.New(slog.NewTextHandler(&text, nil)).Info("m", "v", v)
		slog.New(slog.NewJSONHandler(&asJSON, nil)).Info("m", "v", v)
		shown[name+" slog text"], shown[name+" slog JSON"] = text.String(), asJSON.String()
		if encoded, err := json.Marshal(v); err == nil {
			shown[name+" json"] = string(encoded)
		}
	}
	var forbidden []string
	for _, seed := range []byte{0x51, 0xa2} {
		key := keyOf(seed)
		forbidden = append(forbidden,
			hex.EncodeToString(key[:4]), strings.ToUpper(hex.EncodeToString(key[:4])),
			base64.StdEncoding.EncodeToString(key)[:8],
			fmt.Sprintf("%d %d %d", key[0], key[1], key[2]), fmt.Sprintf("%#x, %#x, %#x", key[0], key[1], key[2]),
			strconv.FormatUint(uint64(binary.BigEndian.Uint32(key)), 10), strconv.FormatUint(uint64(binary.LittleEndian.Uint32(key)), 10))
	}
	for how, text := range shown {
		for _, bytes := range forbidden {
			if strings.Contains(text, bytes) {
				t.Errorf("%s shows a key: %.200s", how, text)
			}
		}
	}
	for _, how := range []string{"pointer %v", "pointer %#v", "pointer %d"} {
		if got, want := shown[how], "keyring [new old]"; got != want {
			t.Errorf("%s: got %q, want %q", how, got, want)
		}
	}
	if got := fmt.Sprint((*keyring.Keyring)(nil)); got != "keyring []" {
		t.Errorf("nil: got %q", got)
	}
}

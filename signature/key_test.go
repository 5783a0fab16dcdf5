package signature_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/postrider/postrider/signature"
)

// knownSecret is the one of the specification's example.
const knownSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

func mustKey(t testing.TB, secret string) signature.Key {
	t.Helper()
	key, err := signature.ParseKey([]byte(secret))
	if err != nil {
		t.Fatalf("ParseKey: %v", err)
	}
	return key
}

// whsec spells n bytes as a Standard Webhooks secret.
func whsec(n int) string {
	return "whsec_" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{0xfb, 0xef, 0x17}, n)[:n])
}

func TestParseKeyAccepts(t *testing.T) {
	t.Parallel()
	raw := "a-raw-secret-of-thirty-two-bytes"
	for name, secret := range map[string]string{
		"whsec of 24 bytes":                  whsec(signature.MinKeyBytes),
		"whsec of the longest":               whsec(signature.MaxKeyBytes),
		"whsec with one trailing newline":    knownSecret + "\n",
		"raw of 24 bytes":                    raw[:signature.MinKeyBytes],
		"raw of the longest":                 strings.Repeat("k", signature.MaxKeyBytes),
		"raw of the longest and a newline":   strings.Repeat("k", signature.MaxKeyBytes) + "\n",
		"raw and binary":                     strings.Repeat("\x00\xff\n", 10) + "\x00",
		"raw that only looks like whsec":     "WHSEC_" + raw,
		"raw that looks like base64":         base64.StdEncoding.EncodeToString([]byte(raw)),
		"raw with v1 but not at the start":   raw + "v1,",
		"raw of 24 bytes before the newline": raw[:signature.MinKeyBytes] + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if key := mustKey(t, secret); key.IsZero() {
				t.Error("got the zero Key and no error")
			}
		})
	}
}

func TestParseKeyRefusesWithTheRemedyAndWithoutTheSecret(t *testing.T) {
	t.Parallel()
	encoded := strings.TrimPrefix(knownSecret, "whsec_")
	for name, tc := range map[string]struct {
		secret  string
		problem signature.KeyProblem
		says    []string
	}{
		"empty":                       {"", signature.KeyEmpty, []string{"empty", "openssl rand"}},
		"one newline":                 {"\n", signature.KeyEmpty, []string{"empty"}},
		"8 bytes":                     {"kU7dR2xQ", signature.KeyTooShort, []string{"8 bytes", "at least 24", "openssl rand"}},
		"23 bytes":                    {"kU7dR2xQkU7dR2xQkU7dR2x", signature.KeyTooShort, []string{"23 bytes"}},
		"24 with the newline":         {"kU7dR2xQkU7dR2xQkU7dR2x\n", signature.KeyTooShort, []string{"23 bytes"}},
		"whsec of 8 bytes":            {"whsec_kU7dR2xQcvM=", signature.KeyTooShort, []string{"8 bytes"}},
		"whsec of nothing":            {"whsec_", signature.KeyTooShort, []string{"0 bytes"}},
		"raw too long":                {strings.Repeat("q", signature.MaxKeyBytes+1), signature.KeyTooLong, []string{"1025 bytes", "at most 1024"}},
		"whsec too long":              {whsec(signature.MaxKeyBytes + 1), signature.KeyTooLong, []string{"at most 1024"}},
		"whsec of a megabyte":         {whsec(1 << 20), signature.KeyTooLong, []string{"at most 1024"}},
		"bad base64":                  {"whsec_Mf!Q9r8GKYqrTwjUPD8ILPZIo2LaLaSw", signature.KeyUndecodable, []string{"base64", "padding", "openssl"}},
		"unpadded base64":             {"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwkU7dR2xQcvM", signature.KeyUndecodable, []string{"padding"}},
		"URL-safe base64":             {"whsec_Mf-Q9r8GKYqrTwjUPD8ILPZIo2La_aSw", signature.KeyUndecodable, []string{"URL-safe"}},
		"base64 with loose last bits": {"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwkU7dR2xQcvN=", signature.KeyUndecodable, []string{"base64"}},
		"wrapped base64":              {"whsec_" + encoded[:16] + "\n" + encoded[16:], signature.KeyUndecodable, []string{"line breaks"}},
		"two trailing newlines":       {knownSecret + "\n\n", signature.KeyUndecodable, []string{"line breaks"}},
		"Windows newline":             {knownSecret + "\r\n", signature.KeyUndecodable, []string{"line breaks"}},
		"trailing space":              {knownSecret + " ", signature.KeyUndecodable, []string{"base64"}},
		"prefixed with the version":   {"v1," + knownSecret, signature.KeyVersionPrefixed, []string{"v1,", "remove"}},
		"a signature for a secret":    {"v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=", signature.KeyVersionPrefixed, []string{"v1,"}},
		"the version and nothing":     {"v1,", signature.KeyVersionPrefixed, []string{"v1,"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, err := signature.ParseKey([]byte(tc.secret))
			if !key.IsZero() {
				t.Error("got a key beside the error")
			}
			var keyError *signature.KeyError
			if !errors.As(err, &keyError) || !errors.Is(err, signature.ErrInvalidKey) {
				t.Fatalf("got %v, want a *KeyError that is ErrInvalidKey", err)
			}
			if keyError.Problem != tc.problem {
				t.Errorf("got problem %s, want %s", keyError.Problem, tc.problem)
			}
			for _, want := range tc.says {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("message %q does not say %q", err, want)
				}
			}
			secret := strings.TrimPrefix(strings.TrimPrefix(tc.secret, "v1,"), "whsec_")
			for i := 0; i+4 <= len(secret) && i < 64; i++ {
				if strings.Contains(err.Error(), secret[i:i+4]) {
					t.Fatalf("message %q shows bytes %d to %d of the secret", err, i, i+4)
				}
			}
		})
	}
}

func TestParseKeyKeepsNothingOfTheCallersBytes(t *testing.T) {
	t.Parallel()
	secret := []byte("a-raw-secret-of-thirty-two-bytes")
	key, err := signature.ParseKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	clear(secret)
	if want := mustKey(t, "a-raw-secret-of-thirty-two-bytes"); !key.Equal(want) {
		t.Error("the key changed with the caller's slice")
	}
}

func TestKeysAreEqualByTheirBytesAlone(t *testing.T) {
	t.Parallel()
	decoded, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(knownSecret, "whsec_"))
	if err != nil {
		t.Fatal(err)
	}
	key := mustKey(t, knownSecret)
	for name, tc := range map[string]struct {
		other signature.Key
		want  bool
	}{
		"itself":         {key, true},
		"with newline":   {mustKey(t, knownSecret+"\n"), true},
		"the bytes, raw": {mustKey(t, string(decoded)), true},
		"another":        {mustKey(t, whsec(24)), false},
		"longer":         {mustKey(t, string(decoded)+"x"), false},
		"zero":           {signature.Key{}, false},
	} {
		if got := key.Equal(tc.other); got != tc.want {
			t.Errorf("%s: got %v, want %v", name, got, tc.want)
		}
		if got := tc.other.Equal(key); got != tc.want {
			t.Errorf("%s, the other way: got %v, want %v", name, got, tc.want)
		}
	}
	if !(signature.Key{}).Equal(signature.Key{}) {
		t.Error("two zero Keys are not equal")
	}
}

func TestFingerprintIsThatOfTheDecodedBytes(t *testing.T) {
	t.Parallel()
	// printf %s MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw | base64 -d | sha256sum | cut -c1-8
	const want = "sha256:f74e1720"
	if got := mustKey(t, knownSecret).Fingerprint(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := (signature.Key{}).Fingerprint(); got != "" {
		t.Errorf("zero Key: got %q, want nothing", got)
	}
}

// TestKeyNeverShowsItsBytes prints a key in every way that a log line, a test
// failure or a careless struct dump would.
func TestKeyNeverShowsItsBytes(t *testing.T) {
	t.Parallel()
	const secret = "Zq9-raw-secret-Zq9-raw-secret"
	key := mustKey(t, secret)
	type exported struct{ Key signature.Key }
	type unexported struct{ key signature.Key }
	values := map[string]any{
		"value": key, "pointer": &key, "slice": []signature.Key{key}, "map": map[string]signature.Key{"k": key},
		"field": exported{key}, "pointer to field": &exported{key}, "unexported field": unexported{key},
		"pointer to unexported field": &unexported{key}, "verifier": &signature.Verifier{Keys: []signature.Key{key}},
	}
	shown := map[string]string{}
	for name, value := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%o", "%t", "%T", "%p"} {
			shown[name+" "+verb] = fmt.Sprintf(verb, value)
		}
		var text, asJSON bytes.Buffer
		slog.New(slog.NewTextHandler(&text, nil)).Info("m", "v", value)
		slog.New(slog.NewJSONHandler(&asJSON, nil)).Info("m", "v", value)
		shown[name+" slog text"], shown[name+" slog JSON"] = text.String(), asJSON.String()
		if encoded, err := json.Marshal(value); err == nil {
			shown[name+" json"] = string(encoded)
		}
	}
	forbidden := []string{
		"Zq9", "raw-secret", fmt.Sprintf("%x", "Zq9"), fmt.Sprintf("%X", "Zq9"),
		"90 113 57", "0x5a, 0x71", "132 161 71", base64.StdEncoding.EncodeToString([]byte(secret))[:8],
	}
	for how, text := range shown {
		for _, bytes := range forbidden {
			if strings.Contains(text, bytes) {
				t.Errorf("%s shows the secret: %s", how, text)
			}
		}
	}
	if got, want := shown["value %v"], "signing key "+key.Fingerprint(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := shown["field json"], `{"Key":"signing key `+key.Fingerprint()+`"}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := fmt.Sprint(signature.Key{}); got != "no signing key" {
		t.Errorf("zero Key: got %q", got)
	}
}

func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{
		knownSecret, knownSecret + "\n", "v1," + knownSecret, "whsec_", "whsec_!", "", "\n",
		"a-raw-secret-of-thirty-two-bytes", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwkU7dR2xQcvM",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, secret []byte) {
		key, err := signature.ParseKey(secret)
		if (err == nil) == key.IsZero() {
			t.Fatalf("key %v and error %v", key, err)
		}
		if err != nil {
			// The message holds nothing of the input: it is one of few.
			var keyError *signature.KeyError
			if !errors.As(err, &keyError) || err.Error() != (&signature.KeyError{Problem: keyError.Problem, Bytes: keyError.Bytes}).Error() {
				t.Fatalf("got %v, want a plain *KeyError", err)
			}
			return
		}
		// Only the trailing newline and the spelling are dropped.
		if again, err := signature.ParseKey(bytes.TrimSuffix(secret, []byte("\n"))); err == nil && !again.Equal(key) &&
			!bytes.HasSuffix(secret, []byte("\n\n")) {
			t.Fatal("the trailing newline changed the key")
		}
	})
}

package signature

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"strings"
	"sync"
)

const (
	// MinKeyBytes is the shortest key accepted, in decoded bytes: the 192 bits
	// the Standard Webhooks specification asks for.
	MinKeyBytes = 24

	// MaxKeyBytes is the longest key accepted, in decoded bytes. The
	// specification's 64 binds generated secrets; raw ones that teams bring
	// along are longer at times, and HMAC takes any length. The bound only
	// keeps a file put into the wrong Secret from being taken for a key.
	MaxKeyBytes = 1024

	secretPrefix  = "whsec_"
	versionPrefix = "v1,"
)

// Key is one symmetric signing key. It is made by [ParseKey], may be copied and
// used by many goroutines at once, and shows its [Key.Fingerprint] instead of
// its bytes however it is printed, logged or marshalled. The zero Key signs
// nothing and verifies nothing.
type Key struct {
	// Behind a function, for fmt cannot call our methods where a struct holds a
	// Key in an unexported field, and follows pointers there. Of a function it
	// prints the address alone. It also keeps == from compiling: see Equal.
	material func() *material // nil: the zero Key
}

// material is what a Key keeps to itself.
type material struct {
	secret      []byte
	fingerprint string
	signers     sync.Pool // of *signer, each with this key's HMAC state prepared
}

// signer is the state of one signature being made. It is pooled with its key
// because setting up an HMAC costs more than signing a small body.
type signer struct {
	mac     hash.Hash
	sum     [sha256.Size]byte
	scratch []byte
}

// ParseKey reads the value of a signing Secret.
//
// "whsec_" followed by standard padded base64 is decoded; every other value is
// used as it is. One trailing newline is dropped first, since tools that make
// Secrets from files leave one. The error is a [*KeyError], whose message names
// the problem and the remedy and shows no byte of the value; [errors.Is] finds
// [ErrInvalidKey] in it.
//
// The value is copied: the caller may overwrite it afterwards.
func ParseKey(secret []byte) (Key, error) {
	value := bytes.TrimSuffix(secret, []byte("\n"))
	if len(value) == 0 {
		return Key{}, &KeyError{Problem: KeyEmpty}
	}
	if bytes.HasPrefix(value, []byte(versionPrefix)) {
		return Key{}, &KeyError{Problem: KeyVersionPrefixed}
	}
	raw, err := decodeSecret(value)
	if err != nil {
		return Key{}, err
	}
	if len(raw) < MinKeyBytes {
		return Key{}, &KeyError{Problem: KeyTooShort, Bytes: len(raw)}
	}
	if len(raw) > MaxKeyBytes {
		return Key{}, &KeyError{Problem: KeyTooLong, Bytes: len(raw)}
	}
	return newKey(raw), nil
}

// decodeSecret returns a fresh slice with the key bytes of a Secret's value.
func decodeSecret(value []byte) ([]byte, error) {
	encoded, ok := bytes.CutPrefix(value, []byte(secretPrefix))
	if !ok {
		return bytes.Clone(value), nil
	}
	if decoded := base64.StdEncoding.DecodedLen(len(encoded)); decoded > MaxKeyBytes+2 {
		return nil, &KeyError{Problem: KeyTooLong, Bytes: decoded}
	}
	// The decoder skips line breaks, and receivers' decoders may not: a wrapped
	// secret would then mean different keys on the two sides.
	if bytes.ContainsAny(encoded, "\r\n") {
		return nil, &KeyError{Problem: KeyUndecodable}
	}
	raw, err := base64.StdEncoding.Strict().AppendDecode(nil, encoded)
	if err != nil {
		// The decoder's own error is left out: it speaks of the input.
		return nil, &KeyError{Problem: KeyUndecodable}
	}
	return raw, nil
}

func newKey(raw []byte) Key {
	sum := sha256.Sum256(raw)
	m := &material{secret: raw, fingerprint: "sha256:" + hex.EncodeToString(sum[:4])}
	m.signers.New = func() any { return &signer{mac: hmac.New(sha256.New, m.secret)} }
	return Key{material: func() *material { return m }}
}

// IsZero reports whether k is the zero Key, which holds no key at all.
func (k Key) IsZero() bool { return k.material == nil }

// Equal reports whether both hold the same key bytes, in a time that does not
// depend on where they differ. Two spellings of one key are equal: "whsec_…"
// with and without a trailing newline, for one.
func (k Key) Equal(other Key) bool {
	if k.IsZero() || other.IsZero() {
		return k.IsZero() && other.IsZero()
	}
	return hmac.Equal(k.material().secret, other.material().secret)
}

// Fingerprint names the key without giving it away: "sha256:" and the first
// eight hex digits of the SHA-256 of the decoded key bytes. It is "" for the
// zero Key.
func (k Key) Fingerprint() string {
	if k.IsZero() {
		return ""
	}
	return k.material().fingerprint
}

// String returns "signing key sha256:1f0a9c2e".
func (k Key) String() string {
	if k.IsZero() {
		return "no signing key"
	}
	return "signing key " + k.material().fingerprint
}

// GoString answers %#v as [Key.String] does.
func (k Key) GoString() string { return k.String() }

// Format answers every verb of fmt as [Key.String] does, %x and %d included.
func (k Key) Format(s fmt.State, _ rune) { _, _ = fmt.Fprint(s, k.String()) }

// LogValue logs the fingerprint.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// MarshalText gives [Key.String], so that JSON, YAML and XML show no key. There
// is no way back: a Key cannot be unmarshalled.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// signature appends the base64 signature of id.timestamp.body to dst.
func (k Key) signature(dst []byte, id, timestamp string, body []byte) []byte {
	signers := &k.material().signers
	s, _ := signers.Get().(*signer)
	s.mac.Reset()
	s.scratch = append(s.scratch[:0], id...)
	s.scratch = append(s.scratch, '.')
	s.scratch = append(s.scratch, timestamp...)
	s.scratch = append(s.scratch, '.')
	s.mac.Write(s.scratch)
	s.mac.Write(body)
	dst = base64.StdEncoding.AppendEncode(dst, s.mac.Sum(s.sum[:0]))
	signers.Put(s)
	return dst
}

// ErrInvalidKey is what every [*KeyError] is, for [errors.Is].
var ErrInvalidKey = errors.New("invalid signing key")

// KeyProblem says what is wrong with the value of a signing Secret.
type KeyProblem string

// The problems [ParseKey] reports.
const (
	KeyEmpty           KeyProblem = "Empty"
	KeyTooShort        KeyProblem = "TooShort"        // under MinKeyBytes once decoded
	KeyTooLong         KeyProblem = "TooLong"         // over MaxKeyBytes once decoded
	KeyUndecodable     KeyProblem = "Undecodable"     // "whsec_" and then no standard, padded base64
	KeyVersionPrefixed KeyProblem = "VersionPrefixed" // begins with "v1,": a signature's prefix, not a secret's
)

// KeyError is why a value cannot be a signing key. It never holds a byte of it.
type KeyError struct {
	Problem KeyProblem
	Bytes   int // length of the key once decoded; set for KeyTooShort and KeyTooLong
}

// remedy is the way out of every problem, as one command.
const remedy = `make one with: printf 'whsec_%s' "$(openssl rand -base64 32)"`

// Error names the problem and the remedy, fit for a status message.
func (e *KeyError) Error() string {
	var b strings.Builder
	b.WriteString(ErrInvalidKey.Error())
	b.WriteString(": ")
	switch e.Problem {
	case KeyEmpty:
		b.WriteString("the value is empty; " + remedy)
	case KeyTooShort:
		fmt.Fprintf(&b, "%d bytes long, at least %d are needed; %s", e.Bytes, MinKeyBytes, remedy)
	case KeyTooLong:
		fmt.Fprintf(&b, "%d bytes long, at most %d are accepted; is this the right Secret key? %s", e.Bytes, MaxKeyBytes, remedy)
	case KeyUndecodable:
		b.WriteString(`what follows "whsec_" is not standard base64 with padding ` +
			`(no URL-safe alphabet, no line breaks, no missing "="); ` + remedy)
	case KeyVersionPrefixed:
		b.WriteString(`the value begins with "v1,", which belongs to signatures and not to secrets; ` +
			`remove these three characters and give the rest`)
	default:
		b.WriteString("unknown problem")
	}
	return b.String()
}

// Is reports whether target is [ErrInvalidKey].
func (e *KeyError) Is(target error) bool { return target == ErrInvalidKey }

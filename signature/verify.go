package signature

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// DefaultTolerance is how far a request's timestamp may lie from now, in
	// either direction, where [Verifier.Tolerance] is zero.
	DefaultTolerance = 5 * time.Minute

	// MaxSignatures is how many signatures of one request are looked at, those
	// of unknown versions included. What follows is ignored, so that a header
	// full of them costs a receiver nothing.
	MaxSignatures = 64

	// maxIDBytes and maxTimestampDigits bound what is hashed and parsed; eleven
	// digits of seconds reach beyond the year 5000.
	maxIDBytes         = 1024
	maxTimestampDigits = 11
)

// What [Verifier.Verify] returns, wrapped with detail; tell them apart with
// [errors.Is]. Only ErrNoKey is the receiver's own mistake.
var (
	ErrMissingHeader = errors.New("missing webhook header")
	ErrInvalidHeader = errors.New("invalid webhook header")
	ErrTooOld        = errors.New("webhook timestamp too old")
	ErrTooNew        = errors.New("webhook timestamp too far in the future")
	ErrNoMatch       = errors.New("no webhook signature matches")
	ErrNoKey         = errors.New("no key to verify webhooks with")
)

// Verifier checks that a request was signed by somebody who holds one of Keys,
// lately. Its fields are not changed by verifying; one Verifier may serve many
// goroutines.
type Verifier struct {
	// Keys are the keys to try: one, or during a rotation the new and the old.
	Keys []Key

	// Tolerance is how far the timestamp may lie from Now, past or future, the
	// bound itself included. Zero or less means [DefaultTolerance].
	Tolerance time.Duration

	// Now is the clock; nil means [time.Now].
	Now func() time.Time
}

// Verify returns nil if the headers carry a fresh timestamp and a signature by
// one of the keys over exactly this body. Give it the bytes as they came in:
// parsed and written anew they are different bytes.
//
// Errors: [ErrMissingHeader], [ErrInvalidHeader], [ErrTooOld], [ErrTooNew],
// [ErrNoMatch], [ErrNoKey]. None of them tells which part of a signature was
// wrong. A replay within the tolerance verifies: keep the webhook-id of what was
// handled and pass over what comes twice.
func (v *Verifier) Verify(header http.Header, body []byte) error {
	if !slices.ContainsFunc(v.Keys, func(k Key) bool { return !k.IsZero() }) {
		return ErrNoKey
	}
	id, err := single(header, HeaderID)
	if err != nil {
		return err
	}
	timestamp, err := single(header, HeaderTimestamp)
	if err != nil {
		return err
	}
	signatures, err := single(header, HeaderSignature)
	if err != nil {
		return err
	}
	if len(id) > maxIDBytes || strings.Contains(id, ".") {
		return fmt.Errorf("%w: %s is over %d bytes long or contains a full stop", ErrInvalidHeader, HeaderID, maxIDBytes)
	}
	if err := v.checkTimestamp(timestamp); err != nil {
		return err
	}
	return v.checkSignatures(signatures, id, timestamp, body)
}

// single returns the one value of a header. A repeated header is refused: the
// application and this package might each believe another one of them.
func single(header http.Header, name string) (string, error) {
	values := header.Values(name)
	switch {
	case len(values) == 0 || (len(values) == 1 && values[0] == ""):
		return "", fmt.Errorf("%w: %s", ErrMissingHeader, name)
	case len(values) > 1:
		return "", fmt.Errorf("%w: %s is given %d times", ErrInvalidHeader, name, len(values))
	}
	return values[0], nil
}

func (v *Verifier) checkTimestamp(timestamp string) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	// Only the canonical spelling is taken ("+5" and "05" are not): the text is
	// what is signed, so text and meaning must be the same thing.
	if err != nil || seconds < 0 || len(timestamp) > maxTimestampDigits || strconv.FormatInt(seconds, 10) != timestamp {
		return fmt.Errorf("%w: %s is not a number of Unix seconds", ErrInvalidHeader, HeaderTimestamp)
	}
	now, tolerance := time.Now, v.Tolerance
	if v.Now != nil {
		now = v.Now
	}
	if tolerance <= 0 {
		tolerance = DefaultTolerance
	}
	age := now().Sub(time.Unix(seconds, 0))
	switch {
	case age > tolerance:
		return fmt.Errorf("%w: over %v", ErrTooOld, tolerance)
	case age < -tolerance:
		return fmt.Errorf("%w: over %v", ErrTooNew, tolerance)
	}
	return nil
}

func (v *Verifier) checkSignatures(signatures, id, timestamp string, body []byte) error {
	var expected [64]byte
	for _, k := range v.Keys {
		if !k.IsZero() && matches(signatures, k.signature(expected[:0], id, timestamp, body)) {
			return nil
		}
	}
	return ErrNoMatch
}

// matches reports whether one of the first MaxSignatures of a header is of
// version v1 and equal to expected. The comparison takes the same time wherever
// they differ; only the length and the version are looked at before it.
func matches(signatures string, expected []byte) bool {
	for range MaxSignatures {
		signature, rest, more := strings.Cut(signatures, " ")
		if encoded, ok := strings.CutPrefix(signature, versionPrefix); ok && hmac.Equal([]byte(encoded), expected) {
			return true
		}
		if !more {
			return false
		}
		signatures = rest
	}
	return false
}

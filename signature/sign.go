package signature

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"time"
)

// The headers of a signed webhook. http.Header canonicalises them; on the wire
// their case means nothing.
const (
	HeaderID        = "webhook-id"        // the event's id, the same on every attempt
	HeaderTimestamp = "webhook-timestamp" // when the attempt was signed, in Unix seconds
	HeaderSignature = "webhook-signature" // one signature for every active key
)

// signatureLength is "v1," and the padded base64 of one HMAC-SHA256.
var signatureLength = len(versionPrefix) + base64.StdEncoding.EncodedLen(sha256.Size)

// Timestamp is the value of [HeaderTimestamp] for a request signed at that
// moment. Fractions of a second are cut off.
func Timestamp(at time.Time) string { return strconv.FormatInt(at.Unix(), 10) }

// Sign returns the value of [HeaderSignature] for a body sent under id and
// [Timestamp](at): one signature for each key, in the order given; put the
// newest key first. A zero Key is passed over, and with no key at all the result
// is "": such a request must not be sent.
//
// The id must not contain a full stop, or one signature could stand for two
// different requests ([Verifier] refuses such an id).
func Sign(id string, at time.Time, body []byte, keys ...Key) string {
	timestamp := Timestamp(at)
	header := make([]byte, 0, len(keys)*(signatureLength+1))
	for _, k := range keys {
		if k.IsZero() {
			continue
		}
		if len(header) > 0 {
			header = append(header, ' ')
		}
		header = append(header, versionPrefix...)
		header = k.signature(header, id, timestamp, body)
	}
	return string(header)
}

package store

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// State of an endpoint, as its owner wishes it.
type State string

// The states. Paused: events are accepted and wait. Disabled: events are not fanned out to it and what was pending
// is cancelled.
const (
	Enabled  State = "Enabled"
	Paused   State = "Paused"
	Disabled State = "Disabled"
)

// Columns whose values are sealed. With the endpoint's public id they are the associated data of the seal, so that a
// ciphertext copied to another row or column does not open.
const (
	ColumnKey     = "endpoint.key_sealed"
	ColumnHeaders = "endpoint.headers"
)

// Endpoint is the row of a WebhookEndpoint.
type Endpoint struct {
	ID           int64
	PublicID     uuid.UUID
	Namespace    string
	Name         string
	NamespaceUID string
	UID          string
	Generation   int64
	Version      int64  // raised with every change that a dispatcher must see
	LaneID       int64  // of the present enabling; 0 while disabled
	HoldReason   string // why it is not Ready; "" when it is
	Adoptable    bool   // the installation was taken over since: may be adopted under another namespace uid
	Tombstoned   bool
	Spec         EndpointSpec
	Keys         []SealedKey // newest first, at most 10
}

// EndpointSpec is what the endpoint asks for, with the installation's defaults already filled in.
type EndpointSpec struct {
	State            State
	URL              string
	EventTypes       []string
	Timeout          time.Duration
	MaxConcurrency   int
	Rate             *Rate // nil: no limit
	Ordered          bool
	Payload          string
	Headers          []byte // MarshalHeaders, sealed; nil: none
	MaxAttempts      int    // the first one counted
	MaxDuration      time.Duration
	BackoffBase      time.Duration
	BackoffFactor    int
	BackoffCap       time.Duration
	Schedule         []time.Duration // nil: backoff
	FailureThreshold int
	Cooldown         time.Duration
	MaxCooldown      time.Duration
}

// Rate bounds the requests to an endpoint over all replicas.
type Rate struct {
	Requests int
	Per      time.Duration
	Burst    int
}

// SealedKey is a signing key, encrypted.
type SealedKey struct {
	Sealed      []byte
	Fingerprint string
	ExpiresAt   time.Time // zero: never
}

// Header is a user's header on each request.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// MarshalHeaders encodes headers for EndpointSpec.Headers, to be sealed. No headers give nil.
func MarshalHeaders(headers []Header) ([]byte, error) {
	if len(headers) == 0 {
		return nil, nil
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return nil, fmt.Errorf("encode headers: %w", err)
	}
	return text, nil
}

// UnmarshalHeaders reverses MarshalHeaders.
func UnmarshalHeaders(text []byte) ([]Header, error) {
	if len(text) == 0 {
		return nil, nil
	}
	var headers []Header
	if err := json.Unmarshal(text, &headers); err != nil {
		// The decoder's message may quote a value.
		return nil, fmt.Errorf("decode headers: malformed after opening")
	}
	return headers, nil
}

// EndpointChange is what ApplyEndpoint writes.
type EndpointChange struct {
	PublicID     uuid.UUID // of a new row; an existing one keeps its own
	Namespace    string
	Name         string
	NamespaceUID string
	UID          string
	Generation   int64
	Spec         EndpointSpec
	Keys         []SealedKey
	HoldReason   string
	IfVersion    int64 // the version that the change was computed from; 0: there is no live row yet
}

// EndpointRef names a live row.
type EndpointRef struct {
	ID           int64
	Namespace    string
	Name         string
	NamespaceUID string
	UID          string
}

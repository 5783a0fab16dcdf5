package store

import (
	"time"

	"github.com/google/uuid"
)

// Matching is a namespace's table of endpoints that get events, at one moment.
type Matching struct {
	Namespace string
	UID       string // of the namespace; "" while the controller has not told
	Version   int64  // 0 while the controller has not told
	Endpoints []MatchedEndpoint
}

// MatchedEndpoint is an endpoint that events are fanned out to.
type MatchedEndpoint struct {
	Target
	Name       string
	EventTypes []string // patterns
}

// Target is a lane that a new event gets a delivery in.
type Target struct {
	EndpointID int64
	LaneID     int64
	Ordered    bool
}

// NewEvent is an event to accept, with the targets that its namespace's matching table gave.
type NewEvent struct {
	Namespace      string
	NamespaceUID   string // Matching.UID
	Version        int64  // Matching.Version
	Type           string
	ContentType    string
	Body           []byte
	Headers        map[string]string // kept and sent with each request; nil: none
	OrderingKey    string            // "": none
	Traceparent    string            // "": none
	IdempotencyKey string            // "": none
	Targets        []Target
}

// Acceptance is what became of one NewEvent. Exactly one of these holds: Err set, Stale, Original set, or accepted.
type Acceptance struct {
	EventID    uuid.UUID // of the new event, or of the original
	AcceptedAt time.Time
	Stale      bool      // the matching table has moved: load it, match and accept again; nothing was stored
	Original   *Original // the idempotency key was there already; nothing was stored
	Recovered  bool      // accepted by a commit whose answer was lost: it was found, or repeated under the same id
	Err        error     // ErrRefused for a value that the database refuses; else nothing is known to be stored
}

// Original is the event that holds an idempotency key.
type Original struct {
	Type        string
	ContentType string
	OrderingKey string
	BodySHA256  [32]byte
	Endpoints   []string // names, in the order of the fan-out
}

// EventTime returns when an event was accepted, by the database's clock as it was followed, which is some milliseconds off
// at most: its id carries it (RFC 9562, UUIDv7).
func EventTime(id uuid.UUID) time.Time {
	ms := int64(id[0])<<40 | int64(id[1])<<32 | int64(id[2])<<24 | int64(id[3])<<16 | int64(id[4])<<8 | int64(id[5])
	return time.UnixMilli(ms).UTC()
}

// EventDetail is an event with what became of it.
type EventDetail struct {
	ID          uuid.UUID
	Namespace   string
	Type        string
	ContentType string
	OrderingKey string
	AcceptedAt  time.Time
	Deliveries  []DeliveryDetail // by endpoint, then replay
}

// DeliveryState of a DeliveryDetail.
type DeliveryState string

// The states of a delivery, as its history tells them.
const (
	StatePending   DeliveryState = "pending"
	StateDelivered DeliveryState = "delivered"
	StateDead      DeliveryState = "dead"
)

// DeliveryDetail is one delivery of an event.
type DeliveryDetail struct {
	Endpoint      string
	ReplayNo      int
	State         DeliveryState
	Reason        string    // of the dead letter
	NextAttemptAt time.Time // zero: at once, or none
	Attempts      []Attempt
}

// Attempt is one HTTP request made for a delivery, and what came of it.
type Attempt struct {
	Number   int
	At       time.Time // its end
	Outcome  Verdict
	Status   int // 0: there was no response
	Reason   string
	Duration time.Duration
	Response string // the first bytes of it
}

package store

import (
	"time"

	"github.com/google/uuid"
)

// ClaimRequest says how much a claim may take.
type ClaimRequest struct {
	Budget  int           // deliveries at most: the free senders
	Lanes   int           // lanes at most in one claim
	PerLane int           // deliveries at most of one lane
	Lease   time.Duration // how long the claims are valid
	Exclude []int64       // lanes that this replica must leave to others
	Caps    map[int64]int // lanes with a lower bound of their own than PerLane
}

// Batch is what a claim got.
type Batch struct {
	Claims []Claim
	At     time.Time // the database's clock at the claim; leases count from here
	Lanes  int       // lanes that were ready and locked; 0: nothing is due now
	Reaped int       // leases that had ended without a result, freed by this claim
	Paused bool      // the whole installation is paused: nothing was looked for
	More   bool      // claiming again at once may get more: a lane is still ready, or there were as many as asked for
}

// Claim is the right to attempt one delivery until its lease ends, proved by its token.
type Claim struct {
	DeliveryID  int64
	Token       uuid.UUID // one for the batch
	LaneID      int64
	EndpointID  int64
	Version     int64 // of the endpoint's row; what a process remembers of an older one is stale
	EventID     uuid.UUID
	ReplayNo    int
	Attempt     int // 1 is the first
	OrderingKey string
	AcceptedAt  time.Time
	AgeFrom     time.Time // the later of AcceptedAt and the end of the last hold or pause: maxDuration counts from here
	Probe       bool      // the one request that an open circuit lets through

	EventType   string
	ContentType string
	Traceparent string
	Headers     map[string]string // kept from the producer's request
	Body        []byte
	BodyLost    bool // the event is in no table any more
}

// Verdict is what became of an attempt.
type Verdict string

// The verdicts. Released: the claim is given back unattempted; the attempt number is free again and nothing is recorded.
const (
	Delivered Verdict = "delivered"
	Retry     Verdict = "retry"
	Dead      Verdict = "dead"
	Released  Verdict = "released"
)

// Result ends a claim.
type Result struct {
	Claim      Claim // its Body is not needed any more
	Version    int64 // of the endpoint's row that the request was made by
	Verdict    Verdict
	Delay      time.Duration // Retry: until the next attempt; 0: at once
	Reason     string        // of the attempt; "" when delivered
	DeadReason string        // Dead: of the dead letter; "": Reason
	Status     int           // of the response; 0: there was none
	Duration   time.Duration
	Response   []byte // the first bytes of it: valid UTF-8 without NUL
	Message    string // for the endpoint's status: at most 256 clean characters
	Gone       bool   // the receiver answered 410: send this version of the endpoint nothing more
	Failing    bool   // Dead: the last attempt failed as a retryable one does, which counts against the circuit
	Unsent     bool   // no request was made: nothing is recorded as an attempt, its number is free again, the circuit does not move
}

// circuit says what a result means to the circuit: an answer of the receiver, a failure, or nothing.
func (r *Result) circuit() string {
	switch {
	case r.Verdict == Released || r.Unsent:
		return "none"
	case r.Verdict == Retry || r.Verdict == Dead && r.Failing:
		return "failed"
	}
	return "answered"
}

// Recorded says what Complete did with a result.
type Recorded struct {
	Fenced bool  // the claim's lease had ended and it was taken over: nothing was changed
	Ready  bool  // its lane has something to claim now
	Err    error // the row was refused for what it holds, alone of its batch; its lease will end by itself
}

// Lease names a claim whose lease is to be extended.
type Lease struct {
	DeliveryID int64
	LaneID     int64
	Token      uuid.UUID
	Probe      bool
}

// Touched names a lane that got a new delivery, and its ordering key if the lane is ordered.
type Touched struct {
	LaneID      int64
	OrderingKey string // "": none
	// Since is when the accept began, by this process's clock. Zero: just now. Claims find what committed within a quarter of
	// a second by themselves; of what committed later they are told by this.
	Since time.Time
}

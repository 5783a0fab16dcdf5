package store

import (
	"time"

	"github.com/google/uuid"
)

// CountLimit bounds the counts of Backlog: a figure of CountLimit means that many or more.
const CountLimit = 10_000

// SuccessStep is how much earlier than an endpoint's last success Activity.LastSuccess may be: of several successes within it
// one is written down, or a busy endpoint's row would be locked and written by each completion. So what waits for an endpoint
// may have changed for as long after its activity did.
const SuccessStep = time.Second

// Activity is what the last attempts of an endpoint came to. A zero time means never.
type Activity struct {
	EndpointID          int64
	Namespace           string
	Name                string
	UID                 string
	LastSuccess         time.Time
	LastFailure         Failure
	ConsecutiveFailures int
	OpenUntil           time.Time // circuit: zero: closed; past: half open; future: open, or half open while Probing
	Probing             bool      // the circuit's probe is in flight
	Gone                bool      // the receiver answered 410 to the present spec
}

// Failure is an endpoint's last failed attempt.
type Failure struct {
	At      time.Time // zero: there was none
	EventID uuid.UUID
	Status  int
	Reason  string
	Message string
}

// Backlog counts what waits for an endpoint and what was given up on, each to CountLimit.
type Backlog struct {
	EndpointID    int64
	Pending       int
	OldestPending time.Time // zero: nothing waits
	DeadLetters   int
}

// QueueFigures describe the whole queue, for metrics.
type QueueFigures struct {
	At           time.Time // the database's clock
	Claimable    int       // deliveries due now in lanes that a claim may take from, to CountLimit a lane and 100,000 in all
	OldestDue    time.Time // since when the longest-waiting claimable delivery is due; zero: nothing is
	InFlight     int
	OpenCircuits int
	DeadLetters  int // to 100,000
	DaysAhead    int // days after today whose partitions are there, without a gap

	Paused           bool // the whole installation: nothing is claimable
	PausedNamespaces int
}

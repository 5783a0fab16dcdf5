package dispatcher

import (
	"errors"
	"fmt"
	"time"
)

// Config of a dispatcher. The zero value of each field means the default that it names.
type Config struct {
	// Senders is how many requests may be in flight at once in this replica. Default 1000.
	Senders int

	// Lease is how long a claim is valid without news from its owner: what the kill -9 of a replica costs its deliveries.
	// It must be at least MaxTimeout + RecordTime. Default 60 s.
	Lease time.Duration

	// MaxTimeout is the longest that a request may take: the installation's ceiling of spec.timeout (limits.timeout). A
	// request never takes longer, whatever an endpoint's row says. Default 30 s.
	MaxTimeout time.Duration

	// RecordTime is what is kept of each lease for recording the outcome: no request begins when less is left, and one
	// that still runs when half of it is left is abandoned. Default 5 s.
	RecordTime time.Duration

	// Grace is how long requests in flight may go on after a stop was asked for; what is still running then is released
	// for others. Give the pod a few seconds more. Negative: none. Default 35 s.
	Grace time.Duration

	// PollMin and PollMax bound the time between two looks for due work without a notification: it doubles from one to
	// the other while there is nothing. Default 50 ms and 1 s.
	PollMin, PollMax time.Duration

	// ClaimLanes is how many endpoints may be served by one claim. Default 128.
	ClaimLanes int

	// Endpoints is how many endpoints are remembered. Default 10,000.
	Endpoints int

	// Retention: how long events, attempts and dead letters are kept, and the rows of deleted endpoints after their last
	// delivery. Defaults 3 days, 3 days, 7 days, 30 days.
	EventRetention, AttemptRetention, DeadLetterRetention, EndpointRetention time.Duration

	// Version is told to receivers as User-Agent: Postrider/<version>. Default "dev".
	Version string
}

const day = 24 * time.Hour

// WithDefaults fills in what is zero.
func (c Config) WithDefaults() Config {
	fill(&c.Senders, 1000)
	fill(&c.Lease, time.Minute)
	fill(&c.MaxTimeout, 30*time.Second)
	fill(&c.RecordTime, 5*time.Second)
	fill(&c.Grace, 35*time.Second)
	fill(&c.PollMin, 50*time.Millisecond)
	fill(&c.PollMax, time.Second)
	fill(&c.ClaimLanes, 128)
	fill(&c.Endpoints, 10_000)
	fill(&c.EventRetention, 3*day)
	fill(&c.AttemptRetention, 3*day)
	fill(&c.DeadLetterRetention, 7*day)
	fill(&c.EndpointRetention, 30*day)
	fill(&c.Version, "dev")
	return c
}

func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Validate reports all problems of a configuration at once, each with the field and the remedy. Zero fields stand for
// their defaults.
func (c Config) Validate() error {
	c = c.WithDefaults()
	var problems []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			problems = append(problems, fmt.Errorf("dispatcher: "+format, args...))
		}
	}
	refuse(c.Senders < 1 || c.Senders > 10_000, "senders: %d is not from 1 to 10000", c.Senders)
	refuse(c.MaxTimeout < time.Second, "maxTimeout: %v is too short; endpoints may ask for 1s at least", c.MaxTimeout)
	refuse(c.RecordTime < time.Second, "recordTime: %v is too short; keep 1s at least of each lease for recording", c.RecordTime)
	refuse(c.Lease < c.MaxTimeout+c.RecordTime,
		"lease: %v would end while a request may still run; make it at least maxTimeout + recordTime = %v, or lower maxTimeout",
		c.Lease, c.MaxTimeout+c.RecordTime)
	refuse(c.PollMin < time.Millisecond || c.PollMin > c.PollMax, "pollMin: %v is not from 1ms to pollMax = %v", c.PollMin, c.PollMax)
	refuse(c.PollMax > time.Minute, "pollMax: %v is over 1m; due deliveries would wait as long where a notification is lost", c.PollMax)
	refuse(c.ClaimLanes < 1 || c.ClaimLanes > 10_000, "claimLanes: %d is not from 1 to 10000", c.ClaimLanes)
	refuse(c.Endpoints < 1, "endpoints: %d; at least 1 must be remembered", c.Endpoints)
	for _, r := range []struct {
		field string
		value time.Duration
	}{
		{"eventRetention", c.EventRetention},
		{"attemptRetention", c.AttemptRetention},
		{"deadLetterRetention", c.DeadLetterRetention},
		{"endpointRetention", c.EndpointRetention},
	} {
		refuse(r.value < time.Hour, "%s: %v is too short; keep an hour at least", r.field, r.value)
	}
	return errors.Join(problems...)
}

package controllers

import (
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
)

// figures are what the status shows of an endpoint's attempts and backlog, at one moment. Two figures are the same
// status exactly if they are equal: times are whole seconds in UTC, as the API server keeps them.
type figures struct {
	Circuit     v1alpha1.CircuitState
	Gone        bool
	Pauses      pausesOver
	Failures    int // consecutive
	LastSuccess time.Time
	LastFailure failure

	Counted       bool // the backlog is known
	Pending       int
	OldestPending time.Time
	DeadLetters   int
}

type failure struct {
	At              time.Time // zero: there was none
	EventID         uuid.UUID
	Status          int
	Reason, Message string
}

// figure combines what the store told. now is the store's clock. A nil backlog is not known yet.
func figure(a store.Activity, b *store.Backlog, now time.Time) figures {
	f := figures{
		Circuit:     circuit(a, now),
		Gone:        a.Gone,
		Failures:    a.ConsecutiveFailures,
		LastSuccess: wholeSecond(a.LastSuccess),
		LastFailure: failure{
			At:      wholeSecond(a.LastFailure.At),
			EventID: a.LastFailure.EventID,
			Status:  a.LastFailure.Status,
			Reason:  clean(a.LastFailure.Reason, 64),
			Message: clean(a.LastFailure.Message, 256),
		},
	}
	if b != nil {
		f.Counted = true
		f.Pending = b.Pending
		f.OldestPending = wholeSecond(b.OldestPending)
		f.DeadLetters = b.DeadLetters
	}
	return f
}

// circuit is a matter of the clock too: an open one becomes half open by itself.
func circuit(a store.Activity, now time.Time) v1alpha1.CircuitState {
	switch {
	case a.OpenUntil.IsZero():
		return v1alpha1.CircuitClosed
	case a.Probing || !a.OpenUntil.After(now):
		return v1alpha1.CircuitHalfOpen
	}
	return v1alpha1.CircuitOpen
}

// urgency says how soon a change of figures belongs in the status.
type urgency int

const (
	// unchanged figures are not written.
	unchanged urgency = iota
	// moving figures are those of a busy endpoint, for which once in a while is enough.
	moving
	// settling is a circuit between open and half open: a probe is usually over before anybody could read of it, so it
	// is material only once it has lasted.
	settling
	// material is what somebody may be waiting for: a condition, a dead letter, the first failure, the first success.
	material
)

// compare says what lies between the figures that the status shows and those of now.
func compare(shown, now figures) urgency {
	switch {
	case shown == now:
		return unchanged
	case shown.Gone != now.Gone,
		shown.Pauses != now.Pauses,
		open(shown) != open(now),
		(shown.Failures > 0) != (now.Failures > 0),
		shown.LastSuccess.IsZero() != now.LastSuccess.IsZero(),
		shown.LastFailure.At.IsZero() != now.LastFailure.At.IsZero(),
		shown.Counted != now.Counted,
		shown.DeadLetters != now.DeadLetters:
		return material
	case shown.Circuit != now.Circuit:
		return settling
	}
	return moving
}

func open(f figures) bool { return f.Circuit != v1alpha1.CircuitClosed }

func wholeSecond(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.Unix(t.Unix(), 0).UTC()
}

// clean keeps a text within what the CRD admits, whatever the store holds: one that is too long would have the whole
// status refused.
func clean(text string, limit int) string {
	text = strings.Map(func(r rune) rune {
		if r == utf8.RuneError || unicode.IsControl(r) {
			return -1
		}
		return r
	}, text)
	if utf8.RuneCountInString(text) <= limit {
		return text
	}
	return string([]rune(text)[:limit])
}

func (u urgency) String() string {
	if u == moving {
		return "moving"
	}
	return "material"
}

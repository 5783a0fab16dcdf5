package v1alpha1

import (
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Duration is a length of time as a user writes it: one to four whole numbers, each with a unit of h, m, s or ms, such
// as 10s, 1h30m or 500ms. It is kept as written: 60m stays 60m.
//
// It is a string and not metav1.Duration because that one cannot carry limits in the CRD, rewrites 60m to 1h0m0s, which
// GitOps tools see as drift, and answers 1d with a message that names no remedy. The bounds stand at each field. The form
// is the one of the Gateway API's durations (GEP-2257).
//
// +kubebuilder:validation:MaxLength=16
type Duration string

var (
	durationForm = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

	errDurationForm = errors.New("must be whole numbers with the units h, m, s or ms, such as 10s, 1m30s, or 24h for a day")
)

// Duration gives the length of time. An empty Duration is 0: whether absence means something else is the field's affair.
// What the API server admitted never gives an error.
func (d Duration) Duration() (time.Duration, error) {
	if d == "" {
		return 0, nil
	}
	// ParseDuration alone would also take what the API server refuses: signs, fractions, microseconds.
	if !durationForm.MatchString(string(d)) {
		return 0, fmt.Errorf("duration %q: %w", string(d), errDurationForm)
	}
	length, err := time.ParseDuration(string(d))
	if err != nil {
		return 0, fmt.Errorf("duration %q: %w", string(d), err)
	}
	return length, nil
}

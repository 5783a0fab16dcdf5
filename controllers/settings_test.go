package controllers

import (
	"fmt"
	"testing"
	"time"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/destination"
)

// What the platform team changes while the controllers run holds for all endpoints, and is taken back the same way.
func TestChangedSettingsHoldForEveryEndpoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	running := &Controllers{part: w.start().part}
	w.signedBy("signing")
	w.create("modest")
	w.create("greedy", func(s *v1alpha1.WebhookEndpointSpec) { s.Timeout, s.MaxConcurrency = "25s", 80 })
	w.create("inside", func(s *v1alpha1.WebhookEndpointSpec) { s.URL = "https://10.1.2.3/hook" })
	w.awaitConditions("modest", ready)
	w.awaitConditions("greedy", ready)
	w.awaitConditions("inside", "Ready=False/URLNotAllowed Stalled=True/URLNotAllowed")
	before := w.config()

	changed := before
	changed.Defaults.Timeout = 5 * time.Second
	changed.Limits.MaxConcurrency = 50
	open, err := destination.New(destination.Config{AllowedCIDRs: []string{"10.1.0.0/16"}})
	w.must(err)
	w.must(running.Change(changed, open))
	w.awaitConditions("greedy", "Ready=False/LimitExceeded Stalled=True/LimitExceeded")
	w.awaitConditions("inside", ready)
	timeoutIs := func(want time.Duration) {
		t.Helper()
		eventually(t, 20*time.Second, func() error {
			if got := w.mustRow("modest").Spec.Timeout; got != want {
				return fmt.Errorf("timeout by default: got %v, want %v", got, want)
			}
			return nil
		})
	}
	timeoutIs(5 * time.Second)

	bad := before
	bad.Defaults.Timeout = time.Hour
	if err := running.Change(bad, w.policy); err == nil {
		t.Error("a default above what the API allows was taken")
	}
	w.must(running.Change(before, w.policy))
	w.awaitConditions("greedy", ready)
	w.awaitConditions("inside", "Ready=False/URLNotAllowed Stalled=True/URLNotAllowed")
	timeoutIs(before.Defaults.Timeout)
}

package controllers

import (
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
)

func anyURL(*url.URL) error { return nil }

// plainSpec has nothing but what is required.
func plainSpec() v1alpha1.WebhookEndpointSpec {
	return v1alpha1.WebhookEndpointSpec{
		URL:        "https://hooks.example.com/invoices",
		EventTypes: []v1alpha1.EventTypePattern{"invoice.*"},
		Signing:    v1alpha1.Signing{SecretRef: v1alpha1.SecretKeyReference{Name: "signing"}},
	}
}

func TestWhatASpecLeavesOutIsTheInstallationsDefault(t *testing.T) {
	t.Parallel()
	spec := plainSpec()
	got := interpret(&spec, StandardDefaults(), Limits{}, anyURL)
	want := wish{
		spec: store.EndpointSpec{
			State: store.Enabled, URL: "https://hooks.example.com/invoices", EventTypes: []string{"invoice.*"},
			Timeout: 10 * time.Second, MaxConcurrency: 16, Payload: "Raw", MaxAttempts: 12, MaxDuration: 24 * time.Hour,
			BackoffBase: 10 * time.Second, BackoffFactor: 2, BackoffCap: 6 * time.Hour,
			FailureThreshold: 10, Cooldown: 30 * time.Second, MaxCooldown: 10 * time.Minute,
		},
		window: 24 * time.Hour,
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(wish{})); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

func TestWhatASpecSaysIsTaken(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		alter func(*v1alpha1.WebhookEndpointSpec)
		want  func(*wish)
	}{
		{"state", func(s *v1alpha1.WebhookEndpointSpec) { s.State = v1alpha1.StatePaused }, func(w *wish) { w.spec.State = store.Paused }},
		{"timeout, in any form", func(s *v1alpha1.WebhookEndpointSpec) { s.Timeout = "1s500ms" }, func(w *wish) { w.spec.Timeout = 1500 * time.Millisecond }},
		{"a window of zero is no absent window", func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.RotationWindow = "0s" }, func(w *wish) { w.window = 0 }},
		{"60m is an hour", func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.RotationWindow = "60m" }, func(w *wish) { w.window = time.Hour }},
		{
			"rate, with a second and a burst of its own",
			func(s *v1alpha1.WebhookEndpointSpec) { s.RateLimit = &v1alpha1.RateLimit{Requests: 5} },
			func(w *wish) { w.spec.Rate = &store.Rate{Requests: 5, Per: time.Second, Burst: 5} },
		},
		{
			"rate in full",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.RateLimit = &v1alpha1.RateLimit{Requests: 5, Per: "1m", Burst: 2}
			},
			func(w *wish) { w.spec.Rate = &store.Rate{Requests: 5, Per: time.Minute, Burst: 2} },
		},
		{"ordering", func(s *v1alpha1.WebhookEndpointSpec) { s.Ordering = v1alpha1.OrderingKey }, func(w *wish) { w.spec.Ordered = true }},
		{
			"headers",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.Headers = []v1alpha1.Header{{Name: "X-Team", Value: "billing"}}
			},
			func(w *wish) { w.headers = []store.Header{{Name: "X-Team", Value: "billing"}} },
		},
		{
			"a schedule sets the attempts",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.Retry = &v1alpha1.Retry{Schedule: []v1alpha1.Duration{"1s", "5s", "30s"}}
			},
			func(w *wish) {
				w.spec.Schedule, w.spec.MaxAttempts = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}, 4
			},
		},
		{
			"unless they are said",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.Retry = &v1alpha1.Retry{Schedule: []v1alpha1.Duration{"1s"}, MaxAttempts: 40}
			},
			func(w *wish) { w.spec.Schedule, w.spec.MaxAttempts = []time.Duration{time.Second}, 40 },
		},
		{
			"one attempt",
			func(s *v1alpha1.WebhookEndpointSpec) { s.Retry = &v1alpha1.Retry{MaxDuration: "0s"} },
			func(w *wish) { w.spec.MaxDuration = 0 },
		},
		{
			"backoff in part",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.Retry = &v1alpha1.Retry{Backoff: &v1alpha1.Backoff{Base: "1s", Factor: 3}}
			},
			func(w *wish) { w.spec.BackoffBase, w.spec.BackoffFactor = time.Second, 3 },
		},
		{
			"circuit breaker",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.CircuitBreaker = &v1alpha1.CircuitBreaker{FailureThreshold: 2, Cooldown: "5s", MaxCooldown: "5s"}
			},
			func(w *wish) {
				w.spec.FailureThreshold, w.spec.Cooldown, w.spec.MaxCooldown = 2, 5*time.Second, 5*time.Second
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			spec := plainSpec()
			want := interpret(&spec, StandardDefaults(), Limits{}, anyURL)
			test.want(&want)
			test.alter(&spec)
			got := interpret(&spec, StandardDefaults(), Limits{}, anyURL)
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(wish{})); diff != "" {
				t.Errorf("want -, got +\n%s", diff)
			}
		})
	}
}

func TestASpecThatCannotBeCarriedOutSaysWhy(t *testing.T) {
	t.Parallel()
	limits := Limits{Timeout: 20 * time.Second, MaxConcurrency: 50, RotationWindow: 48 * time.Hour, MaxAttempts: 20, MaxDuration: 48 * time.Hour}
	tests := []struct {
		name   string
		alter  func(*v1alpha1.WebhookEndpointSpec)
		policy error
		reason string
		says   []string
	}{
		{"timeout", func(s *v1alpha1.WebhookEndpointSpec) { s.Timeout = "25s" }, nil, "LimitExceeded", []string{"spec.timeout", "25s", "20s", "limits.timeout"}},
		{"concurrency", func(s *v1alpha1.WebhookEndpointSpec) { s.MaxConcurrency = 51 }, nil, "LimitExceeded", []string{"spec.maxConcurrency", "51", "50", "limits.maxConcurrency"}},
		{"window", func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.RotationWindow = "72h" }, nil, "LimitExceeded", []string{"spec.signing.rotationWindow", "72h", "48h"}},
		{"attempts", func(s *v1alpha1.WebhookEndpointSpec) { s.Retry = &v1alpha1.Retry{MaxAttempts: 21} }, nil, "LimitExceeded", []string{"spec.retry.maxAttempts", "21", "20"}},
		{
			"attempts by a schedule",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.Retry = &v1alpha1.Retry{Schedule: make([]v1alpha1.Duration, 20)}
				for i := range s.Retry.Schedule {
					s.Retry.Schedule[i] = "1s"
				}
			},
			nil, "LimitExceeded",
			[]string{"spec.retry.schedule", "21", "20", "limits.maxAttempts"},
		},
		{"duration", func(s *v1alpha1.WebhookEndpointSpec) { s.Retry = &v1alpha1.Retry{MaxDuration: "100h"} }, nil, "LimitExceeded", []string{"spec.retry.maxDuration", "100h", "48h"}},
		{
			"a base above the default cap",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.Retry = &v1alpha1.Retry{Backoff: &v1alpha1.Backoff{Base: "12h"}}
			},
			nil, "InvalidSpec",
			[]string{"spec.retry.backoff", "base 12h is above cap 6h (this installation's default)", "raise cap"},
		},
		{
			"a cap below the default base",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.Retry = &v1alpha1.Retry{Backoff: &v1alpha1.Backoff{Cap: "5s"}}
			},
			nil, "InvalidSpec",
			[]string{"base 10s (this installation's default) is above cap 5s", "lower base"},
		},
		{
			"a cooldown above the default maximum",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.CircuitBreaker = &v1alpha1.CircuitBreaker{Cooldown: "1h"}
			},
			nil, "InvalidSpec",
			[]string{"spec.circuitBreaker", "cooldown 1h is above maxCooldown 10m"},
		},
		{"a duration of another CRD", func(s *v1alpha1.WebhookEndpointSpec) { s.Timeout = "1d" }, nil, "InvalidSpec", []string{"spec.timeout", `"1d"`, "24h for a day"}},
		{"a URL of another CRD", func(s *v1alpha1.WebhookEndpointSpec) { s.URL = "https://a.example/%zz?token=hush" }, nil, "InvalidSpec", []string{"spec.url"}},
		{"policy", func(*v1alpha1.WebhookEndpointSpec) {}, errors.New("host is not allowed"), "URLNotAllowed", []string{"spec.url: host is not allowed"}},
		{
			"everything at once, the gravest first",
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.Timeout, s.MaxConcurrency = "25s", 51
				s.CircuitBreaker = &v1alpha1.CircuitBreaker{Cooldown: "1h"}
			},
			errors.New("host is not allowed"), "InvalidSpec",
			[]string{"spec.circuitBreaker", "spec.timeout", "spec.maxConcurrency", "spec.url"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			spec := plainSpec()
			test.alter(&spec)
			got := interpret(&spec, StandardDefaults(), limits, func(*url.URL) error { return test.policy })
			if got.hold.Reason != test.reason {
				t.Errorf("reason: got %q, want %q", got.hold.Reason, test.reason)
			}
			at := 0
			for _, part := range test.says {
				i := strings.Index(got.hold.Message[at:], part)
				if i < 0 {
					t.Fatalf("message: got %q, want %q in it, in this order: %q", got.hold.Message, part, test.says)
				}
				at += i
			}
			if strings.Contains(got.hold.Message, "hush") {
				t.Errorf("message %q shows the URL's query", got.hold.Message)
			}
		})
	}
}

// TestNothingIsCutDown is design 2's "never silently clamped".
func TestNothingIsCutDown(t *testing.T) {
	t.Parallel()
	spec := plainSpec()
	spec.Timeout, spec.MaxConcurrency = "25s", 51
	got := interpret(&spec, StandardDefaults(), Limits{Timeout: 20 * time.Second, MaxConcurrency: 50}, anyURL)
	if got.spec.Timeout != 25*time.Second || got.spec.MaxConcurrency != 51 {
		t.Errorf("got timeout %s and concurrency %d, want what was written", got.spec.Timeout, got.spec.MaxConcurrency)
	}
}

func TestDurationsAreWrittenAsPeopleDo(t *testing.T) {
	t.Parallel()
	for want, d := range map[string]time.Duration{
		"0s": 0, "500ms": 500 * time.Millisecond, "10s": 10 * time.Second, "1s500ms": 1500 * time.Millisecond,
		"10m": 10 * time.Minute, "1m30s": 90 * time.Second, "24h": 24 * time.Hour, "1h30m": 90 * time.Minute, "168h": 168 * time.Hour,
		"1h1s": time.Hour + time.Second,
	} {
		got := short(d)
		if got != want {
			t.Errorf("short(%s): got %q, want %q", d, got, want)
		}
		if back, err := v1alpha1.Duration(got).Duration(); err != nil || back != d {
			t.Errorf("short(%s) = %q, which the API reads as %s, %v", d, got, back, err)
		}
	}
}

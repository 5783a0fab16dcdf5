package controllers

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
)

// wish is what a spec asks for, with the installation's defaults filled in.
type wish struct {
	spec    store.EndpointSpec // without its headers, which are not sealed yet
	headers []store.Header
	window  time.Duration // in which a replaced key still signs
	hold    hold          // why it cannot be carried out; zero: it can
}

// hold is why an endpoint is not Ready: a reason of the Ready condition and a message for its owner. The zero hold
// means that it is.
type hold struct{ Reason, Message string }

// interpret turns a spec into what the store keeps. checkURL is the installation's policy.
//
// All problems are found at once. A spec with problems is interpreted all the same, as it was written, nothing cut down:
// its row is held, so nothing is sent by it, while events find it and wait until the spec is mended.
func interpret(s *v1alpha1.WebhookEndpointSpec, d Defaults, l Limits, checkURL func(*url.URL) error) wish {
	i := interpreter{}
	w := wish{
		spec: store.EndpointSpec{
			State:          store.State(cmp.Or(s.State, v1alpha1.StateEnabled)),
			URL:            s.URL,
			EventTypes:     patterns(s.EventTypes),
			Timeout:        i.duration("timeout", s.Timeout, d.Timeout),
			MaxConcurrency: number(s.MaxConcurrency, d.MaxConcurrency),
			Rate:           i.rate(s.RateLimit),
			Ordered:        s.Ordering == v1alpha1.OrderingKey,
			Payload:        string(cmp.Or(s.Payload, v1alpha1.PayloadRaw)),
		},
		headers: headers(s.Headers),
		window:  i.duration("signing.rotationWindow", s.Signing.RotationWindow, d.RotationWindow),
	}
	i.retry(&w.spec, s.Retry, d)
	i.breaker(&w.spec, s.CircuitBreaker, d)
	i.ceilings(w, s, l)
	i.url(s.URL, checkURL)
	w.hold = i.hold()
	return w
}

// interpreter gathers problems.
type interpreter struct{ problems []hold }

func (i *interpreter) problem(reason, field, format string, args ...any) {
	i.problems = append(i.problems, hold{Reason: reason, Message: "spec." + field + ": " + fmt.Sprintf(format, args...)})
}

// hold makes one of all problems: it names every one and carries the reason of the gravest. A spec that contradicts
// itself is the author's to mend alone, a ceiling and a policy may also be the platform team's.
func (i *interpreter) hold() hold {
	if len(i.problems) == 0 {
		return hold{}
	}
	gravity := []string{v1alpha1.ReasonInvalidSpec, v1alpha1.ReasonLimitExceeded, v1alpha1.ReasonURLNotAllowed}
	sorted := slices.Clone(i.problems)
	slices.SortStableFunc(sorted, func(a, b hold) int {
		return slices.Index(gravity, a.Reason) - slices.Index(gravity, b.Reason)
	})
	messages := make([]string, len(sorted))
	for n, p := range sorted {
		messages[n] = p.Message
	}
	return hold{Reason: sorted[0].Reason, Message: strings.Join(messages, "; ")}
}

// duration reads a duration. The API server admits no malformed one, but a CRD older or newer than this binary may.
func (i *interpreter) duration(field string, d v1alpha1.Duration, byDefault time.Duration) time.Duration {
	if d == "" {
		return byDefault
	}
	length, err := d.Duration()
	if err != nil {
		i.problem(v1alpha1.ReasonInvalidSpec, field, "%v", err)
		return byDefault
	}
	return length
}

func (i *interpreter) rate(r *v1alpha1.RateLimit) *store.Rate {
	if r == nil {
		return nil
	}
	requests := int(r.Requests)
	return &store.Rate{
		Requests: requests,
		Per:      i.duration("rateLimit.per", r.Per, time.Second),
		Burst:    number(r.Burst, requests),
	}
}

func (i *interpreter) retry(spec *store.EndpointSpec, r *v1alpha1.Retry, d Defaults) {
	if r == nil {
		r = &v1alpha1.Retry{}
	}
	for n, delay := range r.Schedule {
		spec.Schedule = append(spec.Schedule, i.duration(fmt.Sprintf("retry.schedule[%d]", n), delay, 0))
	}
	attempts := d.MaxAttempts
	if len(r.Schedule) > 0 {
		attempts = len(r.Schedule) + 1
	}
	spec.MaxAttempts = number(r.MaxAttempts, attempts)
	spec.MaxDuration = i.duration("retry.maxDuration", r.MaxDuration, d.MaxDuration)

	b := r.Backoff
	if b == nil {
		b = &v1alpha1.Backoff{}
	}
	spec.BackoffBase = i.duration("retry.backoff.base", b.Base, d.BackoffBase)
	spec.BackoffFactor = number(b.Factor, d.BackoffFactor)
	spec.BackoffCap = i.duration("retry.backoff.cap", b.Cap, d.BackoffCap)
	if r.Backoff != nil && spec.BackoffBase > spec.BackoffCap {
		i.order("retry.backoff", "base", string(b.Base), spec.BackoffBase, "cap", string(b.Cap), spec.BackoffCap)
	}
}

func (i *interpreter) breaker(spec *store.EndpointSpec, c *v1alpha1.CircuitBreaker, d Defaults) {
	if c == nil {
		c = &v1alpha1.CircuitBreaker{}
	}
	spec.FailureThreshold = number(c.FailureThreshold, d.FailureThreshold)
	spec.Cooldown = i.duration("circuitBreaker.cooldown", c.Cooldown, d.Cooldown)
	spec.MaxCooldown = i.duration("circuitBreaker.maxCooldown", c.MaxCooldown, d.MaxCooldown)
	if spec.Cooldown > spec.MaxCooldown {
		i.order("circuitBreaker", "cooldown", string(c.Cooldown), spec.Cooldown, "maxCooldown", string(c.MaxCooldown), spec.MaxCooldown)
	}
}

// order reports two lengths in the wrong order. The API server sees that where both are written; where one is the
// installation's default, only we do.
func (i *interpreter) order(field, small, smallText string, smallLength time.Duration, large, largeText string, largeLength time.Duration) {
	origin := func(text string) string {
		if text == "" {
			return " (this installation's default)"
		}
		return ""
	}
	i.problem(v1alpha1.ReasonInvalidSpec, field, "%s %s%s is above %s %s%s; lower %s or raise %s",
		small, short(smallLength), origin(smallText), large, short(largeLength), origin(largeText), small, large)
}

func (i *interpreter) ceilings(w wish, s *v1alpha1.WebhookEndpointSpec, l Limits) {
	attempts := "retry.maxAttempts"
	if s.Retry != nil && s.Retry.MaxAttempts == 0 && len(s.Retry.Schedule) > 0 {
		attempts = "retry.schedule"
	}
	i.length("timeout", "timeout", w.spec.Timeout, l.Timeout)
	i.count("maxConcurrency", "maxConcurrency", w.spec.MaxConcurrency, l.MaxConcurrency)
	i.length("signing.rotationWindow", "rotationWindow", w.window, l.RotationWindow)
	i.count(attempts, "maxAttempts", w.spec.MaxAttempts, l.MaxAttempts)
	i.length("retry.maxDuration", "maxDuration", w.spec.MaxDuration, l.MaxDuration)
}

func (i *interpreter) length(field, limit string, value, ceiling time.Duration) {
	if ceiling > 0 && value > ceiling {
		i.exceeded(field, limit, short(value), short(ceiling))
	}
}

func (i *interpreter) count(field, limit string, value, ceiling int) {
	if ceiling > 0 && value > ceiling {
		i.exceeded(field, limit, fmt.Sprint(value), fmt.Sprint(ceiling))
	}
}

func (i *interpreter) exceeded(field, limit, value, ceiling string) {
	i.problem(v1alpha1.ReasonLimitExceeded, field,
		"%s is above this installation's ceiling of %s; lower it, or ask the platform team to raise limits.%s", value, ceiling, limit)
}

// url asks the policy early. What counts is the address dialled, and that is judged when dialling.
func (i *interpreter) url(text string, check func(*url.URL) error) {
	u, err := url.Parse(text)
	if err != nil {
		// The parser's message repeats the URL, whose query may hold what is nobody's business.
		var detail *url.Error
		if errors.As(err, &detail) {
			err = detail.Err
		}
		i.problem(v1alpha1.ReasonInvalidSpec, "url", "cannot be read: %v; write an absolute URL such as https://hooks.example.com/invoices", err)
		return
	}
	if err := check(u); err != nil {
		i.problem(v1alpha1.ReasonURLNotAllowed, "url", "%v", err)
	}
}

func number(value int32, byDefault int) int {
	if value == 0 {
		return byDefault
	}
	return int(value)
}

func patterns(types []v1alpha1.EventTypePattern) []string {
	texts := make([]string, len(types))
	for i, t := range types {
		texts[i] = string(t)
	}
	return texts
}

func headers(list []v1alpha1.Header) []store.Header {
	var headers []store.Header
	for _, h := range list {
		headers = append(headers, store.Header{Name: h.Name, Value: h.Value})
	}
	return headers
}

// short writes a duration as people do and the API reads it: 24h, 1m30s, 1s500ms, 0s. It is whole milliseconds.
func short(d time.Duration) string {
	var b strings.Builder
	for _, unit := range []struct {
		length time.Duration
		name   string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d >= unit.length {
			fmt.Fprintf(&b, "%d%s", d/unit.length, unit.name)
			d %= unit.length
		}
	}
	return cmp.Or(b.String(), "0s")
}

package controllers

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	defaultRelease         = "postrider"
	defaultWorkers         = 8
	maxWorkers             = 64
	defaultShutdownTimeout = 20 * time.Second
)

// Config is what the platform team decides about this part. Validate reports what is wrong with it.
type Config struct {
	// Namespace and Release name the installation: the Helm release and its namespace, where the Lease is kept too.
	// Namespace is required. An empty Release is "postrider".
	Namespace, Release string

	// WatchNamespaces are the only ones whose endpoints are served. Empty: all.
	WatchNamespaces []string

	// TakeOver claims a database that belongs to another installation, whose endpoints may then be adopted.
	TakeOver bool

	// ConfirmSweep lets the sweep give up any number of rows whose object is gone. Without it, it stops at a tenth.
	ConfirmSweep bool

	// LeaderElection makes replicas take turns. False is for a single process that nobody runs beside.
	LeaderElection bool

	// StatusInterval is the least time between two writes of one endpoint's moving figures (the last success, the pending
	// count), 1 s to 1 h; with many endpoints it grows. Material changes do not wait for it. 0: 60 s.
	StatusInterval time.Duration

	// Workers are the reconciles that run at once. 0: 8.
	Workers int

	// ShutdownTimeout is how long a stop waits for running reconciles. 0: 20 s.
	ShutdownTimeout time.Duration

	// Defaults fill the fields that a spec leaves out, Limits are ceilings of what it may ask for.
	Defaults Defaults
	Limits   Limits

	// Logger receives one line a fact. Nil: slog.Default(). See also RedirectLogs.
	Logger *slog.Logger

	// What only tests change.
	clock      func() time.Time      // nil: time.Now
	budgets    budgets               // zero: those of the design
	resync     time.Duration         // 0: controller-runtime's ten hours
	registerer prometheus.Registerer // nil: controller-runtime's registry
	lease      leaseTimes            // zero: controller-runtime's 15 s, 10 s and 2 s
}

type leaseTimes struct{ duration, renew, retry time.Duration }

// Defaults are in force where a spec says nothing. They are never written into it.
type Defaults struct {
	Timeout          time.Duration
	MaxConcurrency   int
	RotationWindow   time.Duration
	MaxAttempts      int // unless there is a schedule: its length and one more
	MaxDuration      time.Duration
	BackoffBase      time.Duration
	BackoffFactor    int
	BackoffCap       time.Duration
	FailureThreshold int
	Cooldown         time.Duration
	MaxCooldown      time.Duration
}

// StandardDefaults returns the defaults of an installation whose platform team changed none.
func StandardDefaults() Defaults {
	return Defaults{
		Timeout:          10 * time.Second,
		MaxConcurrency:   16,
		RotationWindow:   24 * time.Hour,
		MaxAttempts:      12,
		MaxDuration:      24 * time.Hour,
		BackoffBase:      10 * time.Second,
		BackoffFactor:    2,
		BackoffCap:       6 * time.Hour,
		FailureThreshold: 10,
		Cooldown:         30 * time.Second,
		MaxCooldown:      10 * time.Minute,
	}
}

// Limits are the installation's ceilings, below those of the API itself. A spec that asks for more is refused, never
// cut down. 0: no ceiling but the API's.
type Limits struct {
	Timeout        time.Duration
	MaxConcurrency int
	RotationWindow time.Duration
	MaxAttempts    int
	MaxDuration    time.Duration
}

// Validate reports all problems at once, each with the field, the value and the remedy.
func (c Config) Validate() error {
	var p problemList
	if c.Namespace == "" {
		p.add("namespace: is empty; give the namespace of this release")
	}
	p.label("namespace", c.Namespace)
	p.label("release", c.Release)
	for i, namespace := range c.WatchNamespaces {
		if namespace == "" {
			p.add("watchNamespaces[%d]: is empty; leave the list out to watch all namespaces", i)
		}
		p.label(fmt.Sprintf("watchNamespaces[%d]", i), namespace)
	}
	if c.StatusInterval != 0 {
		within(&p, "statusInterval", c.StatusInterval, time.Second, time.Hour)
	}
	if c.Workers < 0 || c.Workers > maxWorkers {
		p.add("workers: %d is not from 1 to %d", c.Workers, maxWorkers)
	}
	if c.ShutdownTimeout < 0 {
		p.add("shutdownTimeout: %s is negative; give 0 for %s", c.ShutdownTimeout, defaultShutdownTimeout)
	}
	c.Defaults.validate(&p)
	c.Limits.validate(&p, c.Defaults)
	return errors.Join(p.problems...)
}

// validate holds the defaults to the bounds that the API sets for the fields they stand for.
func (d Defaults) validate(p *problemList) {
	const week = 168 * time.Hour
	within(p, "defaults.timeout", d.Timeout, time.Second, 30*time.Second)
	within(p, "defaults.maxConcurrency", d.MaxConcurrency, 1, 1000)
	within(p, "defaults.rotationWindow", d.RotationWindow, 0, week)
	within(p, "defaults.maxAttempts", d.MaxAttempts, 1, 100)
	within(p, "defaults.maxDuration", d.MaxDuration, 0, week)
	within(p, "defaults.backoff.base", d.BackoffBase, 100*time.Millisecond, week)
	within(p, "defaults.backoff.factor", d.BackoffFactor, 1, 10)
	within(p, "defaults.backoff.cap", d.BackoffCap, max(d.BackoffBase, 100*time.Millisecond), week)
	within(p, "defaults.failureThreshold", d.FailureThreshold, 1, 1000)
	within(p, "defaults.cooldown", d.Cooldown, time.Second, 24*time.Hour)
	within(p, "defaults.maxCooldown", d.MaxCooldown, max(d.Cooldown, time.Second), 24*time.Hour)
}

func (l Limits) validate(p *problemList, d Defaults) {
	ceiling(p, "timeout", l.Timeout, d.Timeout)
	ceiling(p, "maxConcurrency", l.MaxConcurrency, d.MaxConcurrency)
	ceiling(p, "rotationWindow", l.RotationWindow, d.RotationWindow)
	ceiling(p, "maxAttempts", l.MaxAttempts, d.MaxAttempts)
	ceiling(p, "maxDuration", l.MaxDuration, d.MaxDuration)
}

type problemList struct{ problems []error }

func (p *problemList) add(format string, args ...any) {
	p.problems = append(p.problems, fmt.Errorf(format, args...))
}

func (p *problemList) label(field, value string) {
	if value == "" {
		return
	}
	if problems := validation.IsDNS1123Label(value); len(problems) > 0 {
		p.add("%s: %q: %s", field, value, strings.Join(problems, "; "))
	}
}

type quantity interface{ ~int | ~int64 }

func within[T quantity](p *problemList, field string, value, low, high T) {
	if value < low || value > high {
		p.add("%s: %v is not from %v to %v", field, value, low, high)
	}
}

func ceiling[T quantity](p *problemList, field string, limit, byDefault T) {
	switch {
	case limit < 0:
		p.add("limits.%s: %v is negative; give 0 for no ceiling", field, limit)
	case limit > 0 && byDefault > limit:
		p.add("defaults.%s: %v is above limits.%s, %v; lower the default or raise the limit", field, byDefault, field, limit)
	}
}

// budgetsOfStatus are the budgets with what the configuration says.
func (c Config) budgetsOfStatus() budgets {
	b := c.budgets
	b.moving = orDefault(b.moving, c.StatusInterval)
	return b
}

func (c Config) release() string {
	if c.Release == "" {
		return defaultRelease
	}
	return c.Release
}

func (c Config) leaseName() string { return c.release() + "-controller" }

func (c Config) logger() *slog.Logger {
	if c.Logger == nil {
		return slog.Default()
	}
	return c.Logger
}

func (c Config) now() func() time.Time {
	if c.clock == nil {
		return time.Now
	}
	return c.clock
}

func orDefault[T comparable](value, byDefault T) T {
	var zero T
	if value == zero {
		return byDefault
	}
	return value
}

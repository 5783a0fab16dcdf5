package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/postrider/postrider/controllers"
	"github.com/postrider/postrider/destination"
)

// controlling configures the controllers.
type controlling struct {
	config controllers.Config
	site   *site
}

func controllerCommand() *cobra.Command {
	return partsCommand("controller", "Reconcile endpoints into the database, and write their status", controllerRegistry,
		func(s *site) []part { return []part{&controlling{site: s}} })
}

func (k *controlling) name() string { return "controller" }

func (k *controlling) needs() needs {
	return needs{keyring: true, destinations: true, kubernetes: true, serving: true, claims: true}
}

func (k *controlling) flags(f *pflag.FlagSet) {
	d := controllers.StandardDefaults()
	k.config.Defaults = d
	f.BoolVar(&k.config.TakeOver, "take-over", false, "claim a database that belongs to another installation, which must be gone; for one start")
	f.BoolVar(&k.config.ConfirmSweep, "confirm-sweep", false, "let the sweep give up any number of endpoints whose objects are gone, not a tenth at most; for one start")
	f.BoolVar(&k.config.LeaderElection, "leader-election", true, "let replicas take turns; only a single process may do without")
	f.IntVar(&k.config.Workers, "workers", 8, "reconciles at once")
	f.DurationVar(&k.config.StatusInterval, "status-interval", time.Minute, "least time between two writes of an endpoint's moving figures in its status; material changes do not wait for it")
	f.DurationVar(&k.config.ShutdownTimeout, "controller-shutdown-timeout", 0, "how long a stop waits for running reconciles (default 20s)")

	f.DurationVar(&k.config.Defaults.Timeout, "default-timeout", d.Timeout, "timeout of an endpoint that names none")
	f.IntVar(&k.config.Defaults.MaxConcurrency, "default-max-concurrency", d.MaxConcurrency, "maxConcurrency of an endpoint that names none")
	f.DurationVar(&k.config.Defaults.RotationWindow, "default-rotation-window", d.RotationWindow, "rotationWindow of an endpoint that names none")
	f.IntVar(&k.config.Defaults.MaxAttempts, "default-max-attempts", d.MaxAttempts, "retry.maxAttempts of an endpoint that names neither it nor a schedule")
	f.DurationVar(&k.config.Defaults.MaxDuration, "default-max-duration", d.MaxDuration, "retry.maxDuration of an endpoint that names none")
	f.DurationVar(&k.config.Defaults.BackoffBase, "default-backoff-base", d.BackoffBase, "retry.backoff.base of an endpoint that names none")
	f.IntVar(&k.config.Defaults.BackoffFactor, "default-backoff-factor", d.BackoffFactor, "retry.backoff.factor of an endpoint that names none")
	f.DurationVar(&k.config.Defaults.BackoffCap, "default-backoff-cap", d.BackoffCap, "retry.backoff.cap of an endpoint that names none")
	f.IntVar(&k.config.Defaults.FailureThreshold, "default-failure-threshold", d.FailureThreshold, "circuitBreaker.failureThreshold of an endpoint that names none")
	f.DurationVar(&k.config.Defaults.Cooldown, "default-cooldown", d.Cooldown, "circuitBreaker.cooldown of an endpoint that names none")
	f.DurationVar(&k.config.Defaults.MaxCooldown, "default-max-cooldown", d.MaxCooldown, "circuitBreaker.maxCooldown of an endpoint that names none")

	f.IntVar(&k.config.Limits.MaxConcurrency, "limit-max-concurrency", 0, "ceiling of an endpoint's maxConcurrency (default: that of the API)")
	f.DurationVar(&k.config.Limits.RotationWindow, "limit-rotation-window", 0, "ceiling of an endpoint's rotationWindow (default: that of the API)")
	f.IntVar(&k.config.Limits.MaxAttempts, "limit-max-attempts", 0, "ceiling of an endpoint's retry.maxAttempts (default: that of the API)")
	f.DurationVar(&k.config.Limits.MaxDuration, "limit-max-duration", 0, "ceiling of an endpoint's retry.maxDuration (default: that of the API)")
	mayChange(f, "default-timeout", "default-max-concurrency", "default-rotation-window", "default-max-attempts", "default-max-duration",
		"default-backoff-base", "default-backoff-factor", "default-backoff-cap", "default-failure-threshold", "default-cooldown", "default-max-cooldown",
		"limit-max-concurrency", "limit-rotation-window", "limit-max-attempts", "limit-max-duration")
}

func (k *controlling) validate() error {
	k.config.Namespace, k.config.Release = k.site.in.namespace, k.site.in.release
	k.config.Limits.Timeout = k.site.to.timeout
	k.config.WatchNamespaces = k.site.serves.namespaces
	return k.config.Validate()
}

func (k *controlling) build(_ context.Context, on ground) (runner, error) {
	c := k.config
	c.Logger = on.log
	return controllers.New(on.kubernetes, on.store, on.keyring, on.policy, c)
}

func (k *controlling) change(running runner, policy *destination.Policy) error {
	return running.(*controllers.Controllers).Change(k.config, policy) //nolint:errcheck,forcetypeassert // build made it
}

// controllerRegistry is controller-runtime's own, where its libraries have registered what they measure.
func controllerRegistry() registry {
	ctrlmetrics.Registry.MustRegister(buildInfo())
	return ctrlmetrics.Registry
}

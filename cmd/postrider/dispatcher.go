package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/controllers"
	"github.com/postrider/postrider/destination"
	"github.com/postrider/postrider/dispatcher"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
)

// dispatching configures the dispatcher.
type dispatching struct {
	config dispatcher.Config
	start  string // the token to start paused for; empty: none
	site   *site
}

func dispatcherCommand() *cobra.Command {
	return partsCommand("dispatcher", "Claim, sign and send what is due, and run the store's chores", newRegistry,
		func(s *site) []part { return []part{&dispatching{site: s}} })
}

func (d *dispatching) name() string { return "dispatcher" }

func (d *dispatching) needs() needs { return needs{keyring: true, destinations: true} }

func (d *dispatching) flags(f *pflag.FlagSet) {
	c := dispatcher.Config{}.WithDefaults()
	d.config = c
	f.IntVar(&d.config.Senders, "senders", c.Senders, "requests in flight at most in this replica")
	f.DurationVar(&d.config.Lease, "lease", c.Lease, "how long a claim is valid: what kill -9 of a replica costs its deliveries; at least --limit-timeout + --record-time")
	f.DurationVar(&d.config.RecordTime, "record-time", c.RecordTime, "kept of each lease for recording the outcome")
	f.DurationVar(&d.config.Grace, "grace", c.Grace, "how long requests in flight may go on after SIGTERM; give the pod a few seconds more")
	f.DurationVar(&d.config.PollMin, "poll-min", c.PollMin, "shortest time between two looks for due work without a notification")
	f.DurationVar(&d.config.PollMax, "poll-max", c.PollMax, "longest time between two looks for due work without a notification")
	f.IntVar(&d.config.ClaimLanes, "claim-lanes", c.ClaimLanes, "endpoints served by one claim at most")
	f.IntVar(&d.config.Endpoints, "remembered-endpoints", c.Endpoints, "endpoints remembered at most")
	f.DurationVar(&d.config.EventRetention, "event-retention", c.EventRetention, "how long events are kept; bodies that are still needed outlive it")
	f.DurationVar(&d.config.AttemptRetention, "attempt-retention", c.AttemptRetention, "how long the history of attempts is kept")
	f.DurationVar(&d.config.DeadLetterRetention, "dead-letter-retention", c.DeadLetterRetention, "how long dead letters are kept")
	f.DurationVar(&d.config.EndpointRetention, "endpoint-retention", c.EndpointRetention, "how long the rows of deleted endpoints are kept")
	f.StringVar(&d.start, "start-paused", "", "a text of your choice, such as the date of a restore: whoever starts with it first pauses the whole installation before anything is sent, once for each text; see `postrider resume`")
	mayChange(f, "event-retention", "attempt-retention", "dead-letter-retention", "endpoint-retention")
}

func (d *dispatching) validate() error {
	d.config.Version = version
	// One ceiling for both: what the controller accepts is what a lease must outlast.
	if limit := d.site.to.timeout; limit > 0 {
		d.config.MaxTimeout = limit
	}
	return errors.Join(d.config.Validate(), printable("start-paused", d.start))
}

func (d *dispatching) build(ctx context.Context, on ground) (runner, error) {
	// Better no dispatcher than one that cannot sign, or one with the keyring of another installation.
	if err := checkKeyring(ctx, on.store, on.keyring); err != nil {
		return nil, err
	}
	if err := d.startPaused(ctx, on); err != nil {
		return nil, err
	}
	return dispatcher.New(d.config, dispatcher.Dependencies{ //nolint:contextcheck // its requests end by Run's context, not by this one
		Store: on.store, Keyring: on.keyring, Policy: on.policy, Logger: on.log, Metrics: on.metrics,
	})
}

// startPaused pauses the installation if it is to start paused and nobody has done so yet for the same token. No dispatcher
// is made before, so that nothing is sent of a database that was just restored.
func (d *dispatching) startPaused(ctx context.Context, on ground) error {
	if d.start == "" {
		return nil
	}
	return insist(ctx, on.log, store.IsUnavailable, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, startPatience)
		defer cancel()
		first, err := on.store.StartPaused(ctx, d.start, "it was started paused ("+d.start+")")
		if err == nil && first {
			on.log.Warn("the installation starts paused; end that with `postrider resume`", "event", "paused", "reason", d.start)
		}
		return err
	})
}

func (d *dispatching) change(running runner, policy *destination.Policy) error {
	return running.(*dispatcher.Dispatcher).Change(d.config, policy) //nolint:errcheck,forcetypeassert // build made it
}

// checkKeyring refuses a keyring that lacks a key which the database needs. A database that is away is no reason to refuse.
func checkKeyring(ctx context.Context, s *store.Store, ring *keyring.Keyring) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	err := controllers.CheckKeyring(ctx, s, ring)
	if store.IsUnavailable(err) {
		return nil
	}
	return err
}

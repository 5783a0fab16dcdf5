package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/controllers"
	"github.com/postrider/postrider/dispatcher"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
)

// dispatching configures the dispatcher.
type dispatching struct {
	config dispatcher.Config
	limits *limits
}

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
}

func (d *dispatching) validate() error {
	d.config.Version = version
	// One ceiling for both: what the controller accepts is what a lease must outlast.
	if d.limits.timeout > 0 {
		d.config.MaxTimeout = d.limits.timeout
	}
	return d.config.Validate()
}

// limits are the ceilings that more than one part must know.
type limits struct {
	timeout time.Duration
}

func (l *limits) flags(f *pflag.FlagSet) {
	f.DurationVar(&l.timeout, "limit-timeout", 30*time.Second, "ceiling of an endpoint's timeout, 1s to 30s")
}

func (l *limits) validate() error { return nil }

func dispatcherCommand() *cobra.Command {
	var db database
	var in installation
	var log logging
	var watch observing
	var ring keys
	var to reach
	var lim limits
	d := dispatching{limits: &lim}
	return configure(&cobra.Command{
		Use:   "dispatcher",
		Short: "Claim, sign and send what is due, and run the store's chores",
		RunE: func(c *cobra.Command, _ []string) error {
			logger := log.logger("dispatcher")
			return runParts(c.Context(), logger, &watch, newRegistry(), d.part(&db, in, &ring, &to))
		},
	}, &db, &in, &log, &watch, &ring, &to, &lim, &d)
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

func (d *dispatching) part(db *database, in installation, ring *keys, to *reach) part {
	return func(ctx context.Context, log *slog.Logger, metrics prometheus.Registerer) (runner, func(), error) {
		opened, err := ring.open()
		if err != nil {
			return nil, nil, err
		}
		policy, err := to.policy()
		if err != nil {
			return nil, nil, err
		}
		s, err := db.owned(ctx, log, "dispatcher", in)
		if err != nil {
			return nil, nil, err
		}
		metrics.MustRegister(newPoolMetrics(s, "dispatcher"))
		// Better no dispatcher than one that cannot sign, or one with the keyring of another installation.
		if err := checkKeyring(ctx, s, opened); err != nil {
			s.Close()
			return nil, nil, err
		}
		p, err := dispatcher.New(d.config, dispatcher.Dependencies{Store: s, Keyring: opened, Policy: policy, Logger: log, Metrics: metrics}) //nolint:contextcheck // its requests end by Run's context, not by this one
		if err != nil {
			s.Close()
			return nil, nil, err
		}
		return p, s.Close, nil
	}
}

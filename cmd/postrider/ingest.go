package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/controllers"
	"github.com/postrider/postrider/ingest"
)

// accepting configures ingest.
type accepting struct {
	config ingest.Config
}

func (a *accepting) flags(f *pflag.FlagSet) {
	c := ingest.DefaultConfig()
	a.config = c
	f.StringVar(&a.config.Address, "address", c.Address, "where events are accepted, host:port")
	f.StringVar(&a.config.TLSCertFile, "tls-cert-file", "", "certificate chain, PEM; with --tls-key-file it turns TLS on; reloaded when it changes")
	f.StringVar(&a.config.TLSKeyFile, "tls-key-file", "", "its key, PEM")
	f.BoolVar(&a.config.InsecureNoAuth, "insecure-no-auth", false, "accept without a credential; for development: on a loopback --address only")
	f.Int64Var(&a.config.BodyLimit, "body-limit", c.BodyLimit, "bytes of a request's body at most")
	f.DurationVar(&a.config.IdempotencyWindow, "idempotency-window", c.IdempotencyWindow, "how long an idempotency key is remembered")
	f.IntVar(&a.config.MaxInFlight, "max-in-flight", c.MaxInFlight, "requests under way at most; more are answered 503")
	f.IntVar(&a.config.MaxConnections, "max-connections", c.MaxConnections, "open connections at most")
	f.DurationVar(&a.config.BodyTimeout, "body-timeout", c.BodyTimeout, "how long a client may take to send its body")
	f.DurationVar(&a.config.DatabaseTimeout, "database-timeout", c.DatabaseTimeout, "bound on each call to the database, waiting for a connection included")
	f.DurationVar(&a.config.Review.Timeout, "review-timeout", c.Review.Timeout, "bound on the review of a credential, its retries included")
	f.DurationVar(&a.config.Review.AllowFor, "review-allow-for", c.Review.AllowFor, "how long an allowing review counts: a revoked permission takes this long to be noticed")
	f.DurationVar(&a.config.Review.DenyFor, "review-deny-for", c.Review.DenyFor, "how long a refusing review counts")
	f.DurationVar(&a.config.Review.OutageGrace, "outage-grace", c.Review.OutageGrace, "how long a lately allowed identity is let in while the Kubernetes API is away; 0: never")
	f.IntVar(&a.config.Review.MaxInFlight, "review-max-in-flight", c.Review.MaxInFlight, "reviews under way at most for credentials not seen before")
	f.IntVar(&a.config.Review.Remember, "review-remember", c.Review.Remember, "credentials remembered at most, by their SHA-256")
	f.DurationVar(&a.config.DrainDelay, "drain-delay", c.DrainDelay, "how long to serve on after SIGTERM while unready")
	f.DurationVar(&a.config.ShutdownTimeout, "shutdown-timeout", c.ShutdownTimeout, "how long requests under way may take after that")
}

func (a *accepting) validate() error { return a.config.Validate() }

func ingestCommand() *cobra.Command {
	var db database
	var in installation
	var log logging
	var watch observing
	var kube cluster
	var a accepting
	return configure(&cobra.Command{
		Use:   "ingest",
		Short: "Accept events over HTTP",
		RunE: func(c *cobra.Command, _ []string) error {
			logger := log.logger("ingest")
			controllers.RedirectLogs(logger.Handler()) // what the Kubernetes libraries log
			return runParts(c.Context(), logger, &watch, newRegistry(), a.part(&db, in, &kube))
		},
	}, &db, &in, &log, &watch, &kube, &a)
}

func (a *accepting) part(db *database, in installation, kube *cluster) part {
	return func(ctx context.Context, log *slog.Logger, metrics prometheus.Registerer) (runner, func(), error) {
		var config *rest.Config
		if !a.config.InsecureNoAuth {
			var err error
			if config, err = kube.config(); err != nil {
				return nil, nil, err
			}
		}
		s, err := db.owned(ctx, log, "ingest", in)
		if err != nil {
			return nil, nil, err
		}
		metrics.MustRegister(newPoolMetrics(s, "ingest"))
		server, err := ingest.New(a.config, ingest.Parts{Store: s, Kubernetes: config, Log: log, Metrics: metrics})
		if err != nil {
			s.Close()
			return nil, nil, err
		}
		return server, s.Close, nil
	}
}

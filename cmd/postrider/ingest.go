package main

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/destination"
	"github.com/postrider/postrider/ingest"
)

// accepting configures ingest.
type accepting struct {
	config ingest.Config
	site   *site
}

func ingestCommand() *cobra.Command {
	return partsCommand("ingest", "Accept events over HTTP", newRegistry, func(s *site) []part { return []part{&accepting{site: s}} })
}

func (a *accepting) name() string { return "ingest" }

func (a *accepting) needs() needs { return needs{kubernetes: !a.config.InsecureNoAuth, serving: true} }

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
	f.IntVar(&a.config.MaxWaitingEvents, "max-waiting-events", c.MaxWaitingEvents, "events that wait for a commit at most; more are answered 503")
	f.Int64Var(&a.config.MaxWaitingBytes, "max-waiting-bytes", c.MaxWaitingBytes, "bytes of these events at most")
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

func (a *accepting) validate() error {
	a.config.WatchNamespaces = a.site.serves.namespaces
	return a.config.Validate()
}

func (a *accepting) build(_ context.Context, on ground) (runner, error) {
	return ingest.New(a.config, ingest.Parts{Store: on.store, Kubernetes: on.kubernetes, Log: on.log, Metrics: on.metrics})
}

// change has nothing to do: of ingest's settings none may change but what is logged.
func (*accepting) change(runner, *destination.Policy) error { return nil }

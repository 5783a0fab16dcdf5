package main

import (
	"context"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/controllers"
	"github.com/postrider/postrider/destination"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
)

// site is where the parts of a process run: what configures their surroundings, once for all of them.
type site struct {
	db    database
	in    installation
	log   logging
	watch observing
	ring  keys
	to    reach
	kube  cluster
}

// needs says what a part is built on, beside the database.
type needs struct {
	keyring      bool // to seal or open what is secret in the database
	destinations bool // what may be sent where, and for how long
	kubernetes   bool
	claims       bool // it claims the database for the installation itself, in the cluster's name
}

// part is a part of Postrider: its own settings, and how it is made of them and of what it needs.
type part interface {
	settings
	name() string
	needs() needs
	build(context.Context, ground) (runner, error)
}

// ground is what a part is built on, opened and checked. What it did not ask for is nil.
type ground struct {
	log        *slog.Logger
	metrics    prometheus.Registerer
	store      *store.Store
	keyring    *keyring.Keyring
	policy     *destination.Policy
	kubernetes *rest.Config
}

// runner is a part that is ready to run.
type runner interface {
	Run(context.Context) error
	Ready() error
}

// partsCommand makes the command that runs these parts in one process.
func partsCommand(use, short string, s *site, metrics func() registry, parts ...part) *cobra.Command {
	return configure(&cobra.Command{
		Use:   use,
		Short: short,
		RunE: func(c *cobra.Command, _ []string) error {
			log := s.log.logger(use)
			controllers.RedirectLogs(log.Handler()) // what the Kubernetes libraries log
			return runParts(c.Context(), log, s, metrics(), parts...)
		},
	}, s.settings(parts...)...)
}

// settings are those of some parts and of what they need.
func (s *site) settings(parts ...part) []settings {
	all := []settings{&s.db, &s.in, &s.log, &s.watch}
	for _, needed := range []struct {
		by func(needs) bool
		settings
	}{
		{func(n needs) bool { return n.keyring }, &s.ring},
		{func(n needs) bool { return n.destinations }, &s.to},
		{func(n needs) bool { return n.kubernetes }, &s.kube},
	} {
		if slices.ContainsFunc(parts, func(p part) bool { return needed.by(p.needs()) }) {
			all = append(all, needed.settings)
		}
	}
	for _, p := range parts {
		all = append(all, p)
	}
	return all
}

// prepare builds a part. It waits for the database; what cannot be mended by waiting is found before.
func (s *site) prepare(ctx context.Context, log *slog.Logger, metrics prometheus.Registerer, p part) (runner, *store.Store, error) {
	n := p.needs()
	on := ground{log: log, metrics: metrics}
	var err error
	if n.keyring {
		if on.keyring, err = s.ring.open(); err != nil {
			return nil, nil, err
		}
	}
	if n.destinations {
		if on.policy, err = s.to.policy(); err != nil {
			return nil, nil, err
		}
	}
	if n.kubernetes {
		if on.kubernetes, err = s.kube.config(); err != nil {
			return nil, nil, err
		}
	}
	if n.claims {
		on.store, err = s.db.open(ctx, log, p.name())
	} else {
		on.store, err = s.db.owned(ctx, log, p.name(), s.in)
	}
	if err != nil {
		return nil, nil, err
	}
	metrics.MustRegister(newPoolMetrics(on.store, p.name()))
	running, err := p.build(ctx, on)
	if err != nil {
		on.store.Close()
		return nil, nil, err
	}
	return running, on.store, nil
}

package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/destination"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
)

// part is a part of Postrider: its own settings, and how it is made of them and of what it needs.
type part interface {
	settings
	name() string
	needs() needs
	// build makes the part of its settings.
	build(context.Context, ground) (runner, error)
	// change puts those of its settings that may change in force in a part that build made of others.
	change(runner, *destination.Policy) error
}

// needs says what a part is built on, beside the database.
type needs struct {
	keyring      bool // to seal or open what is secret in the database
	destinations bool // what may be sent where, and for how long
	kubernetes   bool
	serving      bool // which namespaces are served
	claims       bool // it claims the database for the installation itself, in the cluster's name
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

// prepare opens what a part needs, but for what may change. It waits for the database; what cannot be mended by waiting is
// found before. The caller closes the store.
func (s *site) prepare(ctx context.Context, log *slog.Logger, metrics prometheus.Registerer, schema *schemaWatch, p part) (ground, error) {
	n := p.needs()
	on := ground{log: log, metrics: metrics}
	var err error
	if n.keyring {
		if on.keyring, err = s.ring.open(); err != nil {
			return ground{}, err
		}
	}
	if n.kubernetes {
		if on.kubernetes, err = s.kube.config(); err != nil {
			return ground{}, err
		}
	}
	if n.claims {
		on.store, err = s.db.open(ctx, log, schema, p.name())
	} else {
		on.store, err = s.db.owned(ctx, log, schema, p.name(), s.in)
	}
	if err != nil {
		return ground{}, err
	}
	if n.kubernetes && !n.claims {
		if err := ownInCluster(ctx, log, on.store, s.in, on.kubernetes); err != nil {
			on.store.Close()
			return ground{}, err
		}
	}
	metrics.MustRegister(newPoolMetrics(on.store, p.name()))
	return on, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/store"
)

// startPatience bounds each question to the database at the start.
const startPatience = 10 * time.Second

// database says where Postgres is.
type database struct {
	url       string
	directURL string
	maxConns  int32
}

func (d *database) flags(f *pflag.FlagSet) {
	f.StringVar(&d.url, "database-url", "", "Postgres, postgres://user:password@host:port/name; better given as "+variable("database-url")+", which no process list shows (required)")
	f.StringVar(&d.directURL, "database-direct-url", "", "the same past a connection pooler, for listening and locks (default: --database-url)")
	f.Int32Var(&d.maxConns, "database-max-conns", 10, "connections at most")
}

func (d *database) validate() error {
	var problems []error
	if d.url == "" {
		problems = append(problems, fmt.Errorf("--database-url: is missing; give it as %s", variable("database-url")))
	}
	if d.maxConns < 2 || d.maxConns > 1000 {
		problems = append(problems, fmt.Errorf("--database-max-conns: %d is not from 2 to 1000", d.maxConns))
	}
	return errors.Join(problems...)
}

func (d *database) direct() string {
	if d.directURL != "" {
		return d.directURL
	}
	return d.url
}

// waitForSchema returns once this binary may run on the database's schema, and says what it waits for when that changes.
func (d *database) waitForSchema(ctx context.Context, log *slog.Logger) error {
	said := ""
	return migrations.Wait(ctx, d.url, time.Second, func(err error) {
		if text := err.Error(); text != said {
			said = text
			log.Warn("waiting for the database", "reason", text)
		}
	})
}

// open waits for the schema and opens the store.
func (d *database) open(ctx context.Context, log *slog.Logger, part string) (*store.Store, error) {
	if err := d.waitForSchema(ctx, log); err != nil {
		return nil, err
	}
	return store.Open(ctx, store.Options{DSN: d.url, DirectDSN: d.directURL, MaxConns: d.maxConns, Application: "postrider-" + part})
}

// owned opens the store of a part that does not talk to the cluster about it: it takes the installation's word.
func (d *database) owned(ctx context.Context, log *slog.Logger, part string, in installation) (*store.Store, error) {
	s, err := d.open(ctx, log, part)
	if err != nil {
		return nil, err
	}
	for {
		err := own(ctx, s, in)
		if err == nil {
			return s, nil
		}
		if !store.IsUnavailable(err) {
			s.Close()
			return nil, err
		}
		log.Warn("waiting for the database", "reason", err.Error())
		select {
		case <-ctx.Done():
			s.Close()
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// own asks once. It has a deadline: a connection that leads nowhere must not hang the start.
func own(ctx context.Context, s *store.Store, in installation) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return s.Own(ctx, store.Installation{Namespace: in.namespace, Release: in.release}, false)
}

// installation names this release of Postrider: one owns a database.
type installation struct {
	namespace string
	release   string
}

func (i *installation) flags(f *pflag.FlagSet) {
	f.StringVar(&i.namespace, "namespace", "", "namespace of this release (required)")
	f.StringVar(&i.release, "release", "postrider", "name of this release")
}

func (i *installation) validate() error {
	var problems []error
	if i.namespace == "" {
		problems = append(problems, fmt.Errorf("--namespace: is missing; give the namespace of this release"))
	}
	if i.release == "" {
		problems = append(problems, fmt.Errorf("--release: is empty; give the name of this release"))
	}
	return errors.Join(problems...)
}

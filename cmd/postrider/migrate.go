package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/store"
)

type migrating struct {
	timeout time.Duration
}

func (m *migrating) flags(f *pflag.FlagSet) {
	f.DurationVar(&m.timeout, "timeout", 10*time.Minute, "how long to go on trying")
}

func (m *migrating) validate() error {
	if m.timeout <= 0 {
		return fmt.Errorf("--timeout: %s is not above 0", m.timeout)
	}
	return nil
}

func migrateCommand() *cobra.Command {
	var d database
	var l logging
	var m migrating
	wait := false
	c := configure(&cobra.Command{
		Use:   "migrate --wait | migrate up",
		Short: "Wait for the database schema, or bring it up to date",
		RunE: func(c *cobra.Command, _ []string) error {
			if !wait {
				return errors.New("migrate: give --wait to wait for the schema, or `migrate up` to bring it up to date")
			}
			ctx, cancel := context.WithTimeout(c.Context(), m.timeout)
			defer cancel()
			return newSchemaWatch().wait(ctx, l.logger("migrate"), &d)
		},
	}, &d, &l, &m)
	c.Flags().BoolVar(&wait, "wait", false, "return once this binary may run on the schema; changes nothing")
	c.AddCommand(migrateUpCommand())
	return c
}

func migrateUpCommand() *cobra.Command {
	var d database
	var l logging
	var m migrating
	return configure(&cobra.Command{
		Use:   "up",
		Short: "Bring the database schema up to date",
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(c.Context(), m.timeout)
			defer cancel()
			log := l.logger("migrate")
			if err := insist(ctx, log, migrationPasses, d.migrate); err != nil {
				return err
			}
			log.Info("the database schema is up to date")
			return nil
		},
	}, &d, &l, &m)
}

// migrationPasses tells that a migration is worth another try: the database is away, or somebody reads for long what it is to
// change.
func migrationPasses(err error) bool { return store.IsUnavailable(err) || migrations.IsLocked(err) }

// migrate reads the connection string anew each time.
func (d *database) migrate(ctx context.Context) error {
	dsn, err := d.direct()
	if err != nil {
		return err
	}
	return migrations.Up(ctx, dsn)
}

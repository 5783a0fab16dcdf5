package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	pgxuuid "github.com/vgarvardt/pgx-google-uuid/v5"
)

// Open makes the pool. It connects when first used: a database that is away does not fail it.
func Open(ctx context.Context, o Options) (*Store, error) {
	access, err := o.access()
	if err != nil {
		return nil, err
	}
	if err := access.Validate(); err != nil {
		return nil, err
	}
	config, err := o.pooled(access)
	if err != nil {
		return nil, err
	}
	config.MaxConns = cmp.Or(max(o.MaxConns, 0), 10)
	// A database that moved to another address behind the same name is noticed by new connections.
	config.MaxConnLifetime = 30 * time.Minute
	config.MaxConnLifetimeJitter = 5 * time.Minute
	config.HealthCheckPeriod = 15 * time.Second
	// Without this, ids travel as text and an error is made for each.
	config.AfterConnect = func(_ context.Context, conn *pgx.Conn) error {
		pgxuuid.Register(conn.TypeMap())
		return nil
	}
	if o.Reread != nil {
		config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { return o.refresh(c) }
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("make the connection pool: %w", err)
	}
	return &Store{pool: pool, options: o, clock: newDatabaseClock(), keys: map[int64]string{}, places: map[chore]place{}}, nil
}

// Validate reports what in the connection strings cannot be understood. What it returns holds no password.
func (a Access) Validate() error {
	var o Options
	_, err := o.pooled(a)
	if err == nil {
		_, err = o.direct(a)
	}
	return err
}

// access says how the database is reached now.
func (o Options) access() (Access, error) {
	if o.Reread == nil {
		return Access{DSN: o.DSN, DirectDSN: o.DirectDSN}, nil
	}
	access, err := o.Reread()
	if err != nil {
		return Access{}, &accessError{err}
	}
	return access, nil
}

// pooled has what connections of the pool need.
func (o Options) pooled(a Access) (*pgxpool.Config, error) {
	config, err := pgxpool.ParseConfig(a.DSN)
	if err != nil {
		return nil, &accessError{fmt.Errorf("database DSN: %w", withoutDSN(err))}
	}
	o.tune(config.ConnConfig)
	if a.DirectDSN == "" {
		plan(config.ConnConfig)
		return config, nil
	}
	// There is a pooler in between: it would refuse parameters that it does not follow, see FitRole. A statement that was
	// prepared on one connection is not there on the next, unless the pooler sees to it and the DSN says so.
	if !strings.Contains(a.DSN, "default_query_exec_mode") {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	return config, nil
}

// direct has what a connection needs that keeps its session.
func (o Options) direct(a Access) (*pgx.ConnConfig, error) {
	if a.DirectDSN == "" {
		config, err := o.pooled(a)
		if err != nil {
			return nil, err
		}
		return config.ConnConfig, nil
	}
	config, err := pgx.ParseConfig(a.DirectDSN)
	if err != nil {
		return nil, &accessError{fmt.Errorf("direct database DSN: %w", withoutDSN(err))}
	}
	o.tune(config)
	plan(config)
	return config, nil
}

// refresh brings what a new connection of the pool is made with up to date: address, role, password, certificates.
func (o Options) refresh(c *pgx.ConnConfig) error {
	access, err := o.access()
	if err != nil {
		return err
	}
	config, err := o.pooled(access)
	if err != nil {
		return err
	}
	*c = *config.ConnConfig
	return nil
}

// connect makes a connection of its own, past a pooler.
func (s *Store) connect(ctx context.Context) (*pgx.Conn, error) {
	access, err := s.options.access()
	if err != nil {
		return nil, err
	}
	config, err := s.options.direct(access)
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config)
}

// tune sets what each connection needs.
func (o Options) tune(c *pgx.ConnConfig) {
	if o.lookUp != nil {
		c.LookupFunc = o.lookUp
	}
	c.ConnectTimeout = 5 * time.Second
	if o.Refused != nil {
		before := c.OnPgError
		c.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
			if notWelcome(err) {
				o.Refused(err.Message)
			}
			return before(conn, err)
		}
	}
	c.RuntimeParams["application_name"] = cmp.Or(o.Application, "postrider")
	c.RuntimeParams["timezone"] = "UTC"
}

// roleSettings are what every session needs, wherever it is set.
var roleSettings = map[string]string{
	// The queue's tables are planned while empty and run while full, or full of dead rows: their statistics are never
	// to be trusted, and a plan made for an empty table scans a full one.
	"enable_seqscan":    "off",
	"enable_bitmapscan": "off",
	"plan_cache_mode":   "force_generic_plan",
	"jit":               "off",
	// Whoever vanished from the network must not keep its locks.
	"idle_in_transaction_session_timeout": "10s",
}

// plan sets it for one connection to Postgres itself.
func plan(c *pgx.ConnConfig) {
	p := c.RuntimeParams
	maps.Copy(p, roleSettings)
	p["tcp_keepalives_idle"] = "15"
	p["tcp_keepalives_interval"] = "5"
	p["tcp_keepalives_count"] = "3"
}

// accessError means that how the database is reached could not be read, or not understood. With Reread, somebody may be
// about to write it anew: it counts as a database that is away.
type accessError struct{ error }

func (e *accessError) Unwrap() error { return e.error }

// withoutDSN keeps the parser's reason and drops the connection string, which may hold a password.
func withoutDSN(err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		if cause := errors.Unwrap(err); cause != nil {
			return cause
		}
		return errors.New("it cannot be parsed")
	}
	return errors.New("it cannot be parsed")
}

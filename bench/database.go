package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/store"
)

// database is one of a unit's own, copied from a template and dropped after it.
type database struct {
	stage     *stage
	name, dsn string
	conn      *pgx.Conn // for questions beside the measured work
	endpoints []store.Endpoint
}

// template is a database that units copy, with the endpoints in it.
type template struct {
	name      string
	endpoints []store.Endpoint
}

const loadConns = 4

// meetPostgres finds out whose processes to watch and what the server is.
func (s *stage) meetPostgres(ctx context.Context) error {
	return s.onServer(ctx, func(conn *pgx.Conn) error {
		fields, err := statOf(int(conn.PgConn().PID()))
		if err != nil {
			return err
		}
		if s.postmaster, err = strconv.Atoi(fields[4]); err != nil {
			return fmt.Errorf("find the server's process: %w", err)
		}
		return conn.QueryRow(ctx, `SHOW server_version`).Scan(&s.version)
	})
}

func (s *stage) onServer(ctx context.Context, f func(*pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, s.postgres.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	return f(conn)
}

// prepare makes the template of a layout, once.
func (s *stage) prepare(ctx context.Context, name string, fill func(context.Context, *database) error) (template, error) {
	if made, ok := s.templates[name]; ok {
		return made, nil
	}
	db, err := s.create(ctx, "template_"+name, "template0")
	if err != nil {
		return template{}, err
	}
	if err := fill(ctx, db); err != nil {
		return template{}, fmt.Errorf("fill the template %s: %w", name, errors.Join(err, db.drop(ctx)))
	}
	made := template{name: db.name, endpoints: db.endpoints}
	s.templates[name] = made
	return made, db.conn.Close(ctx) // nobody may be connected while it is copied
}

// migrated fills a template with the product's schema and then with more.
func migrated(more func(context.Context, *database) error) func(context.Context, *database) error {
	return func(ctx context.Context, db *database) error {
		if err := migrations.Up(ctx, db.dsn); err != nil {
			return err
		}
		return more(ctx, db)
	}
}

// copyOf makes a database from a template. A checkpoint follows: what a unit then writes for the first time since is new
// to every unit alike.
func (s *stage) copyOf(ctx context.Context, t template) (*database, error) {
	s.databases++
	db, err := s.create(ctx, fmt.Sprintf("unit_%d", s.databases), t.name)
	if err != nil {
		return nil, err
	}
	db.endpoints = t.endpoints
	return db, db.exec(ctx, `CHECKPOINT`)
}

func (s *stage) create(ctx context.Context, name, from string) (*database, error) {
	err := s.onServer(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE "+pgx.Identifier{from}.Sanitize())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("make the database %s: %w", name, err)
	}
	return s.connect(ctx, template{name: name})
}

// connect opens a database that is there.
func (s *stage) connect(ctx context.Context, t template) (*database, error) {
	db := &database{stage: s, name: t.name, dsn: s.postgres.DSN(t.name), endpoints: t.endpoints}
	var err error
	if db.conn, err = pgx.Connect(ctx, db.dsn); err != nil {
		return nil, fmt.Errorf("connect to the database %s: %w", t.name, err)
	}
	return db, nil
}

// drop ends the database, also after the context has ended.
func (db *database) drop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	_ = db.conn.Close(ctx)
	return db.stage.onServer(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{db.name}.Sanitize()+" WITH (FORCE)")
		return err
	})
}

// store opens the product's store on the database.
func (db *database) store(ctx context.Context, conns int32) (*store.Store, error) {
	return store.Open(ctx, store.Options{DSN: db.dsn, MaxConns: conns, Application: "bench"})
}

func (db *database) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := db.conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

func ask[T any](ctx context.Context, db *database, query string, args ...any) (answer T, err error) {
	if err = db.conn.QueryRow(ctx, query, args...).Scan(&answer); err != nil {
		err = fmt.Errorf("%s: %w", query, err)
	}
	return answer, err
}

// walPosition in bytes.
func (db *database) walPosition(ctx context.Context) (float64, error) {
	return ask[float64](ctx, db, `SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8`)
}

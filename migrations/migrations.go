package migrations

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	_ "github.com/jackc/pgx/v5/stdlib" // the database/sql driver that goose needs
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
	"github.com/pressly/goose/v3/lock"
)

// FS holds the migrations in its root.
//
//go:embed *.sql
var FS embed.FS

var (
	// ErrBehind is returned by Check while the database lacks migrations that this binary needs. Waiting helps.
	ErrBehind = errors.New("the database schema is behind this binary")
	// ErrIncompatible is returned by Check when the schema no longer supports this binary. Waiting does not help.
	ErrIncompatible = errors.New("the database schema is too new for this binary")
	// ErrEdited is returned when an applied migration differs from the embedded one.
	ErrEdited = errors.New("an applied migration was edited afterwards")
)

const versionTable = "postrider.schema_version"

// Up applies what is missing. Two at once are safe: the second waits for the first. The lock is polled with
// try-lock, since a blocking advisory lock deadlocks with CREATE INDEX CONCURRENTLY.
//
// dsn names a role that owns the schema, on a connection that keeps its session (no transaction pooling).
func Up(ctx context.Context, dsn string) error {
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		return fmt.Errorf("open the database: %w", err)
	}
	defer func() { _ = db.Close() }()
	return up(ctx, db, FS)
}

func up(ctx context.Context, db *sql.DB, files fs.FS) error {
	if err := createSchema(ctx, db); err != nil {
		return err
	}
	if err := verify(ctx, db, files); err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockTimeout(1, 600))
	if err != nil {
		return fmt.Errorf("make the migration lock: %w", err)
	}
	provider, err := goose.NewProvider(database.DialectPostgres, db, files,
		goose.WithTableName(versionTable), goose.WithSessionLocker(locker),
		goose.WithDisableGlobalRegistry(true), goose.WithSlog(slog.New(slog.DiscardHandler)))
	if err != nil {
		return fmt.Errorf("read the migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return fmt.Errorf("apply the migrations: %w", err)
	}
	return record(ctx, db, files)
}

// Schema is how far a database and this binary are, each as the number of a migration.
type Schema struct {
	Applied int64 // the newest that the database has; 0: it has none yet
	Wanted  int64 // the newest that this binary has: what it was built for
	Oldest  int64 // binaries that have at least this one may run on the database
}

// Look tells how far a database is. It fails if that cannot be asked; one without a schema is no failure.
func Look(ctx context.Context, db Querier) (Schema, error) {
	var s Schema
	var err error
	if s.Wanted, err = Newest(); err != nil {
		return s, err
	}
	err = db.QueryRowContext(ctx, `SELECT coalesce(max(version_id), 0) FROM `+versionTable+` WHERE is_applied`).Scan(&s.Applied)
	if err == nil {
		err = db.QueryRowContext(ctx, `SELECT oldest_binary FROM postrider.schema_compat`).Scan(&s.Oldest)
	}
	switch {
	case undefined(err) || errors.Is(err, sql.ErrNoRows):
		return Schema{Wanted: s.Wanted}, nil
	case err != nil:
		return s, fmt.Errorf("read the schema version: %w", err)
	}
	return s, nil
}

// Check tells whether this binary may run on the database's schema: nil, ErrBehind, ErrIncompatible or ErrEdited,
// each wrapped with the versions; anything else means that the database could not be asked.
func Check(ctx context.Context, db Querier) error {
	_, err := check(ctx, db)
	return err
}

func check(ctx context.Context, db Querier) (Schema, error) {
	s, err := Look(ctx, db)
	switch {
	case err != nil:
		return s, err
	case s.Applied == 0:
		return s, fmt.Errorf("%w: it has no schema yet and %d is needed; run `postrider migrate up`", ErrBehind, s.Wanted)
	case s.Oldest > s.Wanted:
		return s, fmt.Errorf("%w: schema %d supports binaries of schema %d and later, this one is of %d; run a newer version of Postrider",
			ErrIncompatible, s.Applied, s.Oldest, s.Wanted)
	case s.Applied < s.Wanted:
		return s, fmt.Errorf("%w: it is at %d and %d is needed; run `postrider migrate up`", ErrBehind, s.Applied, s.Wanted)
	}
	return s, verify(ctx, db, FS)
}

// Wait returns once this binary may run on the database's schema, asking again every interval while the database is
// away or behind. Anything that waiting cannot mend is returned at once.
//
// dsn is asked before each look: a password may be rotated meanwhile. looked, if not nil, is told what came of each one; a
// Schema only if the error is nil, ErrBehind, ErrIncompatible or ErrEdited.
func Wait(ctx context.Context, dsn func() (string, error), interval time.Duration, looked func(Schema, error)) error {
	for {
		schema, err := lookOnce(ctx, dsn)
		if looked != nil && ctx.Err() == nil {
			looked(schema, err)
		}
		switch {
		case err == nil || errors.Is(err, ErrIncompatible) || errors.Is(err, ErrEdited):
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
}

// lookOnce is Check with a deadline and a connection of its own: one that leads nowhere must not stop the waiting.
func lookOnce(ctx context.Context, dsn func() (string, error)) (Schema, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	at, err := dsn()
	if err != nil {
		return Schema{}, err
	}
	db, err := sql.Open("pgx", at)
	if err != nil {
		return Schema{}, fmt.Errorf("open the database: %w", err)
	}
	defer func() { _ = db.Close() }()
	return check(ctx, db)
}

// Querier is what Check needs of a *sql.DB.
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Newest returns the version of the newest embedded migration: the schema that this binary was built for.
func Newest() (int64, error) {
	sums, err := checksums(FS)
	if err != nil {
		return 0, err
	}
	var newest int64
	for version := range sums {
		newest = max(newest, version)
	}
	return newest, nil
}

// createSchema makes the schema for goose's own table. IF NOT EXISTS alone fails when two run at once.
func createSchema(ctx context.Context, db *sql.DB) error {
	_, err := db.ExecContext(ctx, `CREATE SCHEMA IF NOT EXISTS postrider`)
	if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "23505" {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create the schema: %w", err)
	}
	return nil
}

// verify compares the applied migrations with the embedded ones.
func verify(ctx context.Context, db Querier, files fs.FS) error {
	sums, err := checksums(files)
	if err != nil {
		return err
	}
	rows, err := db.QueryContext(ctx, `SELECT version, sha256 FROM postrider.migration_checksum ORDER BY version`)
	if undefined(err) {
		return nil // not migrated yet
	}
	if err != nil {
		return fmt.Errorf("read the migration checksums: %w", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var version int64
		var sum []byte
		if err := rows.Scan(&version, &sum); err != nil {
			return fmt.Errorf("read the migration checksums: %w", err)
		}
		// A version that this binary does not know was applied by a newer one.
		if own, ok := sums[version]; ok && subtle.ConstantTimeCompare(own, sum) == 0 {
			return fmt.Errorf("%w: migration %d of this binary is not the one that was applied; restore the released file", ErrEdited, version)
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read the migration checksums: %w", err)
	}
	return nil
}

func record(ctx context.Context, db *sql.DB, files fs.FS) error {
	sums, err := checksums(files)
	if err != nil {
		return err
	}
	for version, sum := range sums {
		if _, err := db.ExecContext(ctx, `INSERT INTO postrider.migration_checksum (version, sha256) VALUES ($1, $2)
			ON CONFLICT (version) DO NOTHING`, version, sum); err != nil {
			return fmt.Errorf("record the checksum of migration %d: %w", version, err)
		}
	}
	return nil
}

func checksums(files fs.FS) (map[int64][]byte, error) {
	names, err := fs.Glob(files, "*.sql")
	if err != nil {
		return nil, fmt.Errorf("list the migrations: %w", err)
	}
	sums := make(map[int64][]byte, len(names))
	for _, name := range names {
		text, err := fs.ReadFile(files, name)
		if err != nil {
			return nil, fmt.Errorf("read migration %s: %w", name, err)
		}
		number, _, _ := strings.Cut(path.Base(name), "_")
		version, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("migration %s does not begin with its number: %w", name, err)
		}
		sum := sha256.Sum256(text)
		sums[version] = sum[:]
	}
	return sums, nil
}

// undefined tells that a schema or table is not there.
func undefined(err error) bool {
	pg := (*pgconn.PgError)(nil)
	return errors.As(err, &pg) && (pg.Code == "42P01" || pg.Code == "3F000")
}

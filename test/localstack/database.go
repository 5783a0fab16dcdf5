package localstack

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/migrations"
)

const (
	testPrefix       = "postrider_test_"
	templatePrefix   = "postrider_template_"
	dayFormat        = "20060102"
	databasePatience = 2 * time.Minute

	// Any number will do, as long as all test processes on a server use the same one.
	templateLock = 0x706f7374726964
)

// Database returns the superuser's DSN of a fresh, migrated database, which is dropped when the test ends. Sessions
// still open then are cut off.
func Database(t testing.TB) string {
	t.Helper()
	return database(t, func(ctx context.Context, server *sharedPostgres) (string, error) {
		return server.template(ctx)
	})
}

// EmptyDatabase is Database without the migrations.
func EmptyDatabase(t testing.TB) string {
	t.Helper()
	return database(t, func(context.Context, *sharedPostgres) (string, error) { return "template0", nil })
}

func database(t testing.TB, source func(context.Context, *sharedPostgres) (string, error)) string {
	t.Helper()
	shared.require(t)
	ctx, cancel := context.WithTimeout(context.Background(), databasePatience)
	defer cancel()
	server, err := shared.postgres.get(func() (*sharedPostgres, error) { return openPostgres(ctx) })
	if err != nil {
		t.Fatalf("localstack: start Postgres: %v", err)
	}
	template, err := source(ctx, server)
	if err != nil {
		t.Fatalf("localstack: prepare the template database: %v", err)
	}
	name := testPrefix + today() + "_" + strings.ToLower(rand.Text()[:12])
	if err := server.create(ctx, name, template); err != nil {
		t.Fatalf("localstack: make a database for the test: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), databasePatience)
		defer cancel()
		if err := server.drop(ctx, name); err != nil {
			t.Errorf("localstack: drop the test's database: %v", err)
		}
	})
	return server.dsn(name)
}

// sharedPostgres is the server that all tests of this process use: an own one, or the one of EnvDatabaseURL.
type sharedPostgres struct {
	own      *Postgres // nil if somebody else started it
	url      string
	migrated once[string]
}

func openPostgres(ctx context.Context) (*sharedPostgres, error) {
	if url := os.Getenv(EnvDatabaseURL); url != "" {
		if _, err := pgx.ParseConfig(url); err != nil {
			return nil, fmt.Errorf("%s is not a Postgres URL: %w", EnvDatabaseURL, err)
		}
		return &sharedPostgres{url: url}, nil
	}
	own, err := NewPostgres(ctx, PostgresOptions{})
	if err != nil {
		return nil, err
	}
	return &sharedPostgres{own: own, url: own.DSN("postgres")}, nil
}

func (s *sharedPostgres) close() error {
	if s == nil {
		return nil
	}
	return s.own.Close()
}

// dsn is the server's address with another database; of two forms, both usual.
func (s *sharedPostgres) dsn(database string) string {
	u, err := url.Parse(s.url)
	if err != nil || u.Scheme == "" {
		return s.url + " dbname=" + database // keyword form: the last mention counts
	}
	u.Path = "/" + database
	return u.String()
}

func (s *sharedPostgres) create(ctx context.Context, name, template string) error {
	return s.exec(ctx, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()+" TEMPLATE "+pgx.Identifier{template}.Sanitize())
}

func (s *sharedPostgres) drop(ctx context.Context, name string) error {
	return s.exec(ctx, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize()+" WITH (FORCE)")
}

func (s *sharedPostgres) exec(ctx context.Context, statements ...string) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	return execAll(ctx, conn, statements...)
}

func (s *sharedPostgres) connect(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.Connect(ctx, s.url)
	if err != nil && s.own == nil {
		return nil, fmt.Errorf("connect to the server of %s: %w", EnvDatabaseURL, err)
	}
	return conn, err
}

func execAll(ctx context.Context, conn *pgx.Conn, statements ...string) error {
	for _, statement := range statements {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return fmt.Errorf("%s: %w", statement, err)
		}
	}
	return nil
}

// template returns the name of the migrated database that tests copy. It is made once per server, by whichever test
// process comes first, and is named after the migrations and the day: partitions made ahead grow old.
func (s *sharedPostgres) template(ctx context.Context) (string, error) {
	return s.migrated.get(func() (string, error) {
		sum, err := migrationsSum()
		if err != nil {
			return "", err
		}
		name := templatePrefix + today() + "_" + sum
		conn, err := s.connect(ctx)
		if err != nil {
			return "", err
		}
		defer func() { _ = conn.Close(ctx) }() // which releases the lock
		if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1)", int64(templateLock)); err != nil {
			return "", fmt.Errorf("wait for other tests that make the template: %w", err)
		}
		var made bool
		if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", name).Scan(&made); err != nil {
			return "", fmt.Errorf("look for the template: %w", err)
		}
		if made {
			return name, nil
		}
		if err := s.dropStale(ctx, conn); err != nil {
			return "", err
		}
		return name, s.migrate(ctx, conn, name)
	})
}

// migrate works on a database of another name, so that a half-migrated one is never taken for the template. Nobody may
// connect to the finished one: copying fails while somebody is connected.
func (s *sharedPostgres) migrate(ctx context.Context, conn *pgx.Conn, name string) error {
	raw := name + "_raw"
	rawID, nameID := pgx.Identifier{raw}.Sanitize(), pgx.Identifier{name}.Sanitize()
	if err := execAll(ctx, conn, "DROP DATABASE IF EXISTS "+rawID+" WITH (FORCE)", "CREATE DATABASE "+rawID+" TEMPLATE template0"); err != nil {
		return err
	}
	if err := migrations.Up(ctx, s.dsn(raw)); err != nil {
		return fmt.Errorf("migrate: %w", err)
	}
	return execAll(ctx, conn,
		"ALTER DATABASE "+rawID+" WITH ALLOW_CONNECTIONS false",
		"ALTER DATABASE "+rawID+" RENAME TO "+nameID)
}

// dropStale removes what killed test runs left on a server that lives long: databases of yesterday's name and older
// that nobody is connected to.
func (s *sharedPostgres) dropStale(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT datname FROM pg_database d
		WHERE (starts_with(datname, $1) AND split_part(substr(datname, length($1) + 1), '_', 1) < $3
		    OR starts_with(datname, $2) AND split_part(substr(datname, length($2) + 1), '_', 1) < $3)
		  AND NOT EXISTS (SELECT FROM pg_stat_activity a WHERE a.datid = d.oid)`,
		testPrefix, templatePrefix, time.Now().UTC().AddDate(0, 0, -1).Format(dayFormat))
	if err != nil {
		return fmt.Errorf("look for databases of killed test runs: %w", err)
	}
	stale, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for databases of killed test runs: %w", err)
	}
	for _, name := range stale {
		err := execAll(ctx, conn, "DROP DATABASE IF EXISTS "+pgx.Identifier{name}.Sanitize())
		if pg := (*pgconn.PgError)(nil); errors.As(err, &pg) && pg.Code == "55006" {
			continue // somebody connected meanwhile, so it is not stale
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// migrationsSum stands for the content of all embedded migrations.
func migrationsSum() (string, error) {
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		return "", fmt.Errorf("list the migrations: %w", err)
	}
	sum := sha256.New()
	for _, name := range names {
		text, err := migrations.FS.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("read migration %s: %w", name, err)
		}
		_, _ = fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text) // a hash takes everything
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}

func today() string { return time.Now().UTC().Format(dayFormat) }

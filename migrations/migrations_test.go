package migrations_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/test/localstack"
)

func TestMain(m *testing.M) { localstack.Main(m) }

const patience = 30 * time.Second

func open(t *testing.T, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func ask[T any](t *testing.T, db *sql.DB, query string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRowContext(t.Context(), query, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return v
}

func exec(t *testing.T, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func TestUpIsSafeToRepeatAndToRunByManyAtOnce(t *testing.T) {
	t.Parallel()
	dsn := localstack.EmptyDatabase(t)
	db := open(t, dsn)
	errs := make([]error, 4)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { errs[i] = migrations.Up(t.Context(), dsn) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), dsn); err != nil {
		t.Errorf("again: %v", err)
	}
	if err := migrations.Check(t.Context(), db); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	newest, err := migrations.Newest()
	if err != nil {
		t.Fatal(err)
	}
	if got := ask[int64](t, db, `SELECT count(*) FROM postrider.schema_version WHERE version_id > 0`); got != newest {
		t.Errorf("%d migrations noted, want each of %d once", got, newest)
	}
	if got := ask[int64](t, db, `SELECT count(*) FROM postrider.migration_checksum`); got != newest {
		t.Errorf("%d checksums, want %d", got, newest)
	}
}

func TestCheckTellsWhyABinaryMayNotRun(t *testing.T) {
	t.Parallel()
	newest, err := migrations.Newest()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change string
		want   error
		says   string
	}{
		"up to date":       {"SELECT 1", nil, ""},
		"behind":           {fmt.Sprintf("DELETE FROM postrider.schema_version WHERE version_id = %d", newest), migrations.ErrBehind, "postrider migrate up"},
		"without a schema": {"DROP SCHEMA postrider CASCADE", migrations.ErrBehind, "postrider migrate up"},
		"newer, and it still supports this binary": {fmt.Sprintf(`INSERT INTO postrider.schema_version (version_id, is_applied) VALUES (%d, true);
			INSERT INTO postrider.migration_checksum VALUES (%[1]d, 'x')`, newest+1), nil, ""},
		"newer, and it does not": {fmt.Sprintf("UPDATE postrider.schema_compat SET oldest_binary = %d", newest+1), migrations.ErrIncompatible, "newer version of Postrider"},
		"edited":                 {"UPDATE postrider.migration_checksum SET sha256 = 'x' WHERE version = 1", migrations.ErrEdited, "migration 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := localstack.Database(t)
			db := open(t, dsn)
			exec(t, db, c.change)
			err := migrations.Check(t.Context(), db)
			if !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %v, saying %q", err, c.want, c.says)
			}
		})
	}
}

func TestUpRefusesAnEditedMigration(t *testing.T) {
	t.Parallel()
	dsn := localstack.Database(t)
	db := open(t, dsn)
	exec(t, db, `UPDATE postrider.migration_checksum SET sha256 = 'x' WHERE version = 1`)
	if err := migrations.Up(t.Context(), dsn); !errors.Is(err, migrations.ErrEdited) {
		t.Errorf("got %v, want ErrEdited", err)
	}
}

// waiting runs Wait and hands over what it is told meanwhile.
func waiting(t *testing.T, ctx context.Context, dsn string) (told chan error, done chan error) {
	t.Helper()
	told, done = make(chan error), make(chan error, 1)
	go func() {
		done <- migrations.Wait(ctx, func() (string, error) { return dsn, nil }, time.Millisecond, func(_ migrations.Schema, err error) {
			if err == nil {
				return
			}
			select {
			case told <- err:
			default: // nobody listens just now
			}
		})
	}()
	return told, done
}

func await[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(patience):
		t.Fatalf("waited %v for %s", patience, what)
		panic("unreachable")
	}
}

func TestWaitReturnsOnceTheSchemaIsThere(t *testing.T) {
	t.Parallel()
	dsn := localstack.EmptyDatabase(t)
	told, done := waiting(t, t.Context(), dsn)
	if err := await(t, "a word about the missing schema", told); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("told %v, want ErrBehind", err)
	}
	if err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	if err := await(t, "its end", done); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestWaitOutlastsADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{})
	if err := migrations.Up(t.Context(), pg.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	pg.Stop()
	told, done := waiting(t, t.Context(), pg.DSN("postgres"))
	if err := await(t, "a word about the database", told); err == nil || errors.Is(err, migrations.ErrBehind) {
		t.Errorf("told %v, want that the database is away", err)
	}
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := await(t, "its end", done); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestWaitDoesNotWaitForWhatWaitingCannotMend(t *testing.T) {
	t.Parallel()
	for change, want := range map[string]error{
		"UPDATE postrider.schema_compat SET oldest_binary = 1000":                migrations.ErrIncompatible,
		"UPDATE postrider.migration_checksum SET sha256 = 'x' WHERE version = 1": migrations.ErrEdited,
	} {
		dsn := localstack.Database(t)
		exec(t, open(t, dsn), change)
		_, done := waiting(t, t.Context(), dsn)
		if err := await(t, "its end", done); !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	told, done := waiting(t, ctx, localstack.EmptyDatabase(t))
	if err := await(t, "its first look", told); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("told %v, want ErrBehind", err)
	}
	cancel()
	if err := await(t, "its end", done); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
}

// Migrations go forward only: a database that went ahead is run by the previous release, not taken back.
func TestMigrationsGoForwardOnly(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil || len(names) == 0 {
		t.Fatalf("%v, %v", names, err)
	}
	for i, name := range names {
		text, err := migrations.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), "+goose Down") {
			t.Errorf("%s goes back", name)
		}
		if prefix := fmt.Sprintf("%05d_", i+1); !strings.HasPrefix(name, prefix) {
			t.Errorf("%s: want a name that begins with %s", name, prefix)
		}
	}
}

func TestPartitionsOfFiveDaysAreMade(t *testing.T) {
	t.Parallel()
	db := open(t, localstack.Database(t))
	for _, table := range []string{"event", "attempt"} {
		for day := -1; day <= 3; day++ {
			if !ask[bool](t, db, `SELECT to_regclass('postrider.' || $1 || '_' || to_char((now() AT TIME ZONE 'UTC')::date + $2::int, 'YYYYMMDD')) IS NOT NULL`, table, day) {
				t.Errorf("%s: no partition for day %+d", table, day)
			}
		}
	}
	if n := ask[int](t, db, `SELECT postrider.make_days((now() AT TIME ZONE 'UTC')::date - 1, 5)`); n != 0 {
		t.Errorf("made %d again", n)
	}
	if n := ask[int](t, db, `SELECT postrider.make_days((now() AT TIME ZONE 'UTC')::date + 3, 3)`); n != 4 {
		t.Errorf("made %d, want two days of both tables", n)
	}
}

// The bounds are those of the day in UTC, whatever the session's time zone; each id and each attempt finds its day.
func TestADaysRowsAreInItsPartition(t *testing.T) {
	t.Parallel()
	db := open(t, localstack.Database(t))
	db.SetMaxOpenConns(1)
	exec(t, db, `SET timezone = 'Pacific/Kiritimati'`) // 14 hours ahead
	exec(t, db, `SELECT postrider.make_days('2024-02-28', 3)`)
	for at, day := range map[string]string{
		"2024-02-28T00:00:00Z": "20240228", "2024-02-28T23:59:59.999Z": "20240228", "2024-02-29T00:00:00Z": "20240229", "2024-03-01T12:00:00Z": "20240301",
	} {
		exec(t, db, `INSERT INTO postrider.event (id, namespace, namespace_uid, type, content_type, body, endpoint_ids)
			VALUES (postrider.uuid7_floor($1), '', '', '', '', '', '{}')`, at)
		exec(t, db, `INSERT INTO postrider.attempt (at, event_id, endpoint_id, replay_no, number, outcome, duration_ms) VALUES ($1, gen_random_uuid(), 1, 0, 1, 'retry', 1)`, at)
		if got := ask[string](t, db, `SELECT tableoid::regclass::text FROM postrider.event WHERE id = postrider.uuid7_floor($1)`, at); got != "postrider.event_"+day {
			t.Errorf("%s: event in %s, want day %s", at, got, day)
		}
		if got := ask[string](t, db, `SELECT tableoid::regclass::text FROM postrider.attempt WHERE at = $1`, at); got != "postrider.attempt_"+day {
			t.Errorf("%s: attempt in %s, want day %s", at, got, day)
		}
	}
}

func TestUUID7(t *testing.T) {
	t.Parallel()
	db := open(t, localstack.Database(t))
	rows, err := db.QueryContext(t.Context(), `SELECT clock_timestamp(), postrider.uuid7(), clock_timestamp(), pg_sleep(0.002) FROM generate_series(1, 50)`)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	var last uuid.UUID
	n := 0
	for ; rows.Next(); n++ {
		var before, after time.Time
		var id uuid.UUID
		var slept any
		if err := rows.Scan(&before, &id, &after, &slept); err != nil {
			t.Fatal(err)
		}
		if id.Version() != 7 || id.Variant() != uuid.RFC4122 {
			t.Errorf("%v: version %v, variant %v; want 7 and RFC 9562's", id, id.Version(), id.Variant())
		}
		sec, nsec := id.Time().UnixTime()
		if at := time.Unix(sec, nsec); at.Before(before.Add(-time.Millisecond)) || at.After(after.Add(time.Millisecond)) {
			t.Errorf("%v: time %v, made between %v and %v", id, at, before, after)
		}
		if strings.Compare(id.String(), last.String()) <= 0 {
			t.Errorf("%v after %v: ids two milliseconds apart must ascend", id, last)
		}
		last = id
	}
	if err := rows.Err(); err != nil || n != 50 {
		t.Errorf("%d ids, %v", n, err)
	}
}

func TestUUID7Floor(t *testing.T) {
	t.Parallel()
	db := open(t, localstack.Database(t))
	at := time.Date(2026, 1, 2, 3, 4, 5, 678e6, time.UTC)
	ms := fmt.Sprintf("%012x", at.UnixMilli())
	if got, want := ask[string](t, db, `SELECT postrider.uuid7_floor($1)::text`, at), ms[:8]+"-"+ms[8:]+"-0000-0000-000000000000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !ask[bool](t, db, `SELECT bool_and(postrider.uuid7_floor(at) <= id AND id < postrider.uuid7_floor(at + interval '10 s'))
		FROM (SELECT clock_timestamp() - interval '1 ms' AS at, postrider.uuid7() AS id FROM generate_series(1, 1000)) x`) {
		t.Error("an id is beyond the bounds of its time")
	}
}

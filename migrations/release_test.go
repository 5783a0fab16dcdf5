package migrations_test

import (
	"database/sql"
	"errors"
	"testing"
	"testing/fstest"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/test/localstack"
)

// until are the migrations of the release that was built for a schema.
func until(t *testing.T, names ...string) fstest.MapFS {
	t.Helper()
	files := fstest.MapFS{}
	for _, name := range names {
		text, err := migrations.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		files[name] = &fstest.MapFile{Data: text}
	}
	return files
}

// The upgrade and the rollback of a release: this binary waits for its schema, and the previous one runs on it, whose
// `migrate up` changes nothing.
func TestThePreviousReleaseRunsOnThisSchema(t *testing.T) {
	t.Parallel()
	db := open(t, localstack.EmptyDatabase(t))
	previous := until(t, "00001_queue.sql")
	if err := migrations.Apply(t.Context(), db, previous); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Check(t.Context(), db); !errors.Is(err, migrations.ErrBehind) {
		t.Errorf("on the previous schema: got %v, want ErrBehind", err)
	}
	if err := migrations.Apply(t.Context(), db, migrations.FS); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), db, previous); err != nil {
		t.Errorf("the previous release, after a rollback: %v", err)
	}
	if err := migrations.Check(t.Context(), db); err != nil {
		t.Errorf("afterwards: %v", err)
	}
	if oldest := ask[int64](t, db, `SELECT oldest_binary FROM postrider.schema_compat`); oldest != 1 {
		t.Errorf("oldest binary %d, want 1: that of the previous release", oldest)
	}
}

// A lane that was there before is held by what held it, and by nothing more.
func TestPauseKeepsTheLanesAsTheyAre(t *testing.T) {
	t.Parallel()
	db := open(t, localstack.EmptyDatabase(t))
	if err := migrations.Apply(t.Context(), db, until(t, "00001_queue.sql")); err != nil {
		t.Fatal(err)
	}
	exec(t, db, lanes, 1, false)
	exec(t, db, lanes, 2, true)
	before := fileOf(t, db)
	if err := migrations.Apply(t.Context(), db, migrations.FS); err != nil {
		t.Fatal(err)
	}
	if got := ask[int](t, db, `SELECT count(*) FROM postrider.lane WHERE paused = (endpoint_id = 2) AND NOT namespace_paused`); got != 2 {
		t.Errorf("%d of 2 lanes are as they were", got)
	}
	if after := fileOf(t, db); after != before {
		t.Error("the table of the lanes was written anew, under an exclusive lock")
	}
}

const lanes = `INSERT INTO postrider.lane (endpoint_id, version, ordered, max_inflight, threshold, cooldown_min, cooldown_max, max_duration, paused)
	VALUES ($1, 1, false, 1, 1, '1 s', '1 s', '1 h', $2)`

func fileOf(t *testing.T, db *sql.DB) string {
	t.Helper()
	return ask[string](t, db, `SELECT pg_relation_filepath('postrider.lane')`)
}

// Behind a long transaction the migration gives up, or all claims would wait with it.
func TestPauseDoesNotWaitLongForTheLanes(t *testing.T) {
	t.Parallel()
	db := open(t, localstack.EmptyDatabase(t))
	if err := migrations.Apply(t.Context(), db, until(t, "00001_queue.sql")); err != nil {
		t.Fatal(err)
	}
	reader, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := reader.ExecContext(t.Context(), `LOCK postrider.lane IN ACCESS SHARE MODE`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), db, migrations.FS); !migrations.IsLocked(err) {
		t.Errorf("got %v, want that the table is locked", err)
	}
	if err := reader.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := migrations.Apply(t.Context(), db, migrations.FS); err != nil {
		t.Errorf("again: %v", err)
	}
}

// A claim locks lanes before it changes them. The migration that comes between the two waits for the claim, and does not have
// it wait in turn.
func TestAnIndexOfLanesIsExchangedBesideAClaim(t *testing.T) {
	t.Parallel()
	db := open(t, localstack.EmptyDatabase(t))
	if err := migrations.Apply(t.Context(), db, until(t, "00001_queue.sql", "00002_pause.sql", "00003_held_snapshot.sql", "00004_chores.sql")); err != nil {
		t.Fatal(err)
	}
	exec(t, db, lanes, 1, false)
	claim, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = claim.Rollback() }()
	if _, err := claim.ExecContext(t.Context(), `SELECT FROM postrider.lane FOR NO KEY UPDATE`); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- migrations.Apply(t.Context(), db, migrations.FS) }()
	for !ask[bool](t, db, `SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
		WHERE d.datname = current_database() AND l.relation = 'postrider.lane'::regclass AND NOT l.granted)`) {
		select {
		case err := <-done:
			t.Fatalf("the migration ended beside a claim: %v", err)
		default:
		}
	}
	if _, err := claim.ExecContext(t.Context(), `UPDATE postrider.lane SET due_at = now()`); err != nil {
		t.Fatalf("the claim goes on: %v", err)
	}
	if err := claim.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := await(t, "the migration", done); err != nil {
		t.Errorf("the migration, after the claim: %v", err)
	}
}

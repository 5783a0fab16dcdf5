package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/test/localstack"
)

// A commit that waits for the disk, or here for a standby that is not there, keeps no lane from the others; and yet nobody
// is told of it before it is safe.
func TestACommitUnderWayKeepsNoLaneAndIsNotToldOf(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{Settings: map[string]string{
		"synchronous_standby_names": "absent", "synchronous_commit": "local",
	}})
	dsn, err := pg.CreateDatabase(t.Context(), "postrider")
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	f := &fixture{Store: openStore(t, dsn), t: t, dsn: dsn}
	waiting := openStore(t, dsn+"&options=-c%20synchronous_commit%3Don")
	e := f.endpoint("a")
	f.post("", 1, e)
	f.wake("", e)

	// underWay begins to commit, and ends once the standby is no longer wanted.
	underWay := func(what string, commit func(context.Context) error, seen func() bool) {
		t.Helper()
		ended := make(chan error, 1)
		go func() { ended <- commit(t.Context()) }()
		f.until(what+" is seen by others", seen)
		if _, err := f.pool.Exec(t.Context(), `SELECT FROM postrider.lane WHERE lane_id = $1 FOR UPDATE NOWAIT`, e.LaneID); err != nil {
			t.Errorf("%s keeps the lane: %v", what, err)
		}
		f.until(what+" waits for the standby", func() bool {
			return ask[bool](f, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep')`)
		})
		select {
		case err := <-ended:
			t.Errorf("%s was told of before it was safe: %v", what, err)
			return
		default:
		}
		f.exec(`ALTER SYSTEM SET synchronous_standby_names = ''`)
		f.exec(`SELECT pg_reload_conf()`)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s did not end", what)
		}
		f.exec(`ALTER SYSTEM SET synchronous_standby_names = 'absent'`)
		f.exec(`SELECT pg_reload_conf()`)
		f.until("the standby is wanted again", func() bool { return ask[string](f, `SHOW synchronous_standby_names`) == "absent" })
	}
	var claims []Claim
	underWay("a claim", func(ctx context.Context) error {
		batch, err := waiting.Claim(ctx, whole())
		if claims = batch.Claims; err == nil && len(claims) != 1 {
			err = errors.New("it has not got the delivery")
		}
		return err
	}, func() bool { return ask[int](f, `SELECT inflight FROM postrider.lane`) == 1 })
	underWay("a completion", func(ctx context.Context) error {
		recorded, err := waiting.Complete(ctx, results(Delivered, claims...))
		if err == nil && recorded[0] != (Recorded{}) {
			err = errors.New("it was not recorded")
		}
		return err
	}, func() bool { return ask[int](f, `SELECT inflight FROM postrider.lane`) == 0 })
}

// Where the role may not write the note that a commit waits by, one claim finds out, and the others wait with their locks.
func TestARoleThatMayWriteNoNotesStillClaimsAndCompletes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := newRole(f, "p")
	f.exec(`REVOKE EXECUTE ON FUNCTION pg_logical_emit_message(boolean, text, text) FROM PUBLIC`)
	name := pgx.Identifier{r.name}.Sanitize()
	f.exec(`GRANT USAGE ON SCHEMA postrider TO ` + name)
	f.exec(`GRANT ALL ON ALL TABLES IN SCHEMA postrider TO ` + name)
	limited := openStore(t, r.dsn("p"))
	e := f.endpoint("a")
	f.post("", 2, e)
	f.wake("", e)
	one := whole()
	one.Budget = 1
	if _, err := limited.Claim(t.Context(), one); err == nil {
		t.Fatal("the first claim was told of though nobody waited for its commit")
	}
	batch, err := limited.Claim(t.Context(), whole())
	if err != nil || len(batch.Claims) != 1 {
		t.Fatalf("then: got %+v, %v; want the other delivery", batch, err)
	}
	if recorded, err := limited.Complete(t.Context(), results(Delivered, batch.Claims...)); err != nil || recorded[0] != (Recorded{Ready: recorded[0].Ready}) {
		t.Errorf("got %+v, %v", recorded, err)
	}
	// And a completion finds out too.
	another := openStore(t, r.dsn("p"))
	f.post("", 1, e)
	f.wake("", e)
	claims := f.claim(1)
	if _, err := another.Complete(t.Context(), results(Delivered, claims...)); err == nil {
		t.Fatal("the first completion was told of though nobody waited for its commit")
	}
	if recorded, err := another.Complete(t.Context(), results(Delivered, claims...)); err != nil || !recorded[0].Fenced {
		t.Errorf("again: got %+v, %v; want it recorded before", recorded, err)
	}
}

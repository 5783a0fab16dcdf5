package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/test/localstack"
)

// A commit that waits for the disk, or here for a standby that is not there, keeps no lane from the others; and yet nobody
// is told of it before it is safe.
func TestACommitUnderWayKeepsNoLaneAndIsNotToldOf(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{Settings: map[string]string{
		"synchronous_standby_names": "absent", "synchronous_commit": "local",
	}})
	f := newFixtureOn(t, pg)
	waiting := openStore(t, f.dsn+"&options=-c%20synchronous_commit%3Don")
	e := f.endpoint("a")
	f.post("", 1, e)
	f.wake("", e)

	if err := waiting.Touch(t.Context(), []Touched{{LaneID: e.LaneID}}); err != nil { // which waits for nothing
		t.Fatal(err)
	}
	// underWay begins to commit, and ends when it need not wait for the standby any longer.
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
		// A wait that is cancelled ends with a warning: it is committed here, and who asked is told.
		f.exec(`SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(patience):
			t.Fatalf("%s did not end", what)
		}
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

// Where the role may not write the note that a commit waits by, commits wait with their locks.
func TestARoleThatMayWriteNoNotesClaimsAndCompletes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	r := newRole(f, "p")
	name := pgx.Identifier{r.name}.Sanitize()
	f.exec(`GRANT USAGE ON SCHEMA postrider TO ` + name)
	f.exec(`GRANT ALL ON ALL TABLES IN SCHEMA postrider TO ` + name)
	e := f.endpoint("a")
	limited := openStore(t, r.dsn("p"))
	delivered := func() error {
		t.Helper()
		f.post("", 1, e)
		f.wake("", e)
		batch, err := limited.Claim(t.Context(), whole())
		if err != nil {
			return err
		}
		if len(batch.Claims) != 1 {
			t.Fatalf("claimed %+v, want the delivery", batch)
		}
		recorded, err := limited.Complete(t.Context(), results(Delivered, batch.Claims...))
		if err == nil && recorded[0] != (Recorded{}) {
			t.Errorf("got %+v, want it recorded", recorded)
		}
		return err
	}
	deny := func() {
		f.exec(`DO $$ BEGIN EXECUTE (SELECT string_agg(format('REVOKE EXECUTE ON FUNCTION %s FROM PUBLIC', oid::regprocedure), ';')
			FROM pg_proc WHERE proname = 'pg_logical_emit_message'); END $$`)
	}
	if err := delivered(); err != nil {
		t.Fatal(err)
	}
	deny()
	if err := delivered(); err == nil {
		t.Error("a claim was told of though nobody waited for its commit")
	}
	f.exec(`DELETE FROM postrider.delivery`)
	f.exec(`UPDATE postrider.lane SET inflight = 0, lease_end = NULL`)
	if err := delivered(); err != nil { // it has found out
		t.Error(err)
	}
	limited = openStore(t, r.dsn("p"))
	if err := delivered(); err != nil { // it asks first
		t.Error(err)
	}
}

package store

import (
	"context"
	"errors"
	"testing"
	"time"

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

package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/postrider/postrider/test/localstack"
)

// listening runs Listen until its context or its connection ends.
func (f *fixture) listening(s *Store) (wakes chan struct{}, stop func(), ended *running[error]) {
	f.t.Helper()
	wakes = make(chan struct{}, 100)
	ctx, stop := context.WithCancel(f.t.Context())
	ended = begin(f.t, func(context.Context) (error, error) {
		return s.Listen(ctx, func() { wakes <- struct{}{} }), nil
	})
	f.t.Cleanup(stop)
	return wakes, stop, ended
}

func awake(t *testing.T, what string, wakes <-chan struct{}) {
	t.Helper()
	select {
	case <-wakes:
	case <-time.After(patience):
		t.Fatalf("not woken: %s", what)
	}
}

func TestListenWakesAtItsStartAndAtEachNotification(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	wakes, stop, ended := f.listening(f.as("listener"))
	awake(t, "at the start, for what was missed", wakes)
	for range 3 {
		if err := f.Notify(t.Context()); err != nil {
			t.Fatal(err)
		}
		awake(t, "by a notification", wakes)
	}
	stop()
	if err := ended.result(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
}

func TestListenReturnsWhenItsConnectionIsLost(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	wakes, _, ended := f.listening(f.as("listener"))
	awake(t, "at the start", wakes)
	f.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'listener' AND datname = current_database()`)
	if err := ended.result(); !IsUnavailable(err) {
		t.Errorf("got %v, want a database that is away", err)
	}
}

func TestAConnectionThatIsCutIsUnavailableAndTheNextWorks(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 2, e)
	f.wake("", e)
	other := f.session()
	other.lockLane(e)
	s := f.as("victim")
	calls := map[string]func(context.Context) error{
		"claim": func(ctx context.Context) error { _, err := s.Claim(ctx, whole()); return err },
		"touch": func(ctx context.Context) error { return s.Touch(ctx, []Touched{{LaneID: e.LaneID}}) },
		"disable": func(ctx context.Context) error {
			c := e.change(2)
			c.Spec.State = Disabled
			_, err := s.ApplyEndpoint(ctx, c)
			return err
		},
		"sweeping": func(ctx context.Context) error {
			return s.asChore(ctx, choreExpire, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, lockLanes, []int64{e.LaneID}); return err })
		},
	}
	for name, call := range calls {
		waiting := begin(t, func(ctx context.Context) (error, error) { return call(ctx), nil })
		if !f.blocked("victim", waiting.done) {
			t.Fatalf("%s did not wait", name)
		}
		f.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'victim' AND datname = current_database() AND wait_event_type = 'Lock'`)
		if err := waiting.result(); err == nil || !IsUnavailable(err) {
			t.Errorf("%s: got %v, want a database that is away", name, err)
		}
	}
	other.exec("ROLLBACK")
	s.ready.reset() // a slow search that passed over the locked lane would find it some time later
	if b, err := s.Claim(t.Context(), whole()); err != nil || len(b.Claims) != 2 {
		t.Errorf("claimed %d, %v; want 2 by a new connection", len(b.Claims), err)
	}
}

// A call whose context ends leaves no lock and no open transaction behind.
func TestACallThatIsGivenUpLeavesNoLock(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	older, newer := f.endpoint("older"), f.endpoint("newer")
	f.post("", 1, older, newer)
	f.wake("", older, newer)
	other := f.session()
	other.lockLane(newer)
	s := f.as("victim")
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	waiting := begin(t, func(context.Context) (error, error) {
		return s.Touch(ctx, []Touched{{LaneID: newer.LaneID}, {LaneID: older.LaneID}}), nil
	})
	f.blocked("victim", waiting.done)
	giveUp()
	if err := waiting.result(); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's end", err)
	}
	f.until("the lock on the other lane is gone", func() bool {
		return other.try(`SAVEPOINT s`) == nil && (other.try(`SELECT FROM postrider.lane WHERE lane_id = $1 FOR UPDATE NOWAIT`, older.LaneID) == nil ||
			other.try(`ROLLBACK TO s`) != nil)
	})
	other.exec("ROLLBACK")
	if b, err := s.Claim(t.Context(), whole()); err != nil || len(b.Claims) != 2 {
		t.Errorf("claimed %d, %v; want 2", len(b.Claims), err)
	}
}

func TestAPoolThatIsUsedUpIsUnavailable(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	one := openWith(t, f.dsn, 1)
	conn, err := one.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := one.Claim(ctx, whole()); !IsUnavailable(err) {
		t.Errorf("got %v, want a database that is away", err)
	}
	conn.Release()
	if err := one.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if one.PoolStats().MaxConns() != 1 {
		t.Errorf("%d connections at most, want 1", one.PoolStats().MaxConns())
	}
}

func TestADatabaseThatStopsAndComesBack(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{})
	f := newFixtureOn(t, pg)
	e := f.endpoint("a")
	f.post("", 3, e)
	f.wake("", e)
	claims := f.claim(1)
	unavailable := func(when string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, claiming := f.Claim(ctx, whole())
		_, completing := f.Complete(ctx, results(Delivered, claims...))
		_, accepting := f.Accept(ctx, []NewEvent{{Namespace: "n", Type: "t", ContentType: "c"}}, time.Hour)
		_, reading := f.Endpoint(ctx, "billing", "a")
		_, dropping := f.DropDays(ctx, time.Hour, time.Hour)
		for what, err := range map[string]error{
			"claim": claiming, "complete": completing, "accept": accepting, "read": reading, "drop": dropping, "ping": f.Ping(ctx),
			"listen": f.Listen(ctx, func() {}),
		} {
			if !IsUnavailable(err) {
				t.Errorf("%s, %s: got %v, want a database that is away", when, what, err)
			}
		}
	}
	pg.Stop()
	unavailable("stopped")
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.until("the database answers again", func() bool { return f.Ping(t.Context()) == nil })
	f.complete(Delivered, claims...)
	pg.Kill()
	unavailable("killed")
	if err := pg.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	f.until("the database answers again", func() bool { return f.Ping(t.Context()) == nil })
	if got := f.claim(10); len(got) != 2 {
		t.Errorf("claimed %d deliveries, want the 2 that were not delivered", len(got))
	}
	// As on a standby during a failover.
	f.exec(`ALTER DATABASE postrider SET default_transaction_read_only = on`)
	standby := openStore(t, f.dsn)
	if err := standby.Touch(t.Context(), []Touched{{LaneID: e.LaneID}}); !IsUnavailable(err) {
		t.Errorf("read-only: got %v, want a database that is away", err)
	}
}

func TestIsUnavailable(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]bool{
		"08006": true, "53300": true, "57P01": true, "57P03": true, "58030": true, "57014": true, "25006": true, "25P03": true, "28P01": true, "3D000": true,
		"23505": false, "22021": false, "42P01": false, "40P01": true, "40001": true, "42501": false,
	} {
		if got := IsUnavailable(fmt.Errorf("claim: %w", &pgconn.PgError{Code: code})); got != want {
			t.Errorf("%s: got %v, want %v", code, got, want)
		}
	}
	for _, err := range []error{nil, context.Canceled, ErrConflict, ErrNotFound, pgx.ErrNoRows, errors.New("other")} {
		if IsUnavailable(err) {
			t.Errorf("%v: got true", err)
		}
	}
}

func TestAConnectionStringIsNeverRepeated(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{
		"not a URL":  {DSN: "postgres://user:hunter2@host:port/db"},
		"bad option": {DSN: "host=h password=hunter2 sslmode=nonsense"},
		"direct":     {DSN: "host=h", DirectDSN: "postgres://user:hunter2@host:port/db"},
		"pool":       {DSN: "postgres://user:hunter2@host/db?pool_max_conns=many"},
	} {
		s, err := Open(t.Context(), o)
		if err == nil {
			s.Close()
			t.Errorf("%s: no error", name)
		} else if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error holds the password: %v", name, err)
		}
	}
}

package store

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// patience bounds every wait of a test for something that has to happen.
const patience = 20 * time.Second

// session is a transaction of the test's own: it plays another process that is just in the midst of its work.
type session struct {
	t    testing.TB
	conn *pgx.Conn
}

func (f *fixture) session() *session {
	f.t.Helper()
	conn, err := pgx.Connect(f.t.Context(), f.dsn)
	if err != nil {
		f.t.Fatal(err)
	}
	s := &session{f.t, conn}
	f.t.Cleanup(func() { _ = conn.Close(context.Background()) })
	s.exec("BEGIN")
	return s
}

func (s *session) exec(sql string, args ...any) {
	s.t.Helper()
	if err := s.try(sql, args...); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

func (s *session) try(sql string, args ...any) error {
	_, err := s.conn.Exec(context.Background(), sql, args...)
	return err
}

func (s *session) lockLane(e Endpoint) {
	s.t.Helper()
	s.exec(`SELECT FROM postrider.lane WHERE lane_id = $1 FOR NO KEY UPDATE`, e.LaneID)
}

// as opens a further Store on the fixture's database whose sessions are told apart by a name.
func (f *fixture) as(name string) *Store {
	f.t.Helper()
	s, err := Open(f.t.Context(), Options{DSN: f.dsn, MaxConns: 4, Application: name})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(s.Close)
	return s
}

// gate stops the sessions of one name in the midst of a statement: before each row that it writes to a table.
type gate struct {
	*Store
	holder *session
}

// gated opens a Store whose sessions stop before each "INSERT", "UPDATE" or "DELETE" of a row of a table until the gate
// is opened. What the statement reads it has read by then, and the locks of earlier statements it holds.
func (f *fixture) gated(name, event, table string) *gate {
	f.t.Helper()
	g := &gate{f.as(name), f.session()}
	g.holder.exec(`SELECT pg_advisory_xact_lock(hashtext($1))`, name)
	f.exec(fmt.Sprintf(`CREATE FUNCTION public.%[1]s() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		IF current_setting('application_name') = '%[1]s' THEN PERFORM pg_advisory_xact_lock(hashtext('%[1]s')); END IF;
		RETURN coalesce(NEW, OLD);
	END $$`, name))
	f.exec(fmt.Sprintf(`CREATE TRIGGER %[1]s BEFORE %[2]s ON postrider.%[3]s FOR EACH ROW EXECUTE FUNCTION public.%[1]s()`, name, event, table))
	return g
}

func (g *gate) open() { g.holder.exec("COMMIT") }

// running is a call that another goroutine makes.
type running[T any] struct {
	t     testing.TB
	done  chan struct{}
	value T
	err   error
}

func begin[T any](t testing.TB, call func(context.Context) (T, error)) *running[T] {
	t.Helper()
	r := &running[T]{t: t, done: make(chan struct{})}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	go func() {
		defer close(r.done)
		defer cancel()
		r.value, r.err = call(ctx)
	}()
	t.Cleanup(func() { cancel(); <-r.done })
	return r
}

// result waits for the call and demands that it did not fail.
func (r *running[T]) result() T {
	r.t.Helper()
	<-r.done
	if r.err != nil {
		r.t.Fatalf("a concurrent call failed: %v", r.err)
	}
	return r.value
}

// blocked returns once a session of that name waits for a lock, or the call that was to wait is over without: then what
// the test finds afterwards says more than that it did not wait.
func (f *fixture) blocked(name string, done <-chan struct{}) (waits bool) {
	f.t.Helper()
	f.until("a session of "+name+" waits for a lock", func() bool {
		select {
		case <-done:
			return true
		default:
		}
		waits = ask[bool](f, `SELECT EXISTS (SELECT FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'
			AND wait_event <> 'object')`, name) // that is the lock of notifications, of all databases of the server
		return waits
	})
	return waits
}

// until polls a condition.
func (f *fixture) until(what string, holds func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(patience)
	for !holds() {
		if time.Now().After(deadline) {
			f.t.Fatalf("waited %v for: %s", patience, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// endLeases lets every lease end now, as the passing of time would.
func (f *fixture) endLeases() {
	f.t.Helper()
	f.exec(`WITH d AS (UPDATE postrider.delivery SET lease_until = now() - interval '1 s' WHERE claim_token IS NOT NULL)
		UPDATE postrider.lane SET lease_end = now() - interval '1 s',
			open_until = CASE WHEN probe_token IS NULL THEN open_until ELSE now() - interval '1 s' END WHERE inflight > 0`)
}

// checkInFlight demands that every lane counts its claimed rows right.
func (f *fixture) checkInFlight() {
	f.t.Helper()
	if n := ask[int](f, `SELECT count(*) FROM postrider.lane l
		LEFT JOIN (SELECT lane_id, count(*) AS n FROM postrider.delivery WHERE claim_token IS NOT NULL GROUP BY 1) c USING (lane_id)
		WHERE l.inflight <> coalesce(c.n, 0) OR l.inflight > 0 AND l.lease_end IS NULL`); n != 0 {
		f.t.Errorf("%d lanes count what is in flight wrongly", n)
	}
}

func (f *fixture) waiting() int {
	f.t.Helper()
	return ask[int](f, `SELECT count(*) FROM postrider.delivery`)
}

// whole is a request for all that is due.
func whole() ClaimRequest {
	return ClaimRequest{Budget: 500, Lanes: 50, PerLane: 500, Lease: time.Minute}
}

// results gives claims one verdict.
func results(v Verdict, claims ...Claim) []Result {
	all := make([]Result, len(claims))
	for i, c := range claims {
		all[i] = Result{Claim: c, Version: c.Version, Verdict: v, Status: 200, Duration: time.Millisecond}
		if v == Dead || v == Retry {
			all[i].Status, all[i].Reason = 500, "ServerError"
		}
	}
	return all
}

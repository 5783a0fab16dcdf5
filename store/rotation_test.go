package store

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// A password that is rotated while everything runs is used by the next connection: of the pool, of who listens, of chores.
func TestARotatedPasswordIsUsedByTheNextConnection(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	role := newRole(f, "first")
	var access atomic.Pointer[Access]
	access.Store(&Access{DSN: role.dsn("first")})
	var told atomic.Pointer[string]
	s, err := Open(t.Context(), Options{
		MaxConns: 4, Reread: func() (Access, error) { return *access.Load(), nil }, Refused: func(reason string) { told.Store(&reason) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	woken := make(chan struct{}, 16)
	listen := func() <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- s.Listen(t.Context(), func() { woken <- struct{}{} }) }()
		return ended
	}
	lost := listen()
	<-woken
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}

	role.rotate("second")
	if err := <-lost; err == nil || !IsUnavailable(err) {
		t.Errorf("listening ended with %v, want a lost connection", err)
	}
	f.until("the old password is refused", func() bool { return refused(s.Ping(t.Context())) })
	for what, err := range map[string]error{"pool": s.Ping(t.Context()), "listening": s.Listen(t.Context(), func() {}), "chore": dropDays(t.Context(), s)} {
		if !refused(err) || !IsUnavailable(err) {
			t.Errorf("%s: got %v, want a refused password, which somebody may be about to mend", what, err)
		} else if strings.Contains(err.Error(), "first") {
			t.Errorf("%s: the error holds the password: %v", what, err)
		}
	}

	if reason := told.Load(); reason == nil || !strings.Contains(*reason, "password authentication failed") {
		t.Errorf("told %v, want that the password is refused", reason)
	}

	access.Store(&Access{DSN: role.dsn("second")})
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("the pool does not use the new password: %v", err)
	}
	listen()
	select {
	case <-woken:
	case <-time.After(10 * time.Second):
		t.Error("nobody listens with the new password")
	}
	if err := dropDays(t.Context(), s); refused(err) {
		t.Errorf("a chore does not use the new password: %v", err)
	}
}

// While the file is being written anew, what is read may be nothing, or half.
func TestAnUnreadableAccessCountsAsADatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var broken atomic.Int32
	s, err := Open(t.Context(), Options{Reread: func() (Access, error) {
		switch broken.Load() {
		case 1:
			return Access{}, errors.New("the file is gone")
		case 2:
			return Access{DSN: "postgres://user:hunter2@host:po"}, nil
		}
		return Access{DSN: f.dsn}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	for kind := int32(1); kind <= 2; kind++ {
		broken.Store(kind)
		if err := s.Ping(t.Context()); !IsUnavailable(err) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("got %v, want a database that is away", err)
		}
	}
	broken.Store(0)
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("got %v once it can be read again", err)
	}
}

func dropDays(ctx context.Context, s *Store) error {
	_, err := s.DropDays(ctx, 72*time.Hour, 72*time.Hour)
	return err
}

func refused(err error) bool {
	return err != nil && strings.Contains(err.Error(), "password authentication failed")
}

// role is one that only this test uses: its password may change.
type role struct {
	f    *fixture
	name string
}

func newRole(f *fixture, password string) role {
	f.t.Helper()
	r := role{f, "postrider_test_" + strings.ToLower(ask[string](f, `SELECT replace(gen_random_uuid()::text, '-', '')`))[:20]}
	name := pgx.Identifier{r.name}.Sanitize()
	f.exec(`CREATE ROLE ` + name + ` LOGIN PASSWORD '` + password + `'`)
	f.t.Cleanup(func() {
		// The fixture's connection ends with the test's context.
		conn, err := pgx.Connect(context.Background(), f.dsn)
		if err != nil {
			f.t.Error(err)
			return
		}
		defer func() { _ = conn.Close(context.Background()) }()
		for _, statement := range []string{`DROP OWNED BY ` + name, `DROP ROLE ` + name} {
			if _, err := conn.Exec(context.Background(), statement); err != nil {
				f.t.Error(err)
			}
		}
	})
	return r
}

func (r role) dsn(password string) string {
	at, err := url.Parse(r.f.dsn)
	if err != nil {
		r.f.t.Fatal(err)
	}
	at.User = url.UserPassword(r.name, password)
	return at.String()
}

// rotate changes the password and ends all connections made with the old one.
func (r role) rotate(password string) {
	r.f.t.Helper()
	r.f.exec(`ALTER ROLE ` + pgx.Identifier{r.name}.Sanitize() + ` PASSWORD '` + password + `'`)
	r.f.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1`, r.name)
}

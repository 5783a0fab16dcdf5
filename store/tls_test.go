package store

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/test/localstack"
)

// verify-full: the server's certificate must be of the authority in the file, and of the server's name. The file is read
// anew for each connection, so that an authority can be replaced without a restart.
func TestTheServersCertificateIsVerified(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{TLS: true})
	if err := migrations.Up(t.Context(), pg.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	trust := func(certificate []byte) {
		t.Helper()
		if err := os.WriteFile(file, certificate, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	other, err := localstack.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(pg.DSN("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	at.RawQuery = url.Values{"sslmode": {"verify-full"}, "sslrootcert": {file}}.Encode()
	open := func(dsn string) *Store {
		t.Helper()
		loopback := func(context.Context, string) ([]string, error) { return []string{"127.0.0.1"}, nil }
		s, err := Open(t.Context(), Options{lookUp: loopback, Reread: func() (Access, error) { return Access{DSN: dsn}, nil }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		return s
	}

	trust(other.Certificate())
	s := open(at.String())
	if err := s.Ping(t.Context()); err == nil || !IsUnavailable(err) {
		t.Errorf("with another authority: got %v, want a connection that fails", err)
	}
	trust(pg.Certificate())
	if err := s.Ping(t.Context()); err != nil {
		t.Fatalf("with the right authority: %v", err)
	}
	var encrypted bool
	if err := s.pool.QueryRow(t.Context(), `SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()`).Scan(&encrypted); err != nil || !encrypted {
		t.Errorf("encrypted: %t, %v", encrypted, err)
	}
	if err := dropDays(t.Context(), s); err != nil {
		t.Errorf("a connection past the pool: %v", err)
	}

	elsewhere := *at
	elsewhere.Host = "db.example:" + at.Port()
	if err := open(elsewhere.String()).Ping(t.Context()); err == nil {
		t.Error("a server with the certificate of another name was taken")
	}
}

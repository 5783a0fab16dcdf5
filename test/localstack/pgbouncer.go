package localstack

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"
)

// StartPgBouncer puts a PgBouncer that pools by transaction before a server, with a few connections for all clients, and
// returns the DSN of a database through it. It is installed if it is not there, and ends with the test.
func StartPgBouncer(t testing.TB, before *Postgres, database string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), databasePatience)
	defer cancel()
	dsn, bouncer, err := startPgBouncer(ctx, before, database, filepath.Join(before.folder.path, "pgbouncer-"+database))
	if err != nil {
		t.Fatalf("localstack: start PgBouncer: %v", err)
	}
	t.Cleanup(func() { bouncer.stop(syscall.SIGTERM, postgresGrace) })
	return dsn
}

func startPgBouncer(ctx context.Context, before *Postgres, database, folder string) (string, *process, error) {
	const program = "pgbouncer"
	path, err := exec.LookPath(program)
	if err != nil {
		if err := InstallPackages(ctx, os.Stderr, program); err != nil {
			return "", nil, err
		}
		if path, err = exec.LookPath(program); err != nil {
			return "", nil, err
		}
	}
	port, err := freePort(ctx)
	if err != nil {
		return "", nil, err
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		return "", nil, err
	}
	files := map[string]string{
		"users": fmt.Sprintf("%q %q\n", "postgres", before.password),
		"ini": fmt.Sprintf("[databases]\n* = host=127.0.0.1 port=%d\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n"+
			"auth_type = scram-sha-256\nauth_file = %s\npool_mode = transaction\ndefault_pool_size = 5\n", before.port, port, filepath.Join(folder, "users")),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			return "", nil, err
		}
	}
	for _, name := range []string{"", "users", "ini"} {
		if err := before.account.own(filepath.Join(folder, name)); err != nil {
			return "", nil, err
		}
	}
	bouncer, err := start(command{
		path: path, args: []string{filepath.Join(folder, "ini")}, dir: folder, env: before.account.environment(),
		user: before.account.credential(), log: filepath.Join(folder, "log"), orphaned: syscall.SIGKILL,
	})
	if err != nil {
		return "", nil, err
	}
	at, err := url.Parse(before.DSN(database))
	if err != nil {
		return "", bouncer, err
	}
	at.Host = "127.0.0.1:" + strconv.Itoa(port)
	return at.String(), bouncer, bouncer.await(ctx, postgresPatience, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, at.String())
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
}

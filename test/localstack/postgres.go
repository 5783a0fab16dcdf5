package localstack

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions says what kind of server NewPostgres starts. The zero value suits tests.
type PostgresOptions struct {
	// Durable makes commits survive the loss of power, as in production: fsync is on and the data are on disk, not in
	// memory. False is many times faster and still survives the kill of any process.
	Durable bool
	// TLS has the server offer it, with a certificate for 127.0.0.1 and localhost; see Certificate.
	TLS bool
	// Settings are added to postgresql.conf, for example "statement_timeout": "5s".
	Settings map[string]string
	// Progress receives lines for whoever waits, when something takes long. Nil means os.Stderr.
	Progress io.Writer
}

// Postgres is a server of our own: own data, own port on loopback, own password. Its methods are not safe for
// concurrent use, except DSN.
type Postgres struct {
	programs  string // folder of initdb and postgres
	account   *account
	folder    *folder
	port      int
	password  string
	authority *authority // nil: no TLS
	server    *process
}

const (
	postgresPatience = time.Minute
	postgresGrace    = 20 * time.Second
)

// NewPostgres makes a database cluster and starts its server. The caller calls Close.
func NewPostgres(ctx context.Context, o PostgresOptions) (*Postgres, error) {
	progress := o.Progress
	if progress == nil {
		progress = os.Stderr
	}
	programs, err := findPostgres(ctx, progress)
	if err != nil {
		return nil, err
	}
	account, err := unprivileged()
	if err != nil {
		return nil, err
	}
	folder, err := newFolder(!o.Durable)
	if err != nil {
		return nil, err
	}
	p := &Postgres{programs: programs, account: account, folder: folder, password: rand.Text()}
	if err := p.initialize(ctx, o); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	if err := p.Start(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// StartPostgres is NewPostgres for a test that stops, restarts or reconfigures its server; it is closed with the test.
func StartPostgres(t testing.TB, o PostgresOptions) *Postgres {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), databasePatience)
	defer cancel()
	p, err := NewPostgres(ctx, o)
	if err != nil {
		t.Fatalf("localstack: start a Postgres for this test: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("localstack: close the Postgres of this test: %v", err)
		}
	})
	return p
}

// CreateDatabase makes an empty database and returns its DSN. There is always one named "postgres".
func (p *Postgres) CreateDatabase(ctx context.Context, name string) (string, error) {
	conn, err := pgx.Connect(ctx, p.DSN("postgres"))
	if err != nil {
		return "", fmt.Errorf("connect to create a database: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	return p.DSN(name), execAll(ctx, conn, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
}

// DSN returns the address of a database for the superuser, over TCP. It stays the same over restarts.
func (p *Postgres) DSN(database string) string {
	u := url.URL{
		Scheme:   "postgres",
		User:     url.UserPassword("postgres", p.password),
		Host:     loopback(p.port),
		Path:     "/" + database,
		RawQuery: "sslmode=disable",
	}
	return u.String()
}

// Start starts the server again after Stop or Kill, on the same port and data, and returns when it accepts connections.
func (p *Postgres) Start(ctx context.Context) error {
	if p.server.running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, postgresPatience)
	defer cancel()
	for {
		err := p.startOnce(ctx)
		if err == nil || ctx.Err() != nil || !p.inUse() {
			return err
		}
		// After a kill, the old server's children need a moment to notice and let go of port and memory.
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Stop ends the server after a checkpoint and without waiting for its clients ("fast"); the data stays.
func (p *Postgres) Stop() {
	p.server.stop(syscall.SIGINT, postgresGrace)
}

// Restart is Stop and Start.
func (p *Postgres) Restart(ctx context.Context) error {
	p.Stop()
	return p.Start(ctx)
}

// Kill ends the server as a crash does: connections break off in mid-sentence and the next Start recovers from the log.
func (p *Postgres) Kill() {
	backends := p.server.children()
	p.server.kill()
	// Left alone they notice at their next wait, and may answer until then.
	for _, pid := range backends {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Close stops the server and deletes its data. It may be called twice.
func (p *Postgres) Close() error {
	if p == nil || p.folder == nil {
		return nil
	}
	p.server.stop(syscall.SIGQUIT, postgresGrace) // at once: the data go anyway
	err := p.folder.remove()
	p.folder = nil
	return err
}

// Log returns the file that the server writes its messages to.
func (p *Postgres) Log() string { return filepath.Join(p.folder.path, "postgres.log") }

func (p *Postgres) data() string { return filepath.Join(p.folder.path, "data") }

func (p *Postgres) startOnce(ctx context.Context) error {
	if err := os.Truncate(p.Log(), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("empty the server's log: %w", err)
	}
	server, err := start(command{
		path:     filepath.Join(p.programs, "postgres"),
		args:     []string{"-D", p.data()},
		dir:      p.folder.path,
		env:      p.account.environment(),
		user:     p.account.credential(),
		log:      p.Log(),
		orphaned: syscall.SIGQUIT, // "immediate": no checkpoint for data that nobody will read, but shared memory is freed
	})
	if err != nil {
		return err
	}
	p.server = server
	err = server.await(ctx, postgresPatience, func(ctx context.Context) error {
		conn, err := pgx.Connect(ctx, p.DSN("postgres"))
		if err != nil {
			return err
		}
		return conn.Close(ctx)
	})
	if err != nil {
		server.stop(syscall.SIGQUIT, postgresGrace)
		p.server = nil
	}
	return err
}

// inUse tells from the log whether the last start failed since the previous server has not let go yet.
func (p *Postgres) inUse() bool {
	log := tail(p.Log(), 20)
	return strings.Contains(log, "Address already in use") || strings.Contains(log, "is still in use") ||
		strings.Contains(log, "lock file")
}

// initialize makes the data directory and chooses the port.
func (p *Postgres) initialize(ctx context.Context, o PostgresOptions) error {
	for _, dir := range []string{"data", "socket"} {
		path := filepath.Join(p.folder.path, dir)
		if err := os.Mkdir(path, 0o700); err != nil {
			return fmt.Errorf("make the folder of Postgres: %w", err)
		}
		if err := p.account.own(path); err != nil {
			return err
		}
	}
	passwordFile := filepath.Join(p.folder.path, "socket", "password")
	if err := os.WriteFile(passwordFile, []byte(p.password+"\n"), 0o600); err != nil {
		return fmt.Errorf("write the password for initdb: %w", err)
	}
	defer func() { _ = os.Remove(passwordFile) }()
	if err := p.account.own(passwordFile); err != nil {
		return err
	}
	// Locale C: no test may lean on a collation that another machine lacks.
	initdb, err := start(command{
		path: filepath.Join(p.programs, "initdb"),
		args: []string{
			"-D", p.data(), "--username=postgres", "--pwfile=" + passwordFile, "--auth=scram-sha-256",
			"--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions",
		},
		dir:      p.folder.path,
		env:      p.account.environment(),
		user:     p.account.credential(),
		log:      p.Log(),
		orphaned: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	select {
	case <-initdb.done:
	case <-ctx.Done():
		initdb.kill()
		return ctx.Err()
	}
	if initdb.err != nil {
		return fmt.Errorf("initdb failed (%w); its last lines:\n%s", initdb.err, tail(p.Log(), 20))
	}
	if p.port, err = freePort(ctx); err != nil {
		return err
	}
	return p.configure(o)
}

func (p *Postgres) configure(o PostgresOptions) error {
	durable := "off"
	if o.Durable {
		durable = "on"
	}
	settings := map[string]string{
		"listen_addresses":        "127.0.0.1",
		"port":                    strconv.Itoa(p.port),
		"unix_socket_directories": filepath.Join(p.folder.path, "socket"),
		"max_connections":         "300",
		"shared_buffers":          "128MB",
		"fsync":                   durable,
		"full_page_writes":        durable,
		"timezone":                "UTC",
		"log_timezone":            "UTC",
		"log_line_prefix":         "%m [%p] %d ",
	}
	if o.TLS {
		if err := p.offerTLS(settings); err != nil {
			return err
		}
	}
	for name, value := range o.Settings {
		settings[name] = value
	}
	var conf strings.Builder
	for name, value := range settings {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, strings.ReplaceAll(value, "'", "''"))
	}
	lines := strings.SplitAfter(conf.String(), "\n")
	sort.Strings(lines)
	file, err := os.OpenFile(filepath.Join(p.data(), "postgresql.conf"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open the configuration of Postgres: %w", err)
	}
	_, err = file.WriteString(strings.Join(lines, ""))
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("write the configuration of Postgres: %w", err)
	}
	return nil
}

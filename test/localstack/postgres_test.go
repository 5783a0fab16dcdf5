package localstack

import (
	"context"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
)

func TestPostgresNeverRunsAsRoot(t *testing.T) {
	t.Parallel()
	p := StartPostgres(t, PostgresOptions{})
	status, err := os.ReadFile("/proc/" + strconv.Itoa(p.server.cmd.Process.Pid) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if uids, ok := strings.CutPrefix(line, "Uid:"); ok {
			for _, uid := range strings.Fields(uids) {
				if uid == "0" {
					t.Errorf("user ids of the server: got %q, want none to be 0", strings.TrimSpace(uids))
				}
			}
			return
		}
	}
	t.Errorf("no user ids in:\n%s", status)
}

func TestPostgresKeepsAddressAndDataOverRestarts(t *testing.T) {
	t.Parallel()
	for name, down := range map[string]func(*Postgres){"stopped": (*Postgres).Stop, "killed": (*Postgres).Kill} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := StartPostgres(t, PostgresOptions{})
			before := p.DSN("postgres")
			query(t, before, "CREATE TABLE kept AS SELECT 1 AS n")

			down(p)
			if conn, err := pgx.Connect(t.Context(), before); err == nil {
				_ = conn.Close(context.Background())
				t.Error("a server that is down still accepts connections")
			}
			if err := p.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			if after := p.DSN("postgres"); after != before {
				t.Errorf("address after the restart: got %s, want %s", after, before)
			}
			if n := query(t, before, "SELECT n::text FROM kept"); n != "1" {
				t.Errorf("row after the restart: got %q, want 1", n)
			}
		})
	}
}

func TestPostgresIsDurableOnlyWhereAsked(t *testing.T) {
	t.Parallel()
	if fsync := query(t, StartPostgres(t, PostgresOptions{}).DSN("postgres"), "SHOW fsync"); fsync != "off" {
		t.Errorf("fsync by default: got %s, want off", fsync)
	}
	p, err := NewPostgres(t.Context(), PostgresOptions{Durable: true, Settings: map[string]string{"work_mem": "'7MB"}})
	if err == nil {
		t.Errorf("a senseless setting was accepted")
		_ = p.Close()
	}
	p, err = NewPostgres(t.Context(), PostgresOptions{Durable: true, Settings: map[string]string{"work_mem": "7MB"}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if got := query(t, p.DSN("postgres"), "SELECT current_setting('fsync') || ' ' || current_setting('work_mem')"); got != "on 7MB" {
		t.Errorf("fsync and work_mem as asked for: got %s, want on 7MB", got)
	}
}

func TestClosingPostgresLeavesNothing(t *testing.T) {
	t.Parallel()
	p := StartPostgres(t, PostgresOptions{})
	folder := p.folder.path
	for range 2 {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if left := processesIn(t, folder); len(left) > 0 {
		t.Errorf("processes after Close: %v", left)
	}
	if _, err := os.Stat(folder); !os.IsNotExist(err) {
		t.Errorf("folder after Close: got %v, want none", err)
	}
}

// query runs one statement and returns its first value, empty if there is none.
func query(t *testing.T, dsn, statement string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(t.Context(), statement)
	if err != nil {
		t.Fatal(err)
	}
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	if len(values) == 0 {
		return ""
	}
	return values[0]
}

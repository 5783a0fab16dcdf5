package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	profileSeconds = 3
	waitsEvery     = 10 * time.Millisecond
)

// observe writes, where profiles are wanted, a CPU profile of the dispatcher's first seconds, what the sessions of its
// database waited for, and which statements took the time. The function that it returns ends that.
func (r *run) observe(ctx context.Context, db *database, p *part) (stop func() error) {
	if !r.profile {
		return func() error { return nil }
	}
	ctx, end := context.WithCancel(ctx)
	name := filepath.Join(r.results, fmt.Sprintf("round%d-%s", len(r.rounds), r.unit))
	profiled, waited := make(chan error, 1), make(chan error, 1)
	go func() {
		profile, err := fetch(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", p.probes, profileSeconds))
		if err != nil {
			profiled <- nil // the work was over before the profile was
			return
		}
		profiled <- r.keep(name+".pprof", profile)
	}()
	go func() {
		waits, err := waitEvents(ctx, db)
		waited <- errors.Join(err, r.keep(name+".waits.txt", []byte(waits)))
	}()
	counting := db.exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()`)
	return func() error {
		end()
		statements, err := db.statements(context.WithoutCancel(ctx))
		return errors.Join(counting, err, r.keep(name+".statements.txt", []byte(statements)), <-profiled, <-waited)
	}
}

// preload is what the server must load for statements to be counted.
var preload = map[string]string{"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track_utility": "on"}

// statements tells what was executed since counting began. The times are those of a clock, waits for locks included.
func (db *database) statements(ctx context.Context) (string, error) {
	const query = `SELECT calls, total_exec_time, mean_exec_time, rows::float8 / calls, (shared_blks_hit + shared_blks_read)::float8 / calls, wal_bytes::float8 / calls,
			left(regexp_replace(query, '\s+', ' ', 'g'), 90)
		FROM pg_stat_statements WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
		ORDER BY total_exec_time DESC LIMIT 30`
	rows, err := db.conn.Query(ctx, query)
	if err != nil {
		return "", fmt.Errorf("read the statements: %w", err)
	}
	lines := []string{"  calls   total ms  mean ms    rows   pages      WAL  statement (each for a call)"}
	var calls int64
	var total, mean, n, pages, wal float64
	var text string
	_, err = pgx.ForEachRow(rows, []any{&calls, &total, &mean, &n, &pages, &wal, &text}, func() error {
		lines = append(lines, fmt.Sprintf("%7d %10.1f %8.3f %7.1f %7.0f %8.0f  %s", calls, total, mean, n, pages, wal, text))
		return nil
	})
	return strings.Join(lines, "\n") + "\n", err
}

func (r *run) keep(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return fmt.Errorf("make the folder of profiles: %w", err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write a profile: %w", err)
	}
	return nil
}

// waitEvents samples what active sessions wait for until the context ends. A session that waits for nothing is on a CPU,
// or would like to be.
func waitEvents(ctx context.Context, db *database) (string, error) {
	const sample = `SELECT coalesce(wait_event_type || ':' || wait_event, 'running'), left(regexp_replace(query, '\s+', ' ', 'g'), 60), count(*)
		FROM pg_stat_activity WHERE datname = current_database() AND state = 'active' AND pid <> pg_backend_pid() GROUP BY 1, 2`
	conn, err := pgx.Connect(ctx, db.dsn)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	seen := map[string]int{}
	samples := 0
	for ; rest(ctx, waitsEvery) == nil; samples++ {
		rows, err := conn.Query(ctx, sample)
		if err != nil {
			break
		}
		var event, query string
		var n int
		if _, err := pgx.ForEachRow(rows, []any{&event, &query, &n}, func() error { seen[event+"\t"+query] += n; return nil }); err != nil {
			break
		}
	}
	lines := make([]string, 0, len(seen))
	for what, n := range seen {
		lines = append(lines, fmt.Sprintf("%7d\t%s", n, what))
	}
	slices.Sort(lines)
	slices.Reverse(lines)
	return fmt.Sprintf("%7d\tsamples\n", samples) + strings.Join(lines, "\n") + "\n", nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	profileSeconds = 2 // a drain is over after some 3
	waitsEvery     = 10 * time.Millisecond
)

// preload is what the server must load for statements to be counted and some of their plans to be written to its log.
var preload = map[string]string{
	"shared_preload_libraries":      "pg_stat_statements,auto_explain",
	"pg_stat_statements.track":      "top",
	"auto_explain.log_min_duration": "0",
	"auto_explain.sample_rate":      "0.01",
	"auto_explain.log_analyze":      "on",
	"auto_explain.log_buffers":      "on",
	"auto_explain.log_timing":       "off", // of each node: two looks at the clock for each row
}

// observe writes down, where profiles are wanted, what some parts did with their first seconds of CPU from now on, what the
// sessions of their database waited for, which statements took the time, and the plans of some of these. The function that it
// returns ends that. What it writes is called after what it is about.
func (r *run) observe(ctx context.Context, db *database, about string, parts ...*part) (stop func() error) {
	if !r.profile {
		return func() error { return nil }
	}
	if err := os.MkdirAll(r.results, 0o750); err != nil {
		return func() error { return fmt.Errorf("make the folder of profiles: %w", err) }
	}
	name := filepath.Join(r.results, about)
	removed := removeAll(name + ".*") // of another run, which nothing of this one may be taken for
	watching, end := context.WithCancel(ctx)
	profiled, waited := make(chan error, len(parts)), make(chan error, 1)
	for _, p := range parts {
		go func() { profiled <- p.profile(watching, name+"."+p.name) }()
	}
	go func() {
		waits, err := waitEvents(watching, db)
		waited <- errors.Join(err, keep(name+".waits.txt", waits))
	}()
	counting := db.exec(ctx, `CREATE EXTENSION IF NOT EXISTS pg_stat_statements; SELECT pg_stat_statements_reset()`)
	from, noLog := size(r.postgres.Log())
	return func() error {
		end()
		statements, err := db.statements(context.WithoutCancel(ctx))
		err = errors.Join(removed, counting, noLog, err, keep(name+".statements.txt", statements), <-waited)
		for range parts {
			err = errors.Join(err, <-profiled)
		}
		for _, p := range parts {
			err = errors.Join(err, readProfile(context.WithoutCancel(ctx), name+"."+p.name))
		}
		plans, unread := plansIn(r.postgres.Log(), from, db.name)
		return errors.Join(err, unread, keep(name+".plans.txt", plans))
	}
}

// profile writes down where the part's CPU goes, as pprof has it. Work that is over sooner has none.
func (p *part) profile(ctx context.Context, name string) error {
	profile, err := fetch(ctx, fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", p.probes, profileSeconds))
	if err == nil {
		return keep(name+".pprof", string(profile))
	}
	if err = unlessEnded(err); err != nil {
		return fmt.Errorf("profile the %s: %w", p.name, err)
	}
	return nil
}

// readProfile puts a profile into words, if there is one.
func readProfile(ctx context.Context, name string) error {
	if _, err := os.Stat(name + ".pprof"); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	top, err := exec.CommandContext(ctx, "go", "tool", "pprof", "-top", "-cum", "-nodecount=60", name+".pprof").Output()
	if err != nil {
		return fmt.Errorf("read the profile %s: %w", filepath.Base(name), err)
	}
	return keep(name+".cpu.txt", string(top))
}

func removeAll(pattern string) error {
	files, err := filepath.Glob(pattern)
	for _, file := range files {
		err = errors.Join(err, os.Remove(file))
	}
	return err
}

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
		lines = append(lines, fmt.Sprintf("%7d %10.1f %8.3f %7.1f %7.0f %8.0f  %s", calls, total, mean, n, pages, wal, strings.TrimSpace(text)))
		return nil
	})
	return strings.Join(lines, "\n") + "\n", err
}

func keep(file, text string) error {
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
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
	if _, err := conn.Exec(ctx, `SET pg_stat_statements.track = 'none'; SET auto_explain.sample_rate = 0`); err != nil { // what is observed is not us
		return "", unlessEnded(err)
	}
	seen := map[string]int{}
	samples := 0
	for ; rest(ctx, waitsEvery) == nil; samples++ {
		rows, _ := conn.Query(ctx, sample) // its error is that of the rows
		var event, query string
		var n int
		_, err := pgx.ForEachRow(rows, []any{&event, &query, &n}, func() error { seen[event+"\t"+strings.TrimSpace(query)] += n; return nil })
		if err := unlessEnded(err); err != nil {
			return "", fmt.Errorf("sample what sessions wait for: %w", err)
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

// unlessEnded leaves out an error that comes of a context's end.
func unlessEnded(err error) error {
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

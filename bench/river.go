package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/postrider/postrider/bench/sink"
	"github.com/postrider/postrider/signature"
)

// webhook is River's job: one delivery.
type webhook struct {
	Event uuid.UUID `json:"event"`
	URL   string    `json:"url"`
	Body  string    `json:"body"`
}

// Kind implements river.JobArgs.
func (webhook) Kind() string { return "webhook" }

// worker makes the request of a job; an error makes River retry it.
type worker struct {
	river.WorkerDefaults[webhook]

	poster *poster
}

// Work implements river.Worker.
func (w *worker) Work(ctx context.Context, job *river.Job[webhook]) error {
	return w.poster.post(ctx, job.Args.URL, job.Args.Event, []byte(job.Args.Body))
}

// riverConfig is one way to run River. Zero durations are its defaults.
type riverConfig struct {
	Workers  int           `json:"workers"`
	Cooldown time.Duration `json:"cooldown"`
	Poll     time.Duration `json:"poll"`
}

// River's settings here: as fast as it may fetch, with as many workers as its documentation's examples and more. Its
// defaults leave the fetch alone; MaxWorkers has none, and 100 is what its documentation starts with.
var (
	riverTuned   = []riverConfig{tuned(64), tuned(256), tuned(1000)}
	riverDefault = riverConfig{Workers: 100}
)

func tuned(workers int) riverConfig {
	return riverConfig{Workers: workers, Cooldown: time.Millisecond, Poll: 10 * time.Millisecond}
}

const envRiverDatabase, envRiverConfig = "BENCH_RIVER_DATABASE", "BENCH_RIVER_CONFIG"

// workRiver is the subcommand that runs River's client until the context ends.
func workRiver(ctx context.Context, out io.Writer) error {
	var config riverConfig
	if err := json.Unmarshal([]byte(os.Getenv(envRiverConfig)), &config); err != nil {
		return fmt.Errorf("read %s: %w", envRiverConfig, err)
	}
	key, err := signature.ParseKey([]byte(benchSecret))
	if err != nil {
		return err
	}
	pool, err := riverPool(ctx, os.Getenv(envRiverDatabase))
	if err != nil {
		return err
	}
	defer pool.Close()
	p := newPoster(key, config.Workers)
	defer p.close()
	workers := river.NewWorkers()
	river.AddWorker(workers, &worker{poster: p})
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{
		Queues:            map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: config.Workers}},
		Workers:           workers,
		FetchCooldown:     config.Cooldown,
		FetchPollInterval: config.Poll,
		Logger:            slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	return client.Stop(stopping)
}

func riverPool(ctx context.Context, dsn string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, errors.New("the database's address cannot be parsed")
	}
	config.MaxConns = poolConns
	return pgxpool.NewWithConfig(ctx, config)
}

// riverTemplate is a database with River's schema.
func riverTemplate(ctx context.Context, db *database) error {
	pool, err := riverPool(ctx, db.dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// drainRiver measures how fast River works off jobs that are there, as drain does for Postrider.
func drainRiver(config riverConfig, key string, count func(plan) int) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) (err error) {
		t, err := r.prepare(ctx, "river", riverTemplate)
		if err != nil {
			return err
		}
		db, err := r.copyOf(ctx, t)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, db.drop(ctx)) }()
		n := count(r.plan)
		if err := r.loadRiver(ctx, db, n); err != nil {
			return err
		}
		if err := r.sink.Reset(ctx); err != nil {
			return err
		}
		m, err := db.measure(ctx)
		if err != nil {
			return err
		}
		text, err := json.Marshal(config)
		if err != nil {
			return err
		}
		c, err := launch(r.dir, "river", r.self, []string{"river"}, []string{envRiverDatabase + "=" + db.dsn, envRiverConfig + "=" + string(text)})
		if err != nil {
			return err
		}
		defer c.stop()
		m.watchAll(c)
		if err := r.arrived(ctx, db, c, opponent, sink.OK, n); err != nil {
			return err
		}
		const unfinished = `SELECT EXISTS (SELECT FROM river_job WHERE state <> 'completed')`
		if err := c.poll(ctx, func() (bool, error) {
			left, err := ask[bool](ctx, db, unfinished)
			return !left, err
		}); err != nil {
			return err
		}
		d, err := r.drained(ctx, m, opponent, sink.OK, n)
		if err != nil {
			return err
		}
		r.note(key, d.perSecond)
		r.noteCosts(key, d.usage, n)
		return nil
	}
}

// loadRiver inserts n jobs for a hundred endpoints in turn.
func (r *run) loadRiver(ctx context.Context, db *database, n int) error {
	pool, err := riverPool(ctx, db.dsn)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{})
	if err != nil {
		return err
	}
	body := string(sink.Body(bodyBytes, 0))
	const chunk, endpoints = 1000, 100
	for at := 0; at < n; at += chunk {
		jobs := make([]river.InsertManyParams, 0, chunk)
		for i := at; i < min(n, at+chunk); i++ {
			id, err := uuid.NewV7()
			if err != nil {
				return err
			}
			jobs = append(jobs, river.InsertManyParams{Args: webhook{Event: id, URL: r.url(sink.OK, i%endpoints), Body: body}})
		}
		if _, err := client.InsertManyFast(ctx, jobs); err != nil {
			return fmt.Errorf("insert jobs: %w", err)
		}
	}
	return db.exec(ctx, `ANALYZE river_job`)
}

func riverKey(c riverConfig) string { return "drain_per_s_river_" + strconv.Itoa(c.Workers) }

package main

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/migrations"
)

// schemaEvery is between two looks at the schema of a database that is in use: a newer release may migrate it meanwhile.
const schemaEvery = time.Minute

// schemaWatch knows how far the database's schema is. The zero value knows nothing yet.
type schemaWatch struct {
	seen    atomic.Pointer[migrations.Schema]
	version *prometheus.Desc
	wanted  *prometheus.Desc
}

func newSchemaWatch() *schemaWatch {
	return &schemaWatch{
		version: prometheus.NewDesc("postrider_schema_version", "The newest migration that the database has. Absent until it could be asked.", nil, nil),
		wanted:  prometheus.NewDesc("postrider_schema_wanted", "The newest migration that this binary has. It waits for a database that has less.", nil, nil),
	}
}

// Describe implements prometheus.Collector.
func (w *schemaWatch) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- w.version
	descriptions <- w.wanted
}

// Collect implements prometheus.Collector.
func (w *schemaWatch) Collect(metrics chan<- prometheus.Metric) {
	if newest, err := migrations.Newest(); err == nil {
		metrics <- prometheus.MustNewConstMetric(w.wanted, prometheus.GaugeValue, float64(newest))
	}
	if s := w.seen.Load(); s != nil {
		metrics <- prometheus.MustNewConstMetric(w.version, prometheus.GaugeValue, float64(s.Applied))
	}
}

// saw takes note of what a look found.
func (w *schemaWatch) saw(s migrations.Schema, err error) {
	if err == nil || errors.Is(err, migrations.ErrBehind) || errors.Is(err, migrations.ErrIncompatible) || errors.Is(err, migrations.ErrEdited) {
		w.seen.Store(&s)
	}
}

// wait returns once this binary may run on the database's schema, and says what it waits for when that changes.
func (w *schemaWatch) wait(ctx context.Context, log *slog.Logger, d *database) error {
	said := ""
	return migrations.Wait(ctx, d.direct, time.Second, func(s migrations.Schema, err error) {
		w.saw(s, err)
		if err != nil && err.Error() != said {
			said = err.Error()
			log.Warn("waiting for the database", "reason", said)
		}
	})
}

// follow looks again and again until the context ends. A schema that does not support this binary any more is no reason to
// stop what runs: it would not come back.
func (w *schemaWatch) follow(ctx context.Context, log *slog.Logger, d *database) {
	ticker := time.NewTicker(schemaEvery)
	defer ticker.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		err := w.look(ctx, d)
		if !errors.Is(err, migrations.ErrIncompatible) {
			continue
		}
		if err.Error() != said {
			said = err.Error()
			log.Warn("this process goes on, but would not start again", "reason", said)
		}
	}
}

func (w *schemaWatch) look(ctx context.Context, d *database) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	return migrations.Wait(ctx, d.direct, schemaEvery, w.saw)
}

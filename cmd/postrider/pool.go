package main

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/store"
)

// poolMetrics tells how long a part waits for connections of its pool: the sign that --database-max-conns is too low, or
// Postgres too slow.
type poolMetrics struct {
	store              *store.Store
	open, inUse        *prometheus.Desc
	waits, waitSeconds *prometheus.Desc
}

func newPoolMetrics(s *store.Store, part string) *poolMetrics {
	describe := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("postrider_database_"+name, help, nil, prometheus.Labels{"part": part})
	}
	return &poolMetrics{
		store:       s,
		open:        describe("connections", "Connections of the pool."),
		inUse:       describe("connections_in_use", "Connections of the pool that are in use."),
		waits:       describe("pool_waits_total", "How often a connection had to be waited for."),
		waitSeconds: describe("pool_wait_seconds_total", "How long connections were waited for, in all."),
	}
}

// Describe implements prometheus.Collector.
func (p *poolMetrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{p.open, p.inUse, p.waits, p.waitSeconds} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (p *poolMetrics) Collect(metrics chan<- prometheus.Metric) {
	stat := p.store.PoolStats()
	metrics <- prometheus.MustNewConstMetric(p.open, prometheus.GaugeValue, float64(stat.TotalConns()))
	metrics <- prometheus.MustNewConstMetric(p.inUse, prometheus.GaugeValue, float64(stat.AcquiredConns()))
	metrics <- prometheus.MustNewConstMetric(p.waits, prometheus.CounterValue, float64(stat.EmptyAcquireCount()))
	metrics <- prometheus.MustNewConstMetric(p.waitSeconds, prometheus.CounterValue, stat.EmptyAcquireWaitTime().Seconds())
}

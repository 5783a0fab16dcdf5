package controllers

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of this part. Labels are of a few fixed values.
type metrics struct {
	// statusWrites counts writes of a status by the urgency of what changed in it.
	statusWrites *prometheus.CounterVec
	// statusLag is how long the oldest material change has been waiting to be written.
	statusLag prometheus.Gauge
	// reconciles counts reconciles by what came of them.
	reconciles *prometheus.CounterVec
	// sweepRefused is how many rows the sweep would give up and does not without being told to.
	sweepRefused prometheus.Gauge
	// tombstoned counts the rows that were given up because their object is gone, by how that was noticed.
	tombstoned *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	const namespace = "postrider"
	return &metrics{
		statusWrites: register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "status_writes_total",
			Help: "Writes of an endpoint's status, by kind: material (a condition, a dead letter, a spec that is now in force) or moving (figures of a busy endpoint).",
		}, []string{"kind"})),
		statusLag: register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "status_lag_seconds",
			Help: "Age of the oldest material change that is not yet in the status of its endpoint.",
		})),
		reconciles: register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "reconciles_total",
			Help: "Reconciles of an endpoint, by outcome: a reason of the Ready condition, or Deleted, Outdated (the cache was behind), Conflict, Error.",
		}, []string{"outcome"})),
		sweepRefused: register(registerer, prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: namespace, Name: "sweep_refused_endpoints",
			Help: "Endpoints in the store whose object is gone, so many that the sweep waits for --confirm-sweep. 0: it does not wait.",
		})),
		tombstoned: register(registerer, prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: namespace, Name: "endpoints_tombstoned_total",
			Help: "Endpoints given up because their object is gone, by how that was noticed: deletion (it was seen) or sweep (it was missed).",
		}, []string{"noticed"})),
	}
}

// register returns the collector that is registered: an earlier one, where this part was started in this process before.
func register[C prometheus.Collector](registerer prometheus.Registerer, collector C) C {
	err := registerer.Register(collector)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing
		}
	}
	if err != nil {
		panic(err) // a name of ours that is malformed or means two things
	}
	return collector
}

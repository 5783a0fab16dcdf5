package dispatcher

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/store"
)

func TestMetricsTellWhatHappened(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &figures{memory: newMemory()}
		endpoint := testEndpoint(t, 1)
		endpoint.Spec.MaxAttempts, endpoint.Spec.Schedule = 2, []time.Duration{time.Second}
		endpoint = m.apply(endpoint)
		registry := prometheus.NewRegistry()
		deps := testDependencies(t, m)
		deps.Metrics = registry
		first := true
		d := start(t, Config{Senders: 1}, deps, outside{transport: receiver(func(*http.Request) (*http.Response, error) {
			if first {
				first = false
				return answers(200)
			}
			time.Sleep(3 * time.Second)
			return answers(503)
		})})
		m.add(endpoint)
		time.Sleep(time.Second)
		m.add(endpoint)
		time.Sleep(time.Minute)
		d.end()
		want := `
# HELP postrider_deliveries_total Claims that ended, by outcome: delivered, retry, dead, released.
# TYPE postrider_deliveries_total counter
postrider_deliveries_total{outcome="dead"} 1
postrider_deliveries_total{outcome="delivered"} 1
postrider_deliveries_total{outcome="released"} 0
postrider_deliveries_total{outcome="retry"} 1
# HELP postrider_deliveries_claimed_total Deliveries claimed by this replica.
# TYPE postrider_deliveries_claimed_total counter
postrider_deliveries_claimed_total 3
# HELP postrider_in_flight Senders of this replica with a delivery in hand.
# TYPE postrider_in_flight gauge
postrider_in_flight 0
# HELP postrider_due Deliveries due now that a claim may take, in the whole queue, to 10,000 per endpoint.
# TYPE postrider_due gauge
postrider_due 7
# HELP postrider_oldest_due_age_seconds How long the longest-waiting endpoint has had work due; 0: none.
# TYPE postrider_oldest_due_age_seconds gauge
postrider_oldest_due_age_seconds 90
# HELP postrider_partitions_ahead Days after today for which the partitions are made; under 1 tomorrow's is missing.
# TYPE postrider_partitions_ahead gauge
postrider_partitions_ahead 3
# HELP postrider_circuits_open Endpoints whose circuit is open.
# TYPE postrider_circuits_open gauge
postrider_circuits_open 2
# HELP postrider_paused Pauses in force: 1 for scope installation while all sending is held, and how many namespaces are.
# TYPE postrider_paused gauge
postrider_paused{scope="installation"} 1
postrider_paused{scope="namespace"} 2
# HELP postrider_dead_letters Dead letters kept and not replayed.
# TYPE postrider_dead_letters gauge
postrider_dead_letters 5
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "postrider_deliveries_total", "postrider_deliveries_claimed_total", "postrider_in_flight",
			"postrider_due", "postrider_oldest_due_age_seconds", "postrider_partitions_ahead", "postrider_circuits_open", "postrider_paused", "postrider_dead_letters"); err != nil {
			t.Error(err)
		}
		if got := testutil.ToFloat64(d.metrics.failures[ServerError]); got != 2 {
			t.Errorf("failed attempts, %s: got %v, want 2", ServerError, got)
		}
		if problems, err := testutil.GatherAndLint(registry); err != nil || len(problems) > 0 {
			t.Errorf("lint of the metrics: %v, %v", problems, err)
		}
		if _, err := assemble(Config{}, deps, outside{}); err == nil {
			t.Error("a second dispatcher on one registry: got nil, want an error")
		}
	})
}

// figures gives a queue's.
type figures struct{ *memory }

func (f *figures) QueueFigures(context.Context) (store.QueueFigures, error) {
	return store.QueueFigures{At: f.now(), Claimable: 7, OldestDue: f.now().Add(-90 * time.Second), OpenCircuits: 2, DeadLetters: 5, DaysAhead: 3, Paused: true, PausedNamespaces: 2}, nil
}

package dispatcher

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/store"
)

// metrics of a dispatcher. Labels have few values, all known from the start; nothing here names an endpoint or an event.
type metrics struct {
	deliveries      map[store.Verdict]prometheus.Counter
	failures        map[Reason]prometheus.Counter
	attemptDuration prometheus.Histogram
	claimDuration   prometheus.Histogram
	recordDuration  prometheus.Histogram
	claimed         prometheus.Counter
	leasesExpired   prometheus.Counter
	fenced          prometheus.Counter
	unrecorded      prometheus.Counter
	reconnects      prometheus.Counter
	choreErrors     *prometheus.CounterVec
	storeErrors     struct{ claim, endpoints, complete prometheus.Counter }

	seats  *seats
	chores choreTimes
	queue  atomic.Pointer[store.QueueFigures]
}

const prefixOfNames = "postrider_"

// Seconds: a claim and a record are a few round trips, an attempt ends with its endpoint's timeout.
var (
	storeBuckets   = []float64{.001, .002, .003, .005, .0075, .01, .015, .02, .03, .05, .075, .1, .25, .5, 1, 2.5, 5, 10}
	attemptBuckets = []float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30}
)

func newMetrics(registerer prometheus.Registerer, s *seats) (*metrics, error) {
	var all []prometheus.Collector
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: prefixOfNames + name, Help: help})
		all = append(all, c)
		return c
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: prefixOfNames + name, Help: help}, []string{label})
		all = append(all, c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefixOfNames + name, Help: help, Buckets: buckets})
		all = append(all, h)
		return h
	}
	m := &metrics{
		deliveries:      map[store.Verdict]prometheus.Counter{},
		failures:        map[Reason]prometheus.Counter{},
		attemptDuration: histogram("attempt_duration_seconds", "How long requests took, the response included.", attemptBuckets),
		claimDuration:   histogram("claim_duration_seconds", "How long claims took.", storeBuckets),
		recordDuration:  histogram("record_duration_seconds", "How long recording a batch of outcomes took.", storeBuckets),
		claimed:         counter("deliveries_claimed_total", "Deliveries claimed by this replica."),
		leasesExpired:   counter("leases_expired_total", "Leases that ended without an outcome, found by this replica's claims."),
		fenced:          counter("completions_fenced_total", "Outcomes that came after their lease was taken over, and changed nothing."),
		unrecorded:      counter("completions_lost_total", "Outcomes that could not be recorded; the deliveries are attempted again."),
		reconnects:      counter("notify_reconnects_total", "How often the listening connection was made again."),
		choreErrors:     counters("chore_errors_total", "Failed turns of the store's chores.", "chore"),
		seats:           s,
	}
	deliveries := counters("deliveries_total", "Claims that ended, by outcome: delivered, retry, dead, released.", "outcome")
	for _, v := range []store.Verdict{store.Delivered, store.Retry, store.Dead, store.Released} {
		m.deliveries[v] = deliveries.WithLabelValues(string(v))
	}
	failures := counters("attempt_failures_total", "Failed attempts, by reason.", "reason")
	for _, r := range reasonsOfFailure {
		m.failures[r] = failures.WithLabelValues(string(r))
	}
	storeErrors := counters("store_errors_total", "Operations of the database that failed.", "operation")
	m.storeErrors.claim = storeErrors.WithLabelValues("claim")
	m.storeErrors.endpoints = storeErrors.WithLabelValues("endpoints")
	m.storeErrors.complete = storeErrors.WithLabelValues("complete")

	all = append(all, m)
	for _, c := range all {
		if err := registerer.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return m, nil
}

// failed counts a failed attempt.
func (m *metrics) failed(r Reason) {
	if c := m.failures[r]; c != nil {
		c.Inc()
	}
}

// recorded counts a claim that ended.
func (m *metrics) recorded(r *store.Result) {
	if c := m.deliveries[r.Verdict]; c != nil {
		c.Inc()
	}
}

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(prefixOfNames+name, help, labels, nil)
}

// Gauges that are computed when they are asked for. Those of the whole queue are told by every replica alike: take
// their maximum, not their sum.
var (
	sendersDesc  = describe("senders", "Senders of this replica.")
	inFlightDesc = describe("in_flight", "Senders of this replica with a delivery in hand.")
	dueDesc      = describe("due", "Deliveries due now that a claim may take, in the whole queue, to 10,000 per endpoint.")
	oldestDesc   = describe("oldest_due_age_seconds", "How long the longest-waiting endpoint has had work due; 0: none.")
	queuedDesc   = describe("queue_in_flight", "Deliveries claimed in the whole installation.")
	deadDesc     = describe("dead_letters", "Dead letters kept and not replayed.")
	openDesc     = describe("circuits_open", "Endpoints whose circuit is open.")
	pausedDesc   = describe("paused", "Pauses in force: 1 for scope installation while all sending is held, and how many namespaces are.", "scope")
	daysDesc     = describe("partitions_ahead", "Days after today for which the partitions are made; under 1 tomorrow's is missing.")
	choreAgeDesc = describe("chore_age_seconds", "Time since a chore's last turn without error.", "chore")
)

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		sendersDesc, inFlightDesc, dueDesc, oldestDesc, queuedDesc, deadDesc, openDesc, pausedDesc, daysDesc, choreAgeDesc,
	} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(sendersDesc, float64(m.seats.all))
	gauge(inFlightDesc, float64(m.seats.all-m.seats.free()))
	m.chores.each(func(name string, age float64) { gauge(choreAgeDesc, age, name) })
	q := m.queue.Load()
	if q == nil {
		return // not known yet
	}
	gauge(dueDesc, float64(q.Claimable))
	oldest := 0.0
	if !q.OldestDue.IsZero() {
		oldest = max(0, q.At.Sub(q.OldestDue).Seconds())
	}
	gauge(oldestDesc, oldest)
	gauge(queuedDesc, float64(q.InFlight))
	gauge(deadDesc, float64(q.DeadLetters))
	gauge(openDesc, float64(q.OpenCircuits))
	installation := 0.0
	if q.Paused {
		installation = 1
	}
	gauge(pausedDesc, installation, "installation")
	gauge(pausedDesc, float64(q.PausedNamespaces), "namespace")
	gauge(daysDesc, float64(q.DaysAhead))
}

// choreTimes remembers when each chore last did its turn.
type choreTimes struct {
	mu   sync.Mutex
	last map[string]instant
}

func (c *choreTimes) done(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil {
		c.last = map[string]instant{}
	}
	c.last[name] = now()
}

func (c *choreTimes) each(f func(name string, age float64)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, at := range c.last {
		f(name, since(at).Seconds())
	}
}

package ingest

import "github.com/prometheus/client_golang/prometheus"

// metrics of the ingest part. No label has a namespace, a type or an id: producers choose those.
type metrics struct {
	accepted, duplicate, unmatched, conflicting, fannedOut prometheus.Counter

	requests       *prometheus.CounterVec   // route, method, code
	requestSeconds *prometheus.HistogramVec // route
	refused        *prometheus.CounterVec   // reason
	inFlight       prometheus.Gauge
	acceptSeconds  prometheus.Histogram
	staleMatches   prometheus.Counter

	groupEvents, waitSeconds    prometheus.Histogram
	waitingEvents, waitingBytes prometheus.Gauge
	recovered                   prometheus.Counter

	reviews       *prometheus.CounterVec   // kind, result
	reviewSeconds *prometheus.HistogramVec // kind
	graceUsed     prometheus.Counter

	touchSeconds                  prometheus.Histogram
	touchFailures, touchesDropped prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	r := registry{registerer}
	return &metrics{
		accepted:    r.counter("postrider_events_accepted_total", "Events accepted and committed, duplicates not counted."),
		duplicate:   r.counter("postrider_events_duplicate_total", "Events posted again with their idempotency key and the same content."),
		unmatched:   r.counter("postrider_events_unmatched_total", "Accepted events that no endpoint of their namespace matched."),
		conflicting: r.counter("postrider_events_conflicting_total", "Events refused since their idempotency key belongs to another content."),
		fannedOut:   r.counter("postrider_events_deliveries_total", "Deliveries made for accepted events."),

		requests:       r.counters("postrider_ingest_requests_total", "Requests answered.", "route", "method", "code"),
		requestSeconds: r.histograms("postrider_ingest_request_duration_seconds", "Time from a request's header to its answer.", "route"),
		refused:        r.counters("postrider_ingest_refused_total", "Requests answered with a problem, by its kind.", "reason"),
		inFlight:       r.gauge("postrider_ingest_requests_in_flight", "Authenticated requests under way."),
		acceptSeconds:  r.histogram("postrider_ingest_accept_duration_seconds", "Time of the commit of a group of events, the wait for a connection included."),
		staleMatches:   r.counter("postrider_ingest_stale_matches_total", "Events matched again since the namespace's endpoints had changed."),

		groupEvents:   r.histogramOf(groupBuckets, "postrider_ingest_group_events", "Events that shared a commit."),
		waitSeconds:   r.histogram("postrider_ingest_wait_duration_seconds", "Time that events waited for the commits before theirs."),
		waitingEvents: r.gauge("postrider_ingest_waiting_events", "Events that wait for the commits before theirs."),
		waitingBytes:  r.gauge("postrider_ingest_waiting_bytes", "Their size."),
		recovered:     r.counter("postrider_ingest_recovered_events_total", "Events whose commit was not answered: it was found, or repeated under the same id."),

		reviews:       r.counters("postrider_ingest_reviews_total", "Reviews asked of the Kubernetes API: kind token or access; result allowed, refused, away or busy.", "kind", "result"),
		reviewSeconds: r.histograms("postrider_ingest_review_duration_seconds", "Time of a review.", "kind"),
		graceUsed:     r.counter("postrider_ingest_remembered_reviews_used_total", "Answers of remembered reviews used while the Kubernetes API was away."),

		touchSeconds:   r.histogram("postrider_ingest_touch_lag_seconds", "Time from the commit of a delivery until its lane was woken."),
		touchFailures:  r.counter("postrider_ingest_touch_failures_total", "Failed attempts to wake lanes."),
		touchesDropped: r.counter("postrider_ingest_touches_dropped_total", "Lanes left to the dispatchers' sweep to wake."),
	}
}

// buckets from half a millisecond to 8 s: a commit to a timeout.
var buckets = prometheus.ExponentialBuckets(0.0005, 2, 15)

// groupBuckets from a lone event to the largest group.
var groupBuckets = prometheus.ExponentialBuckets(1, 2, 10)

type registry struct{ prometheus.Registerer }

func (r registry) counter(name, help string) prometheus.Counter {
	c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	r.MustRegister(c)
	return c
}

func (r registry) counters(name, help string, labels ...string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	r.MustRegister(c)
	return c
}

func (r registry) gauge(name, help string) prometheus.Gauge {
	g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	r.MustRegister(g)
	return g
}

func (r registry) histogram(name, help string) prometheus.Histogram {
	return r.histogramOf(buckets, name, help)
}

func (r registry) histogramOf(buckets []float64, name, help string) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	r.MustRegister(h)
	return h
}

func (r registry) histograms(name, help string, labels ...string) *prometheus.HistogramVec {
	h := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels)
	r.MustRegister(h)
	return h
}

package ingest

import "github.com/prometheus/client_golang/prometheus"

// admission bounds the requests under way. It is asked after the gate, so that requests without a good credential
// take no places, and before the body is read, since bodies are what takes memory.
type admission struct {
	places chan struct{}
	gauge  prometheus.Gauge
}

func newAdmission(places int, gauge prometheus.Gauge) *admission {
	return &admission{places: make(chan struct{}, places), gauge: gauge}
}

// enter returns what gives the place back, or a problem where there is none: queues form in clients, not here.
func (a *admission) enter() (leave func(), err error) {
	select {
	case a.places <- struct{}{}:
		a.gauge.Inc()
		return func() { a.gauge.Dec(); <-a.places }, nil
	default:
		return nil, unavailable("overloaded", "Too many requests are under way.", nil)
	}
}

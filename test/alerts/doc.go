// Package alerts tests what the chart brings for Prometheus and Grafana: the alerts with Prometheus' own evaluation of
// rules over made-up series, and that alerts and dashboard ask for metrics which the code has.
//
// It is a module of its own, since Prometheus' dependencies must not become the product's. Start reading at alerts_test.go.
package alerts

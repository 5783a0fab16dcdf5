package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
)

// observing serves /livez, /readyz and /metrics on a port of their own.
type observing struct {
	address   string
	profiling bool
}

func (o *observing) flags(f *pflag.FlagSet) {
	f.StringVar(&o.address, "metrics-address", ":8081", "where /livez, /readyz and /metrics are served, host:port; empty: nowhere")
	f.BoolVar(&o.profiling, "pprof", false, "serve /debug/pprof/ there too")
}

func (o *observing) validate() error {
	if o.address == "" {
		return nil
	}
	if _, _, err := net.SplitHostPort(o.address); err != nil {
		return fmt.Errorf("--metrics-address: %q is not host:port", o.address)
	}
	return nil
}

type registry interface {
	prometheus.Registerer
	prometheus.Gatherer
}

// newRegistry has what every part tells of itself: the process, the Go runtime and the build.
func newRegistry() registry {
	r := prometheus.NewRegistry()
	r.MustRegister(buildInfo(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func buildInfo() prometheus.Collector {
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "postrider_build_info",
		Help:        "1, labelled with the version of Postrider and of Go.",
		ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
	})
	build.Set(1)
	return build
}

// handler answers probes, for everybody, and all that the guard stands before. ready answers /readyz: nil, or what is
// missing.
func (o *observing) handler(metrics prometheus.Gatherer, by guard, ready func() error) http.Handler {
	inner := http.NewServeMux()
	inner.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second}))
	if o.profiling {
		inner.HandleFunc("/debug/pprof/", pprof.Index)
		inner.HandleFunc("/debug/pprof/profile", pprof.Profile)
		inner.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		inner.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	mux := http.NewServeMux()
	mux.Handle("/", by.protect(inner))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ok\n"))
	})
	return mux
}

// serve runs until the context ends.
func (o *observing) serve(ctx context.Context, log *slog.Logger, metrics prometheus.Gatherer, by guard, ready func() error) error {
	if o.address == "" {
		<-ctx.Done()
		return nil
	}
	server := &http.Server{
		Handler: o.handler(metrics, by, ready), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.address)
	if err != nil {
		return fmt.Errorf("--metrics-address: %w", err)
	}
	log.Info("serving probes and metrics", "address", listener.Addr().String())
	if by.secure != nil {
		listener = tls.NewListener(listener, by.secure)
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = server.Shutdown(grace)
	}()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve probes and metrics: %w", err)
	}
	<-stopped
	return nil
}

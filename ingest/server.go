package ingest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Parts are what a server works with.
type Parts struct {
	Store      Store
	Kubernetes *rest.Config // to review credentials; not needed with InsecureNoAuth
	Log        *slog.Logger
	Metrics    prometheus.Registerer
}

// Server accepts events over HTTP.
type Server struct {
	config    Config
	store     Store
	log       *slog.Logger
	metrics   *metrics
	gate      gate
	admission *admission
	accepter  *accepter
	notifier  *notifier
	listener  net.Listener
	started   atomic.Bool
	stopping  atomic.Bool
	warnings  seldom
}

// New makes a server. It returns all problems of the configuration at once, and opens nothing.
func New(config Config, parts Parts) (*Server, error) {
	problems := []error{config.Validate()}
	if !config.InsecureNoAuth && parts.Kubernetes == nil {
		problems = append(problems, errors.New("ingest: a Kubernetes API is needed to review credentials"))
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	s := &Server{config: config, store: parts.Store, log: parts.Log, metrics: newMetrics(parts.Metrics), gate: openGate{}}
	if !config.InsecureNoAuth {
		gate, err := newClusterGate(parts.Kubernetes, config.Review, s.metrics, reviewOutages{s.log})
		if err != nil {
			return nil, fmt.Errorf("ingest: %w", err)
		}
		s.gate = gate
	}
	if len(config.WatchNamespaces) > 0 {
		s.gate = watchedGate{s.gate, config.WatchNamespaces}
	}
	s.admission = newAdmission(config.MaxInFlight, s.metrics.inFlight)
	s.notifier = newNotifier(s.store, config.DatabaseTimeout, s.metrics, s.log)
	s.accepter = newAccepter(config, s.store, newTables(s.store, config.DatabaseTimeout, s.log), s.notifier.touched, s.metrics)
	return s, nil
}

// Ready tells whether requests should be sent here: from the first contact with Postgres until the stop begins. An
// absent Postgres later on does not count: the Service would become empty, and nobody would get the 503.
func (s *Server) Ready() error {
	switch {
	case s.stopping.Load():
		return errors.New("stopping")
	case !s.started.Load():
		return errors.New("waiting for the first contact with the database")
	}
	return nil
}

// Listen takes the address. Run does it where it has not been done; apart, it tells callers the port of ":0".
func (s *Server) Listen(ctx context.Context) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.config.Address)
	if err != nil {
		return fmt.Errorf("ingest: listen on %s: %w", s.config.Address, err)
	}
	if address, ok := listener.Addr().(*net.TCPAddr); s.config.InsecureNoAuth && (!ok || !address.IP.IsLoopback()) {
		_ = listener.Close() // nothing was accepted
		return fmt.Errorf("ingest: %s is not a loopback address, which insecure-no-auth needs", listener.Addr())
	}
	s.listener = netutil.LimitListener(listener, s.config.MaxConnections)
	return nil
}

// Addr is what Listen took.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Run serves until the context ends. It then reports itself unready, serves on for DrainDelay, lets what is under way
// end, and wakes the dispatchers for what it accepted. It returns nil after an orderly stop. A server runs once.
func (s *Server) Run(ctx context.Context) error {
	defer s.gate.close()
	if s.listener == nil {
		if err := s.Listen(ctx); err != nil {
			return err
		}
	}
	// Work outlives the context: it ends in the order below.
	working, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var workers sync.WaitGroup
	defer workers.Wait()
	server, err := s.httpServer(working, &workers)
	if err != nil {
		_ = s.listener.Close() // the error is what matters
		stop()
		return err
	}
	notifying, stopNotifying := context.WithCancel(working)
	defer stopNotifying()
	workers.Go(func() { s.notifier.run(notifying) })
	var committers sync.WaitGroup
	for range s.accepter.gatherer.committers {
		committers.Go(func() { s.accepter.gatherer.run(working) })
	}
	defer committers.Wait()
	defer s.accepter.gatherer.close()
	workers.Go(func() { s.waitForStore(working) })
	failed := make(chan error, 1)
	workers.Go(func() { failed <- s.serve(server) })
	s.announce()
	select {
	case err = <-failed:
		err = fmt.Errorf("ingest: serve: %w", err)
	case <-ctx.Done():
		s.stopping.Store(true)
		s.log.Info("stopping: unready, still serving", "for", s.config.DrainDelay.String())
		select {
		case err = <-failed:
			err = fmt.Errorf("ingest: serve: %w", err)
		case <-time.After(s.config.DrainDelay):
		}
	}
	s.stopping.Store(true)
	s.shutdown(context.WithoutCancel(ctx), server)
	s.accepter.gatherer.close() // after the requests, before the last touch
	committers.Wait()
	stopNotifying()
	stop()
	return err
}

// shutdown ends the connections: idle ones now, others with their request, all at the end of ShutdownTimeout.
func (s *Server) shutdown(ctx context.Context, server *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, s.config.ShutdownTimeout)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		s.log.Warn("requests under way were cut off", "reason", err.Error())
		_ = server.Close() // nothing is left to be told
	}
}

func (s *Server) announce() {
	if s.config.InsecureNoAuth {
		s.log.Warn("INSECURE: requests are accepted without any credential; this is for development only",
			"address", s.listener.Addr().String())
	}
	s.log.Info("listening", "address", s.listener.Addr().String(), "tls", s.config.TLSCertFile != "")
}

// httpServer bounds what clients can take: time for a header, a body, an answer, and size of a header.
func (s *Server) httpServer(ctx context.Context, workers *sync.WaitGroup) (*http.Server, error) {
	const headerTimeout, idleTimeout, maxHeader, maxStreams = 5 * time.Second, 2 * time.Minute, 32 << 10, 128
	handling := 2*(slotWait+s.config.Review.Timeout) + maxStale*4*s.config.DatabaseTimeout
	server := &http.Server{
		Handler:           s.routes(),
		ReadHeaderTimeout: headerTimeout,
		// A body has its own bound; this one is for the rest of bodies that are not read, and outlasts the handlers:
		// its end cancels them.
		ReadTimeout:                  headerTimeout + s.config.BodyTimeout + handling,
		WriteTimeout:                 2*headerTimeout + s.config.BodyTimeout + handling,
		IdleTimeout:                  idleTimeout,
		MaxHeaderBytes:               maxHeader,
		ErrorLog:                     slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		DisableGeneralOptionsHandler: true,
		HTTP2:                        &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
	}
	if s.config.TLSCertFile == "" {
		return server, nil
	}
	watcher, err := certwatcher.New(s.config.TLSCertFile, s.config.TLSKeyFile)
	if err != nil {
		return nil, fmt.Errorf("ingest: load the TLS certificate: %w", err)
	}
	workers.Go(func() {
		if err := watcher.Start(ctx); err != nil {
			s.log.Error("the TLS certificate is not watched any more", "reason", err.Error())
		}
	})
	server.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: watcher.GetCertificate}
	return server, nil
}

func (s *Server) serve(server *http.Server) error {
	if server.TLSConfig != nil {
		return server.ServeTLS(s.listener, "", "")
	}
	return server.Serve(s.listener)
}

// waitForStore ends with the first contact.
func (s *Server) waitForStore(ctx context.Context) {
	const every = 500 * time.Millisecond
	said := false
	for {
		err := s.ping(ctx)
		if err == nil {
			s.started.Store(true)
			return
		}
		if !said {
			said = true
			s.log.Warn("waiting for the database", "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(every):
		}
	}
}

func (s *Server) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.config.DatabaseTimeout)
	defer cancel()
	return s.store.Ping(ctx)
}

// reviewOutages logs when the Kubernetes API goes and comes, once each.
type reviewOutages struct{ log *slog.Logger }

func (r reviewOutages) reviewsFail(err error) {
	r.log.Error("the Kubernetes API cannot review credentials; identities it allowed lately are still let in", "reason", err.Error())
}

func (r reviewOutages) reviewsResume() {
	r.log.Info("the Kubernetes API reviews credentials again")
}

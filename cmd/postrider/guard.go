package main

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	certutil "k8s.io/client-go/util/cert"

	"github.com/postrider/postrider/access"
)

// guard stands before what only some may read: metrics and profiles. The zero value lets everybody in, over plain HTTP.
type guard struct {
	admit  func(http.Handler) http.Handler
	secure *tls.Config
}

// reviewTimeout bounds each of the two reviews, so that both end before the 10 s that a scrape of Prometheus waits.
const reviewTimeout = 3 * time.Second

// guard asks the Kubernetes API about whoever reads metrics, if it is to.
func (k *cluster) guard(log *slog.Logger) (guard, error) {
	if !k.metricsAuth {
		return guard{}, nil
	}
	config, err := k.config()
	if err != nil {
		return guard{}, err
	}
	api, err := access.New(config, reviewTimeout)
	if err != nil {
		return guard{}, fmt.Errorf("--metrics-auth: %w", err)
	}
	// Tokens must not travel in the clear. Who reads does not verify the certificate: no authority issued it.
	certificate, key, err := certutil.GenerateSelfSignedCertKey("postrider", []net.IP{net.IPv4(127, 0, 0, 1)}, []string{"localhost"})
	if err != nil {
		return guard{}, fmt.Errorf("--metrics-auth: make a certificate: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return guard{}, fmt.Errorf("--metrics-auth: make a certificate: %w", err)
	}
	return guard{
		admit:  access.NewGuard(api, log).Protect,
		secure: &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}},
	}, nil
}

// protect puts the guard before a handler.
func (g guard) protect(h http.Handler) http.Handler {
	if g.admit == nil {
		return h
	}
	return g.admit(h)
}

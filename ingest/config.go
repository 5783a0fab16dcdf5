package ingest

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Config of the ingest part. DefaultConfig gives the defaults; a zero value is not usable unless its field says so.
type Config struct {
	// Address to listen on, host:port.
	Address string
	// TLSCertFile and TLSKeyFile, PEM, turn TLS on; both or neither. They are reloaded when they change.
	TLSCertFile, TLSKeyFile string
	// InsecureNoAuth accepts every request without a credential. For development: it refuses any address but loopback.
	InsecureNoAuth bool
	// BodyLimit is the most bytes of a request's body, 1 KiB to 16 MiB.
	BodyLimit int64
	// IdempotencyWindow is how long an idempotency key is remembered, 1 s to 30 days. Keep it below the retention of
	// events: the first event is what a repeated one is compared with.
	IdempotencyWindow time.Duration
	// MaxInFlight bounds the authenticated requests under way, 1 to 100,000. Memory follows it: each may hold a body.
	MaxInFlight int
	// MaxWaitingEvents and MaxWaitingBytes bound the events that wait for a commit, 1 to 1,000,000 and 1 MiB to 4 GiB;
	// beyond that requests are refused at once.
	MaxWaitingEvents int
	MaxWaitingBytes  int64
	// MaxConnections bounds the open connections, 1 to 100,000; a further one waits to be accepted.
	MaxConnections int
	// BodyTimeout is how long a client may take to send its body, 1 s to 5 min.
	BodyTimeout time.Duration
	// DatabaseTimeout bounds each call to Postgres, the wait for a pooled connection included, 100 ms to 1 min.
	DatabaseTimeout time.Duration
	// Review bounds and remembers the reviews of credentials.
	Review ReviewConfig
	// DrainDelay is how long a stopping server still serves while it reports itself unready, so that Services
	// notice before connections are refused. 0 to 5 min; 0: not at all.
	DrainDelay time.Duration
	// ShutdownTimeout is how long requests under way may take after that, 1 s to 5 min.
	ShutdownTimeout time.Duration
	// WatchNamespaces are the only namespaces that are posted to; empty: all.
	WatchNamespaces []string

	// groupEvents and committers stand in for the constants of those names, in measurements. 0: the constant.
	groupEvents, committers int
}

const (
	// groupEvents, groupBytes and groupRows bound what one commit stores: more makes none of it faster, and each waits for
	// all. More than wideRows deliveries are a large fan-out.
	groupEvents, groupBytes, groupRows, wideRows = 500, 4 << 20, 5000, 1000
	// committers of groups. The second one is for what cannot wait: beyond a whole group, or longer than overlap.
	committers, overlap = 2, 5 * time.Millisecond
)

func (c Config) gathering() gathering {
	return gathering{
		committers: cmp.Or(c.committers, committers),
		overlap:    overlap,
		group:      load{events: cmp.Or(c.groupEvents, groupEvents), bytes: groupBytes, rows: groupRows},
		wide:       wideRows,
		waiting:    load{events: c.MaxWaitingEvents, bytes: c.MaxWaitingBytes},
		patience:   c.DatabaseTimeout,
	}
}

// ReviewConfig says how the Kubernetes API is asked about credentials, and for how long its answers count.
type ReviewConfig struct {
	// Timeout of one review, its retries included, 100 ms to 30 s.
	Timeout time.Duration
	// AllowFor is how long an allowing answer is used without asking again, 0 to 5 min; 0: ask each time.
	// A revoked permission takes this long to be noticed.
	AllowFor time.Duration
	// DenyFor is the same for a refusing answer, 0 to 5 min.
	DenyFor time.Duration
	// OutageGrace is how long after its last review an allowed identity is still let in while the API server is
	// away, 0 to 24 h; 0: never. It ends earlier with the token's own expiry, and at once with a denial.
	OutageGrace time.Duration
	// MaxInFlight bounds the reviews under way for credentials not seen before, and again as many for known ones,
	// so that garbage tokens cannot crowd out the others. 1 to 1,000.
	MaxInFlight int
	// Remember is how many tokens, and how many permissions, are remembered at most, 100 to 1,000,000. What is
	// kept of a token is a SHA-256, never the token.
	Remember int
}

// DefaultConfig returns the defaults.
func DefaultConfig() Config {
	return Config{
		Address:           ":8080",
		BodyLimit:         256 << 10,
		IdempotencyWindow: 24 * time.Hour,
		MaxInFlight:       512,
		MaxWaitingEvents:  10_000,
		MaxWaitingBytes:   64 << 20,
		MaxConnections:    4096,
		BodyTimeout:       10 * time.Second,
		DatabaseTimeout:   5 * time.Second,
		Review: ReviewConfig{
			Timeout:     3 * time.Second,
			AllowFor:    30 * time.Second,
			DenyFor:     5 * time.Second,
			OutageGrace: 15 * time.Minute,
			MaxInFlight: 16,
			Remember:    10_000,
		},
		DrainDelay:      5 * time.Second,
		ShutdownTimeout: 20 * time.Second,
	}
}

// Validate returns all problems of the configuration at once, or nil.
func (c Config) Validate() error {
	v := &findings{}
	if err := checkAddress(c.Address); err != nil {
		v.add("address", err.Error())
	} else if c.InsecureNoAuth && !isLoopback(c.Address) {
		v.add("insecure-no-auth", fmt.Sprintf("is only allowed on a loopback address, and %q is none: "+
			"listen on 127.0.0.1 or [::1], or leave authentication on", c.Address))
	}
	if (c.TLSCertFile == "") != (c.TLSKeyFile == "") {
		v.add("tls-cert-file, tls-key-file", "must be given together")
	}
	between(v, "body-limit", c.BodyLimit, 1<<10, 16<<20)
	between(v, "idempotency-window", c.IdempotencyWindow, time.Second, 30*24*time.Hour)
	between(v, "max-in-flight", c.MaxInFlight, 1, 100_000)
	between(v, "max-waiting-events", c.MaxWaitingEvents, 1, 1_000_000)
	between(v, "max-waiting-bytes", c.MaxWaitingBytes, 1<<20, 4<<30)
	between(v, "max-connections", c.MaxConnections, 1, 100_000)
	between(v, "body-timeout", c.BodyTimeout, time.Second, 5*time.Minute)
	between(v, "database-timeout", c.DatabaseTimeout, 100*time.Millisecond, time.Minute)
	between(v, "review-timeout", c.Review.Timeout, 100*time.Millisecond, 30*time.Second)
	between(v, "review-allow-for", c.Review.AllowFor, 0, 5*time.Minute)
	between(v, "review-deny-for", c.Review.DenyFor, 0, 5*time.Minute)
	between(v, "outage-grace", c.Review.OutageGrace, 0, 24*time.Hour)
	between(v, "review-max-in-flight", c.Review.MaxInFlight, 1, 1000)
	between(v, "review-remember", c.Review.Remember, 100, 1_000_000)
	between(v, "drain-delay", c.DrainDelay, 0, 5*time.Minute)
	between(v, "shutdown-timeout", c.ShutdownTimeout, time.Second, 5*time.Minute)
	for _, namespace := range c.WatchNamespaces {
		if len(validation.IsDNS1123Label(namespace)) > 0 {
			v.add("watch-namespaces", fmt.Sprintf("has %q, which is no name of a namespace: 1 to 63 characters of a-z, 0-9 and -", namespace))
		}
	}
	return errors.Join(v.problems...)
}

type findings struct{ problems []error }

func (v *findings) add(field, problem string) {
	v.problems = append(v.problems, fmt.Errorf("ingest: %s %s", field, problem))
}

func between[T int | int64 | time.Duration](v *findings, field string, value, low, high T) {
	if value < low || value > high {
		v.add(field, fmt.Sprintf("must be between %v and %v, not %v", low, high, value))
	}
}

func checkAddress(address string) error {
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("must be host:port, such as :8080: %w", err)
	}
	return nil
}

// isLoopback takes only literal addresses and "localhost": another name may resolve to anything. What was really
// listened on is checked again.
func isLoopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

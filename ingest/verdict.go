package ingest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/postrider/postrider/access"
)

// What a review can come to, other than an allowing answer.
var (
	errRefused = access.ErrRefused
	errAway    = errors.New("the API server cannot be asked")
	errBusy    = errors.New("too many reviews under way")
)

// verdicts remembers what the API server said, and asks it when that is too old. While the API server is away the
// last allowing answer goes on counting for OutageGrace; a refusal removes it at once.
//
// A cache that forgets an answer when its time is over, as those of Kubernetes' own library do, would not do: the grace
// would need a second memory beside it that could not tell a fresh answer from a cached one, and would outlive a denial
// heard meanwhile.
type verdicts[V interface{ validUntil() time.Time }] struct {
	config  ReviewConfig
	server  *apiServer
	kind    string
	allowed recent[digest, verdict[V]]
	denied  recent[digest, time.Time] // apart, so that refused garbage displaces nobody
	flights singleflight.Group
}

type digest [sha256.Size]byte

type verdict[V any] struct {
	value V
	at    time.Time // when the review began
}

// maxDenied bounds the remembered refusals: they save reviews and nothing else.
const maxDenied = 4096

func newVerdicts[V interface{ validUntil() time.Time }](config ReviewConfig, server *apiServer, kind string) *verdicts[V] {
	return &verdicts[V]{
		config: config, server: server, kind: kind,
		allowed: newRecent[digest, verdict[V]](config.Remember), denied: newRecent[digest, time.Time](maxDenied),
	}
}

// judge returns what the API server allows to the key, or errRefused, errAway or errBusy. Callers with one key at one
// time share one review, which therefore does not end with the request that began it.
func (v *verdicts[V]) judge(key digest, ask func(context.Context) (V, error)) (V, error) {
	now := time.Now()
	if value, ok := v.remembered(key, now, v.config.AllowFor); ok {
		return value, nil
	}
	var none V
	if at, ok := v.denied.get(key); ok && now.Sub(at) < v.config.DenyFor {
		return none, errRefused
	}
	value, known := v.remembered(key, now, v.config.OutageGrace)
	if known && v.server.away.Load() {
		if v.server.probeIsDue(now) {
			v.server.background(func() { _, _ = v.review(key, known, ask) })
		}
		v.server.metrics.graceUsed.Inc()
		return value, nil
	}
	value, err := v.review(key, known, ask)
	if known && (errors.Is(err, errAway) || errors.Is(err, errBusy)) {
		// Busy counts as away: the slots of known identities fill up only where reviews hang.
		// Looked up again: it may have been refused, or have expired, meanwhile.
		if last, ok := v.remembered(key, time.Now(), v.config.OutageGrace); ok {
			v.server.metrics.graceUsed.Inc()
			return last, nil
		}
	}
	return value, err
}

// remembered returns an allowing answer that is younger than an age and whose own validity has not ended.
func (v *verdicts[V]) remembered(key digest, now time.Time, age time.Duration) (V, bool) {
	var none V
	last, ok := v.allowed.get(key)
	if !ok {
		return none, false
	}
	until := last.value.validUntil()
	if now.Sub(last.at) >= age || (!until.IsZero() && !now.Before(until)) {
		return none, false
	}
	return last.value, true
}

func (v *verdicts[V]) review(key digest, known bool, ask func(context.Context) (V, error)) (V, error) {
	result, err, _ := v.flights.Do(string(key[:]), func() (any, error) {
		var none V
		release, err := v.server.slot(known)
		if err != nil {
			v.server.metrics.reviews.WithLabelValues(v.kind, "busy").Inc()
			return none, err
		}
		defer release()
		ctx, cancel := context.WithTimeout(v.server.ctx, v.config.Timeout)
		defer cancel()
		began := time.Now()
		value, err := ask(ctx)
		v.server.metrics.reviewSeconds.WithLabelValues(v.kind).Observe(time.Since(began).Seconds())
		switch {
		case err == nil:
			v.server.answered()
			v.denied.remove(key)
			v.allowed.put(key, verdict[V]{value: value, at: began})
			v.server.metrics.reviews.WithLabelValues(v.kind, "allowed").Inc()
			return value, nil
		case errors.Is(err, errRefused):
			v.server.answered()
			v.allowed.remove(key)
			v.denied.put(key, began)
			v.server.metrics.reviews.WithLabelValues(v.kind, "refused").Inc()
			return none, err
		default:
			v.server.failed(err)
			v.server.metrics.reviews.WithLabelValues(v.kind, "away").Inc()
			return none, fmt.Errorf("%w: %w", errAway, err)
		}
	})
	value, _ := result.(V) // it is nothing else
	return value, err
}

// apiServer is what is known of the API server's health, and the bound on what is asked of it.
type apiServer struct {
	ctx      context.Context //nolint:containedctx // bounds shared reviews, which belong to no single request
	cancel   context.CancelFunc
	metrics  *metrics
	log      reviewLog
	known    chan struct{}
	unknown  chan struct{}
	waiting  atomic.Int64
	away     atomic.Bool
	mu       sync.Mutex
	probedAt time.Time
	probes   sync.WaitGroup
}

// reviewLog is told when the API server goes and comes.
type reviewLog interface {
	reviewsFail(err error)
	reviewsResume()
}

const (
	// slotWait is how long a review waits for its turn, and maxWaiting how many may.
	slotWait   = 2 * time.Second
	maxWaiting = 256
	// probeEvery is how often an API server that is away is tried again while remembered answers serve.
	probeEvery = time.Second
)

func newAPIServer(config ReviewConfig, m *metrics, log reviewLog) *apiServer {
	ctx, cancel := context.WithCancel(context.Background())
	return &apiServer{
		ctx: ctx, cancel: cancel, metrics: m, log: log,
		known: make(chan struct{}, config.MaxInFlight), unknown: make(chan struct{}, config.MaxInFlight),
	}
}

// close ends the reviews under way and waits for those of the background.
func (s *apiServer) close() {
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	s.probes.Wait()
}

// slot waits for the right to ask. Known identities have slots of their own: a flood of garbage tokens, each of which
// is a live review since refusals of unknown tokens are cheap to vary, must not keep them out.
func (s *apiServer) slot(known bool) (release func(), err error) {
	slots := s.unknown
	if known {
		slots = s.known
	}
	release = func() { <-slots }
	select {
	case slots <- struct{}{}:
		return release, nil
	default:
	}
	if s.waiting.Add(1) > maxWaiting {
		s.waiting.Add(-1)
		return nil, errBusy
	}
	defer s.waiting.Add(-1)
	ctx, cancel := context.WithTimeout(s.ctx, slotWait)
	defer cancel()
	select {
	case slots <- struct{}{}:
		return release, nil
	case <-ctx.Done():
		return nil, errBusy
	}
}

func (s *apiServer) answered() {
	if s.away.Swap(false) {
		s.log.reviewsResume()
	}
}

func (s *apiServer) failed(err error) {
	if s.ctx.Err() != nil {
		return // we are stopping; that says nothing of the API server
	}
	if !s.away.Swap(true) {
		s.log.reviewsFail(err)
	}
}

func (s *apiServer) probeIsDue(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.probedAt) < probeEvery {
		return false
	}
	s.probedAt = now
	return true
}

// background runs what a stop waits for.
func (s *apiServer) background(task func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil {
		s.probes.Go(task)
	}
}

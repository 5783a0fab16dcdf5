package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
)

// Kinds of endpoints. The path of a webhook is /kind/number.
const (
	OK    = "ok"    // answers 200
	Flaky = "flaky" // answers 503 to FlakyPercent of the attempts, chosen by event and attempt
	Down  = "down"  // answers 503
	Hang  = "hang"  // never answers
	Hold  = "hold"  // answers 200, while held once it is released
)

// FlakyPercent of the attempts fail at an endpoint of kind Flaky.
const FlakyPercent = 30

var kinds = []string{OK, Flaky, Down, Hang, Hold}

// Addresses is what Serve prints, as one line of JSON.
type Addresses struct {
	Webhooks string `json:"webhooks"` // host:port
	Control  string `json:"control"`  // host:port, apart from the webhooks so that it answers under load
}

// Stats of one kind of endpoint since the last reset. Times are Unix nanoseconds; 0: none.
type Stats struct {
	Requests   int64 `json:"requests"`
	Delivered  int64 `json:"delivered"`  // different deliveries that were answered 200
	Duplicates int64 `json:"duplicates"` // further 200s for the same ones
	InFlight   int64 `json:"in_flight"`
	First      int64 `json:"first"` // arrival of the first request
	Last       int64 `json:"last"`  // arrival of the last delivery that was new
}

// Latency from the intended time that a body carries to the arrival, in seconds.
type Latency struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50"`
	P99   float64 `json:"p99"`
	Max   float64 `json:"max"`
}

type delivery struct {
	event    uuid.UUID
	endpoint uint32
}

// shard is a part of the deliveries that were seen, so that requests seldom wait for one another.
type shard struct {
	mu   sync.Mutex
	seen map[delivery]struct{}
}

const shards = 64

type tally struct {
	requests, delivered, duplicates, inFlight, first, last atomic.Int64

	mu        sync.Mutex
	latencies []int64
}

type server struct {
	tallies map[string]*tally
	shards  [shards]shard

	mu   sync.Mutex
	gate chan struct{} // closed: nothing is held
}

func newServer() *server {
	s := &server{gate: make(chan struct{})}
	close(s.gate)
	s.reset()
	return s
}

// Serve listens on two ports of loopback, prints them and serves until the context ends.
func Serve(ctx context.Context, out io.Writer) error {
	s := newServer()
	var listen net.ListenConfig
	webhooks, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for webhooks: %w", err)
	}
	control, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for control: %w", err)
	}
	if err := json.NewEncoder(out).Encode(Addresses{Webhooks: webhooks.Addr().String(), Control: control.Addr().String()}); err != nil {
		return fmt.Errorf("tell the addresses: %w", err)
	}
	const headerTimeout = 10 * time.Second
	servers := []*http.Server{
		{Handler: http.HandlerFunc(s.receive), ReadHeaderTimeout: headerTimeout},
		{Handler: s.control(), ReadHeaderTimeout: headerTimeout},
	}
	ended := make(chan error, len(servers))
	for i, listener := range []net.Listener{webhooks, control} {
		go func() { ended <- servers[i].Serve(listener) }()
	}
	<-ctx.Done()
	for _, one := range servers {
		_ = one.Close() // what hangs is meant to be cut off
	}
	for range servers {
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			return err
		}
	}
	return nil
}

// receive takes one webhook.
func (s *server) receive(w http.ResponseWriter, r *http.Request) {
	arrived := time.Now().UnixNano()
	kind, number, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	t := s.tallies[kind]
	endpoint, err := strconv.ParseUint(number, 10, 32)
	if t == nil || err != nil {
		http.Error(w, "no such endpoint", http.StatusNotFound)
		return
	}
	t.requests.Add(1)
	t.first.CompareAndSwap(0, arrived)
	t.inFlight.Add(1)
	defer t.inFlight.Add(-1)

	event, err := uuid.Parse(r.Header.Get("Webhook-Id"))
	intended, bodyErr := readBody(r.Body)
	if err = errors.Join(err, bodyErr); err != nil {
		http.Error(w, "not a webhook", http.StatusBadRequest)
		return
	}
	switch {
	case kind == Hang:
		<-r.Context().Done()
		return
	case kind == Down, kind == Flaky && fails(event, r.Header.Get("Postrider-Attempt")):
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	case kind == Hold:
		select {
		case <-s.held():
		case <-r.Context().Done():
			return
		}
	}
	s.count(t, delivery{event, uint32(endpoint)}, intended, arrived)
}

// count notes a delivery that is about to be answered 200.
func (s *server) count(t *tally, d delivery, intended, arrived int64) {
	part := &s.shards[d.event[15]%shards]
	part.mu.Lock()
	_, again := part.seen[d]
	part.seen[d] = struct{}{}
	part.mu.Unlock()
	if again {
		t.duplicates.Add(1)
		return
	}
	if intended > 0 {
		t.mu.Lock()
		t.latencies = append(t.latencies, arrived-intended)
		t.mu.Unlock()
	}
	for last := t.last.Load(); last < arrived && !t.last.CompareAndSwap(last, arrived); {
		last = t.last.Load()
	}
	t.delivered.Add(1)
}

func fails(event uuid.UUID, attempt string) bool {
	sum := fnv.New32a()
	_, _ = sum.Write(event[:]) // which does not fail
	_, _ = sum.Write([]byte(attempt))
	return sum.Sum32()%100 < FlakyPercent
}

func (s *server) held() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gate
}

// hold closes the gate, release opens it.
func (s *server) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.gate:
		s.gate = make(chan struct{})
	default:
	}
}

func (s *server) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.gate:
	default:
		close(s.gate)
	}
}

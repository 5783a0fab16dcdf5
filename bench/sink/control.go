package sink

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// control answers a Client. A reset is asked for only while nothing is sent.
func (s *server) control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /stats", func(w http.ResponseWriter, _ *http.Request) { answer(w, s.stats()) })
	mux.HandleFunc("GET /latency/{kind}", func(w http.ResponseWriter, r *http.Request) {
		t := s.tallies[r.PathValue("kind")]
		if t == nil {
			http.NotFound(w, r)
			return
		}
		answer(w, t.latency())
	})
	for path, act := range map[string]func(){"/reset": s.reset, "/forget": s.forget, "/hold": s.hold, "/release": s.release} {
		mux.HandleFunc("POST "+path, func(http.ResponseWriter, *http.Request) { act() })
	}
	return mux
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // who asked is gone
}

func (s *server) stats() map[string]Stats {
	all := map[string]Stats{}
	for kind, t := range s.tallies {
		all[kind] = Stats{
			Requests: t.requests.Load(), Delivered: t.delivered.Load(), Duplicates: t.duplicates.Load(),
			InFlight: t.inFlight.Load(), First: t.first.Load(), Last: t.last.Load(),
		}
	}
	return all
}

func (s *server) reset() {
	if s.tallies == nil {
		s.tallies = map[string]*tally{}
		for _, kind := range kinds {
			s.tallies[kind] = &tally{}
		}
	}
	for _, t := range s.tallies {
		for _, n := range []interface{ Store(int64) }{&t.requests, &t.delivered, &t.duplicates, &t.first, &t.last} {
			n.Store(0)
		}
	}
	s.forget()
	for i := range s.shards {
		s.shards[i].mu.Lock()
		s.shards[i].seen = map[delivery]struct{}{}
		s.shards[i].mu.Unlock()
	}
}

// forget drops the latencies measured so far, and nothing else: those of a warm-up.
func (s *server) forget() {
	for _, t := range s.tallies {
		t.mu.Lock()
		t.latencies = nil
		t.mu.Unlock()
	}
}

func (t *tally) latency() Latency {
	t.mu.Lock()
	sorted := slices.Clone(t.latencies)
	t.mu.Unlock()
	if len(sorted) == 0 {
		return Latency{}
	}
	slices.Sort(sorted)
	at := func(q float64) float64 {
		return time.Duration(sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]).Seconds()
	}
	return Latency{Count: len(sorted), P50: at(.5), P99: at(.99), Max: at(1)}
}

// Client asks a sink that runs elsewhere.
type Client struct{ address string }

// NewClient makes a client of the sink whose Addresses.Control this is.
func NewClient(control string) *Client { return &Client{address: control} }

const patience = 30 * time.Second

func (c *Client) do(ctx context.Context, method, path string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, "http://"+c.address+path, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask the sink: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the sink: %s %s: %s", method, path, response.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(response.Body).Decode(into)
}

// Stats returns the counts of a kind.
func (c *Client) Stats(ctx context.Context, kind string) (Stats, error) {
	var all map[string]Stats
	err := c.do(ctx, http.MethodGet, "/stats", &all)
	return all[kind], err
}

// Latency returns the latencies of a kind.
func (c *Client) Latency(ctx context.Context, kind string) (l Latency, err error) {
	return l, c.do(ctx, http.MethodGet, "/latency/"+kind, &l)
}

// Reset forgets everything; nothing may be under way.
func (c *Client) Reset(ctx context.Context) error { return c.do(ctx, http.MethodPost, "/reset", nil) }

// ForgetLatencies drops the latencies measured so far.
func (c *Client) ForgetLatencies(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/forget", nil)
}

// Hold makes requests to endpoints of kind Hold wait, Release answers them and all that follow.
func (c *Client) Hold(ctx context.Context) error { return c.do(ctx, http.MethodPost, "/hold", nil) }

// Release ends a Hold.
func (c *Client) Release(ctx context.Context) error {
	return c.do(ctx, http.MethodPost, "/release", nil)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/postrider/postrider/signature"
)

// call is one request that reached the receiver.
type call struct {
	at       time.Time
	path     string
	id       string
	attempt  int
	event    string // type
	header   http.Header
	body     []byte
	verified error // nil: the signature is right
	status   int   // answered; 0: the sender went away before
}

// receiver plays the subscribers: it verifies each request as a subscriber would, and answers as it is told.
type receiver struct {
	url    string
	server *http.Server
	ended  chan struct{}

	mu     sync.Mutex
	calls  []call
	keys   map[string][]signature.Key // by path
	script func(context.Context, *call) int
	moved  chan struct{} // closed and replaced whenever a call is recorded
}

const maxBody = 1 << 20

func newReceiver(ctx context.Context) (*receiver, error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start the receiver: %w", err)
	}
	r := &receiver{
		url: "http://" + listener.Addr().String(), ended: make(chan struct{}), keys: map[string][]signature.Key{},
		moved: make(chan struct{}), script: func(context.Context, *call) int { return http.StatusNoContent },
	}
	r.server = &http.Server{Handler: r, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		defer close(r.ended)
		if err := r.server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Println("the receiver stopped:", err)
		}
	}()
	return r, nil
}

func (r *receiver) close() {
	_ = r.server.Close()
	<-r.ended
}

// expect sets what a path verifies with.
func (r *receiver) expect(path string, secrets ...string) error {
	var keys []signature.Key
	for _, secret := range secrets {
		key, err := signature.ParseKey([]byte(secret))
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keys[path] = keys
	return nil
}

// play sets how requests are answered from now on: the script returns a status, and may take its time.
func (r *receiver) play(script func(context.Context, *call) int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.script = script
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	c := call{at: time.Now(), path: request.URL.Path, id: request.Header.Get(signature.HeaderID), event: request.Header.Get("Postrider-Event-Type"), header: request.Header}
	c.attempt, _ = strconv.Atoi(request.Header.Get("Postrider-Attempt"))
	var err error
	if c.body, err = io.ReadAll(http.MaxBytesReader(w, request.Body, maxBody)); err != nil {
		http.Error(w, "cannot read the body", http.StatusBadRequest)
		return
	}
	r.mu.Lock()
	keys, script := r.keys[c.path], r.script
	r.mu.Unlock()
	verifier := signature.Verifier{Keys: keys}
	if c.verified = verifier.Verify(request.Header, c.body); c.verified != nil {
		c.status = http.StatusUnauthorized
	} else {
		c.status = script(request.Context(), &c)
	}
	if request.Context().Err() != nil {
		c.status = 0
	}
	r.record(c)
	if c.status != 0 {
		w.WriteHeader(c.status)
	}
}

func (r *receiver) record(c call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, c)
	close(r.moved)
	r.moved = make(chan struct{})
}

// seen returns the calls so far that a filter keeps, in the order of their arrival.
func (r *receiver) seen(keep func(call) bool) []call {
	r.mu.Lock()
	defer r.mu.Unlock()
	var kept []call
	for _, c := range r.calls {
		if keep(c) {
			kept = append(kept, c)
		}
	}
	slices.SortStableFunc(kept, func(a, b call) int { return a.at.Compare(b.at) })
	return kept
}

// await waits until enough calls match.
func (r *receiver) await(ctx context.Context, patience time.Duration, n int, what string, keep func(call) bool) ([]call, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		r.mu.Lock()
		moved := r.moved
		r.mu.Unlock()
		found := r.seen(keep)
		if len(found) >= n {
			return found, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s: %d of %d arrived within %s", what, len(found), n, patience)
		case <-moved:
		}
	}
}

func delivered(id string) func(call) bool {
	return func(c call) bool { return c.id == id && c.status/100 == 2 }
}

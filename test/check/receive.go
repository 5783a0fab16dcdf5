package check

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/signature"
)

const (
	maxRequest = 1 << 20
	maxScript  = 1 << 20
)

// ReceiverOptions of a Receiver.
type ReceiverOptions struct {
	// Journal takes what arrives. It stays the caller's.
	Journal *Journal
	// Keys verify the requests for an endpoint, "" those for endpoints that are not named. Without a key nothing verifies.
	Keys map[string][]signature.Key
	// Script says how requests are answered.
	Script Script
}

// Receiver is the HTTP handler that plays the subscribers. The path of a request names the endpoint, with hyphens for the
// slashes within: /pixel-forge/frames is pixel-forge-frames.
type Receiver struct {
	options ReceiverOptions
	name    string // of this receiver among those whose journals may be read together
	calls   atomic.Uint64

	mutex  sync.Mutex
	script Script
	began  time.Time
}

// NewReceiver makes one.
func NewReceiver(o ReceiverOptions) *Receiver {
	return &Receiver{options: o, name: rand.Text()[:8], script: o.Script, began: time.Now()}
}

// Play changes the script, whose time begins now.
func (r *Receiver) Play(s Script) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.script, r.began = s, time.Now()
}

// ServeHTTP takes a request: reads, verifies, records, answers.
func (r *Receiver) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxRequest))
	if err != nil {
		http.Error(w, "the body cannot be read", http.StatusBadRequest)
		return
	}
	f := r.read(request, body)
	f.Kind = Arrived
	if err := r.options.Journal.Write(f); err != nil {
		// What is not recorded has not arrived.
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	rule := Rule{Status: http.StatusUnauthorized}
	if f.Problem == "" {
		r.mutex.Lock()
		script, played := r.script, time.Since(r.began)
		r.mutex.Unlock()
		rule = script.rule(f, played)
	}
	if rule.Trickle > 0 {
		trickle(request.Context(), w, time.Duration(rule.Trickle))
	} else {
		rule.wait(request.Context())
	}

	answer := Fact{
		Kind: Answered, Call: f.Call, Event: f.Event, Endpoint: f.Endpoint, Post: f.Post, Attempt: f.Attempt,
		Status: rule.status(), RetryAfter: rule.RetryAfter,
	}
	switch {
	case request.Context().Err() != nil:
		answer.Unheard, answer.Problem = true, goneAway
	case rule.Drop || rule.Reset || rule.Truncate:
		answer.Unheard, answer.Problem = true, onPurpose
	}
	if err := r.options.Journal.Write(answer); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	rule.answer(w)
}

func (r Rule) answer(w http.ResponseWriter) {
	if r.Reset {
		reset(w)
		return
	}
	if r.Drop || r.Hang || r.Trickle > 0 {
		panic(http.ErrAbortHandler) // closes the connection
	}
	if r.RetryAfter != "" {
		w.Header().Set("Retry-After", r.RetryAfter)
	}
	if r.Truncate {
		w.Header().Set("Content-Length", "100")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, "half of ")
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(r.status())
}

// trickle sends an answer byte by byte until the sender goes away.
func trickle(ctx context.Context, w http.ResponseWriter, pause time.Duration) {
	w.Header().Set("Content-Length", strconv.Itoa(maxAnswer))
	w.WriteHeader(http.StatusOK)
	control := http.NewResponseController(w)
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		if _, err := w.Write([]byte(".")); err == nil {
			_ = control.Flush() // that nobody reads it any more is told by ctx
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// reset ends the connection as a crash does: what the sender has not read is gone.
func reset(w http.ResponseWriter) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		return
	}
	connection, _, err := hijacker.Hijack()
	if err != nil {
		return
	}
	if tcp, ok := connection.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = connection.Close()
}

// payload is what Load posts.
type payload struct {
	Post   string `json:"post"`
	Key    string `json:"key,omitempty"`
	Number int    `json:"number,omitempty"`
	Pad    string `json:"pad,omitempty"`
}

func (r *Receiver) read(request *http.Request, body []byte) Fact {
	f := Fact{
		Call:     r.name + "-" + strconv.FormatUint(r.calls.Add(1), 10),
		Endpoint: strings.ReplaceAll(strings.Trim(request.URL.Path, "/"), "/", "-"),
		Event:    request.Header.Get(signature.HeaderID),
		Sum:      digest(body),
	}
	var errs []error
	var err error
	f.Revision, _ = strconv.Atoi(request.URL.Query().Get("revision")) // most URLs have none
	if f.Attempt, err = strconv.Atoi(request.Header.Get("Postrider-Attempt")); err != nil {
		errs = append(errs, fmt.Errorf("postrider-attempt: %w", err))
	}
	keys, named := r.options.Keys[f.Endpoint]
	if !named {
		keys = r.options.Keys[""]
	}
	verifier := signature.Verifier{Keys: keys}
	if err := verifier.Verify(request.Header, body); err != nil {
		errs = append(errs, err)
	}
	for i := range keys {
		alone := signature.Verifier{Keys: keys[i : i+1]}
		if alone.Verify(request.Header, body) == nil {
			f.Keys = append(f.Keys, i+1)
		}
	}
	var p payload
	if err := json.Unmarshal(body, &p); err == nil { // else nobody of ours posted it: it is foreign
		f.Post, f.Key, f.Number = p.Post, p.Key, p.Number
	}
	if err := errors.Join(errs...); err != nil {
		f.Problem = err.Error()
	}
	return f
}

// Control is for a port of its own: GET /journal returns a journal, PUT /script (of a receiver) changes the script,
// GET /healthz answers 200.
func Control(journal string, r *Receiver) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /journal", func(w http.ResponseWriter, _ *http.Request) {
		file, err := os.Open(journal)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		defer func() { _ = file.Close() }()
		w.Header().Set("Content-Type", "application/jsonl")
		_, _ = io.Copy(w, file) // a reader that goes away is its own affair
	})
	if r != nil {
		mux.HandleFunc("PUT /script", func(w http.ResponseWriter, request *http.Request) {
			text, err := io.ReadAll(http.MaxBytesReader(w, request.Body, maxScript))
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			script, err := ParseScript(text)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			r.Play(script)
		})
	}
	return mux
}

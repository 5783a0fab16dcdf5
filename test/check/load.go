package check

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
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
	"time"
)

// Load posts events and keeps a journal of what was acknowledged. A post that is answered 503, or not at all, is repeated
// with the same idempotency key. Events of one ordering key are posted one after the other.
type Load struct {
	// Name begins the names of all posts and keys. Loads whose journals are read together have different ones. Empty: a
	// random one.
	Name string
	// URL of ingest, without a path.
	URL string
	// TokenFile holds the bearer token; it is read again for every request, as its content is renewed. Empty: none is sent.
	TokenFile string
	// Namespace to post into. Empty: that of the token.
	Namespace string
	// Types of the events, which take turns.
	Types []string
	// Workers is how many posts are under way at most. Zero means 8.
	Workers int
	// Keys is the number of ordering keys. They are spread over the workers; where there are fewer than workers, the other
	// workers post events without one. Zero: no event has one.
	Keys int
	// Rate of posts per second. Zero: closed loop, each worker posts its next event when the last one was answered.
	Rate float64
	// Count of posts after which it ends, For the time. Zero: no such bound.
	Count int
	For   time.Duration
	// Bytes is about how large the payloads are. Zero: as small as they can be.
	Bytes int
	// Timeout of one try, five seconds where zero; Patience with one post, a minute where zero. A post is then given up as
	// one of which nothing is known.
	Timeout, Patience time.Duration
	// Journal takes the facts. It stays the caller's.
	Journal *Journal
	// Transport is for TLS and the like. Nil: plain connections that are kept alive.
	Transport http.RoundTripper
}

const (
	defaultWorkers  = 8
	defaultTimeout  = 5 * time.Second
	defaultPatience = time.Minute
	firstPause      = 50 * time.Millisecond
	longestPause    = 2 * time.Second
	maxAnswer       = 1 << 20
)

// Run posts until the count, the time or ctx ends; what is under way then is brought to its end. Errors: the journal or the
// token's file cannot be used, a configuration that cannot work. What ingest answers is no error, but a fact.
func (l *Load) Run(ctx context.Context) error {
	if len(l.Types) == 0 || l.URL == "" || l.Journal == nil {
		return errors.New("load: URL, Types and Journal are needed")
	}
	r := &run{Load: *l, name: cmp.Or(l.Name, strings.ToLower(rand.Text()[:10]))}
	r.Workers = cmp.Or(r.Workers, defaultWorkers)
	r.Timeout, r.Patience = cmp.Or(r.Timeout, defaultTimeout), cmp.Or(r.Patience, defaultPatience)
	if r.Transport == nil {
		transport := &http.Transport{
			DialContext:         (&net.Dialer{Timeout: r.Timeout}).DialContext,
			MaxIdleConnsPerHost: r.Workers, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
		}
		defer transport.CloseIdleConnections()
		r.Transport = transport
	}
	r.client = &http.Client{Transport: r.Transport, Timeout: r.Timeout}
	if r.For > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.For)
		defer cancel()
	}
	return r.all(ctx)
}

// run is one call of Run.
type run struct {
	Load
	name   string
	client *http.Client
}

// all lets the workers post until there are no more turns. The first error ends them all.
func (r *run) all(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	turns := make(chan time.Time)
	var workers sync.WaitGroup
	var failed error
	var once sync.Once
	for i := range r.Workers {
		workers.Go(func() {
			if err := r.work(ctx, i, turns); err != nil {
				once.Do(func() { failed = err })
				cancel(err)
			}
		})
	}
	r.give(ctx, turns)
	close(turns)
	workers.Wait()
	return failed
}

// give hands out turns, at the rate or as fast as they are taken. A turn that nobody is free for waits and keeps the time at
// which it was due.
func (r *run) give(ctx context.Context, turns chan<- time.Time) {
	begun := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for n := 0; r.Count == 0 || n < r.Count; n++ {
		var due time.Time
		if r.Rate > 0 {
			due = begun.Add(time.Duration(float64(n) / r.Rate * float64(time.Second)))
			timer.Reset(time.Until(due))
			select {
			case <-timer.C:
			case <-ctx.Done():
				return
			}
		}
		select {
		case turns <- due:
		case <-ctx.Done():
			return
		}
	}
}

// work posts in turn for the worker's keys.
func (r *run) work(ctx context.Context, worker int, turns <-chan time.Time) error {
	var keys []string
	for k := worker; k < r.Keys; k += r.Workers {
		keys = append(keys, r.name+"-"+strconv.Itoa(k))
	}
	numbers := map[string]int{}
	n := 0
	for due := range turns {
		n++
		f := Fact{
			Post: fmt.Sprintf("%s/%d/%d", r.name, worker, n), Type: r.Types[n%len(r.Types)], Due: due.UTC().Round(0),
		}
		if due.IsZero() {
			f.Due = time.Time{}
		}
		if len(keys) > 0 {
			f.Key = keys[n%len(keys)]
			numbers[f.Key]++
			f.Number = numbers[f.Key]
		}
		// A post that was begun is brought to its end, so that little remains of which nothing is known.
		if err := r.post(context.WithoutCancel(ctx), f); err != nil {
			return err
		}
	}
	return nil
}

// post brings one post to its end.
func (r *run) post(ctx context.Context, f Fact) error {
	body, sum, err := r.body(f)
	if err != nil {
		return err
	}
	f.Sum = sum
	f.Kind = Sending
	if err := r.Journal.Write(f); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.Patience)
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		answer, err := r.try(ctx, f, body)
		if err != nil {
			return err
		}
		if answer.Kind == Failed && ctx.Err() != nil {
			answer.Kind = Unknown
		}
		if err := r.Journal.Write(answer); err != nil {
			return err
		}
		if answer.Kind != Failed {
			return nil
		}
		wait(ctx, answer.RetryAfter, pause)
	}
}

// wait lets the time pass that the server asks for, but no longer than it is worth to a test.
func wait(ctx context.Context, retryAfter string, pause time.Duration) {
	if seconds, err := strconv.Atoi(retryAfter); err == nil && seconds >= 0 {
		pause = min(time.Duration(seconds)*time.Second, longestPause)
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// answer of POST /api/v1/events, as far as it is of interest.
type answer struct {
	ID         string `json:"id"`
	Duplicate  bool   `json:"duplicate"`
	Deliveries []struct {
		Endpoint string `json:"endpoint"`
	} `json:"deliveries"`
}

// try posts once and returns the fact that came of it.
func (r *run) try(ctx context.Context, f Fact, body []byte) (Fact, error) {
	target := strings.TrimSuffix(r.URL, "/") + "/api/v1/events"
	if r.Namespace != "" {
		target += "?namespace=" + r.Namespace
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, target, bytes.NewReader(body))
	if err != nil {
		return Fact{}, fmt.Errorf("load: %w", err)
	}
	request.Header.Set("Content-Type", "application/json")
	if r.TokenFile != "" {
		token, err := os.ReadFile(r.TokenFile)
		if err != nil {
			return Fact{}, fmt.Errorf("load: read the token: %w", err)
		}
		request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	}
	f.Kind, f.Due = Failed, time.Time{}
	if err := r.exchange(request, &f); err != nil {
		f.Kind, f.Status, f.Problem = Failed, 0, err.Error()
	}
	return f, nil
}

// exchange sends a request and reads the whole answer: a 202 that breaks off is no acknowledgement.
func (r *run) exchange(request *http.Request, f *Fact) error {
	response, err := r.client.Do(request)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	f.Status, f.RetryAfter = response.StatusCode, response.Header.Get("Retry-After")
	f.read(text)
	return nil
}

// read takes from an answer's body what it says about the post.
func (f *Fact) read(text []byte) {
	switch {
	case f.Status == http.StatusAccepted:
		var a answer
		if json.Unmarshal(text, &a) != nil || a.ID == "" {
			f.Problem = "202 with an answer that cannot be read"
			return
		}
		f.Kind, f.Event, f.Duplicate = Accepted, a.ID, a.Duplicate
		for _, d := range a.Deliveries {
			f.Endpoints = append(f.Endpoints, d.Endpoint)
		}
	case f.Status >= 400 && f.Status < 500 && f.Status != http.StatusRequestTimeout && f.Status != http.StatusTooManyRequests:
		f.Kind, f.Problem = Refused, string(text[:min(len(text), 500)])
	default:
		f.Problem = string(text[:min(len(text), 200)])
	}
}

// body returns what is posted and the digest of the payload within.
func (r *run) body(f Fact) ([]byte, string, error) {
	p := payload{Post: f.Post, Key: f.Key, Number: f.Number}
	raw, err := json.Marshal(p)
	if missing := r.Bytes - len(raw); err == nil && missing > 0 {
		p.Pad = strings.Repeat("x", missing)
		raw, err = json.Marshal(p)
	}
	if err != nil {
		return nil, "", fmt.Errorf("load: %w", err)
	}
	body, err := json.Marshal(struct {
		Type        string          `json:"type"`
		Payload     json.RawMessage `json:"payload"`
		Key         string          `json:"ordering_key,omitempty"`
		Idempotency string          `json:"idempotency_key"`
	}{f.Type, raw, f.Key, f.Post})
	if err != nil {
		return nil, "", fmt.Errorf("load: %w", err)
	}
	return body, digest(raw), nil
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:12])
}

package dispatcher

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
)

const (
	keptResponse = 4 << 10  // of a response's body, in bytes
	readResponse = 64 << 10 // at most; a longer body costs the connection
)

// job is one claimed delivery on its way through the senders to the recorder.
type job struct {
	result   store.Result // its Claim from the beginning, the rest from the end of the attempt
	endpoint *endpoint
	share    *share
	clock    databaseTime

	lease     atomic.Int64 // instant: the lease ends no earlier
	mustEnd   instant      // of the request, by its timeout
	cancel    context.CancelFunc
	abandoned atomic.Bool // cancelled since its lease was about to end
}

// leaseLeft is how long the claim is still ours for certain.
func (j *job) leaseLeft() time.Duration { return until(instant(j.lease.Load())) }

// sender makes one request at a time.
type sender struct {
	config    Config
	life      context.Context // its end breaks off the request
	transport http.RoundTripper
	logger    *slog.Logger
	metrics   *metrics
	slot      *atomic.Pointer[job] // where the keeper sees what is in flight
	seats     *seats
	record    func(*job) // blocks while the recorder is behind

	keys []signature.Key
}

// buffers are for reading responses. Senders that wait for theirs, which is what most do, need none.
var buffers = sync.Pool{New: func() any { return new([keptResponse]byte) }}

// run sends until there are no more jobs. Once stop is closed, what was not begun is released.
func (s *sender) run(stop <-chan struct{}, jobs <-chan *job) {
	for j := range jobs {
		timedOut := false
		if !closed(stop) && j.leaseLeft() > s.config.RecordTime {
			timedOut = s.attempt(j)
		} else {
			j.result.Verdict = store.Released
		}
		j.result.Claim.Body, j.result.Claim.Headers = nil, nil // the recorder may keep the rest for a while
		j.share.give(timedOut)
		s.record(j)
		s.seats.give()
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// attempt makes the request and fills in the result. It reports whether the receiver used up its timeout.
func (s *sender) attempt(j *job) (timedOut bool) {
	r, c := &j.result, &j.result.Claim
	began := now()
	a := s.exchange(j)
	r.Duration = since(began)
	r.Version = j.endpoint.version
	timedOut = j.endpoint.timeout > 0 && r.Duration >= j.endpoint.timeout
	if a.interrupted {
		r.Verdict = store.Released
		return timedOut
	}
	d := decide(c.Attempt, j.clock.now().Sub(c.AgeFrom), a.outcome, j.endpoint.retry, random())
	r.Verdict, r.Delay, r.Gone, r.Failing = d.verdict, d.delay, d.gone, d.failing
	r.Reason, r.DeadReason = string(d.reason), string(d.deadReason)
	r.Status, r.Response, r.Message = a.status, a.response, a.message
	r.Unsent = a.unsent || a.lost
	if !r.Unsent {
		s.metrics.attemptDuration.Observe(r.Duration.Seconds())
	}
	if d.reason != "" {
		s.metrics.failed(d.reason)
	}
	s.tell(j)
	return timedOut
}

// answer is an outcome with what is kept of it.
type answer struct {
	outcome
	response    []byte
	message     string
	interrupted bool // by our own stop
}

// exchange makes one signed request and reads the response to its bound, within the endpoint's timeout.
func (s *sender) exchange(j *job) answer {
	e, c := j.endpoint, &j.result.Claim
	switch {
	case e.refused != nil:
		return answer{outcome: outcome{failed: e.refused.reason, unsent: e.unsent}, message: e.refused.message}
	case c.BodyLost:
		return answer{outcome: outcome{lost: true}, message: "the event is no longer in the database"}
	}
	at := j.clock.now()
	keys, err := e.signingKeys(s.keys[:0], at)
	if err != nil {
		message := clean("the signing key cannot be used: " + err.Error())
		return answer{outcome: outcome{failed: SigningKeyUnavailable, unsent: true}, message: message}
	}
	s.keys = keys

	ctx, cancel := context.WithTimeout(s.life, e.timeout)
	defer cancel()
	j.cancel, j.mustEnd = cancel, now().add(e.timeout)
	s.slot.Store(j)
	defer s.slot.Store(nil)

	response, err := s.transport.RoundTrip(newRequest(ctx, e, c, "Postrider/"+s.config.Version, at, keys))
	if err != nil {
		return s.noAnswer(ctx, j, err)
	}
	defer func() { _ = response.Body.Close() }() // nothing depends on how it ends
	kept, err := read(response.Body)
	a := answer{outcome: outcome{status: response.StatusCode}, response: kept}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		// Whatever became of the body, the status says it all.
		a.message = statusMessage(response.StatusCode, response.Header.Get("Location"))
		if value := response.Header.Get("Retry-After"); value != "" {
			a.retryAfter, a.asked = parseRetryAfter(value, j.clock.now())
		}
		return a
	}
	if err != nil {
		failed := s.noAnswer(ctx, j, err)
		failed.status, failed.response = a.status, kept
		return failed
	}
	return a
}

// noAnswer names the error of a request that got no answer, or no whole one.
func (s *sender) noAnswer(ctx context.Context, j *job, err error) answer {
	switch {
	case j.abandoned.Load():
		return answer{outcome: outcome{failed: LeaseEnding}, message: "abandoned, since the claim was about to end"}
	case s.life.Err() != nil:
		return answer{interrupted: true}
	case ctx.Err() != nil:
		err = context.DeadlineExceeded // and not what the transport made of it
	}
	f := failureOf(err, j.endpoint.host)
	return answer{outcome: outcome{failed: f.reason}, message: f.message}
}

// read reads a body to its end, or to the bound, and returns what is kept of it: a copy.
func read(body io.Reader) ([]byte, error) {
	buffer, _ := buffers.Get().(*[keptResponse]byte) // it is nothing else
	defer buffers.Put(buffer)
	n, err := fillFrom(body, buffer[:])
	kept := text(buffer[:n])
	for total := n; err == nil && total < readResponse; total += n {
		n, err = fillFrom(body, buffer[:])
	}
	if errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	return kept, err
}

// fillFrom reads until the buffer is full or there is an error. Unlike io.ReadFull it keeps the reader's own error: an
// unexpected end is what we must tell from an expected one.
func fillFrom(r io.Reader, buffer []byte) (n int, err error) {
	for n < len(buffer) && err == nil {
		var m int
		m, err = r.Read(buffer[n:])
		n += m
	}
	return n, err
}

// text makes valid UTF-8 without NUL, which is what Postgres keeps as text, of at most keptResponse bytes.
func text(raw []byte) []byte {
	if len(raw) == 0 {
		return nil
	}
	if len(raw) == keptResponse {
		raw = raw[:len(raw)-cutRune(raw)]
	}
	if utf8.Valid(raw) && bytes.IndexByte(raw, 0) < 0 {
		return bytes.Clone(raw)
	}
	const replacement = "\uFFFD"
	valid := bytes.ReplaceAll(bytes.ToValidUTF8(raw, []byte(replacement)), []byte{0}, []byte(replacement))
	if len(valid) > keptResponse {
		valid = valid[:keptResponse]
		valid = valid[:len(valid)-cutRune(valid)]
	}
	return valid
}

// cutRune is how many bytes at the end begin a rune that is cut off there.
func cutRune(raw []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(raw); n++ {
		if last := raw[len(raw)-n]; utf8.RuneStart(last) {
			if !utf8.FullRune(raw[len(raw)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}

// tell logs an attempt. Failures that are tried again are told at the level of the ordinary: a receiver that is down is
// the receiver's news, and stands in the endpoint's status.
func (s *sender) tell(j *job) {
	r, level, event := &j.result, slog.LevelDebug, "delivered"
	switch {
	case r.Verdict == store.Dead:
		level, event = slog.LevelWarn, "dead"
	case r.Unsent:
		level, event = slog.LevelWarn, "unsent"
	case r.Verdict == store.Retry:
		level, event = slog.LevelInfo, "retry"
	}
	ctx := context.Background()
	if !s.logger.Enabled(ctx, level) {
		return
	}
	attributes := []slog.Attr{
		slog.String("event", event), slog.String("endpoint", j.endpoint.name), slog.Int64("delivery", r.Claim.DeliveryID),
		slog.String("event_id", r.Claim.EventID.String()), slog.Int("attempt", r.Claim.Attempt),
		slog.Int("status", r.Status), slog.Duration("duration", r.Duration),
	}
	if r.Reason != "" {
		attributes = append(attributes, slog.String("reason", r.Reason), slog.String("message", r.Message))
	}
	if r.DeadReason != "" {
		attributes = append(attributes, slog.String("dead_reason", r.DeadReason))
	}
	if r.Verdict == store.Retry {
		attributes = append(attributes, slog.Duration("again_in", r.Delay))
	}
	s.logger.LogAttrs(ctx, level, "attempt", attributes...)
}

package dispatcher

import (
	"context"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/store"
)

const (
	claimTimeout = 10 * time.Second
	// gatherTime bounds how long freed senders wait for others, so that one claim serves them all. They wait only if the
	// last claim left work behind for want of senders.
	gatherTime = 20 * time.Millisecond
	// emptyClaims is how many claims in a row may find nothing although there may be more, before the next one waits: lanes
	// that woke for nothing must not hide those behind them, nor keep us spinning.
	emptyClaims = 16
	// claimBackoff bounds the pause after a failed claim.
	claimBackoffMin, claimBackoffMax = 100 * time.Millisecond, 2 * time.Second
	// pausedPause is the least time between two claims while the installation is paused: producers' notifications go on.
	pausedPause = 100 * time.Millisecond
	// handOutTime bounds how long a claim may wait for its endpoint to be read before it is sent. It is given back then, and
	// is claimed again with the endpoint at hand: what was claimed before a pause is sent at once or not at all.
	handOutTime = 500 * time.Millisecond
)

// claimer finds work for free senders. There is one per replica: more of them are slower.
type claimer struct {
	config    Config
	store     Store
	logger    *slog.Logger
	metrics   *metrics
	health    *health
	clock     *databaseClock
	endpoints *endpoints
	shares    *shares
	seats     *seats
	jobs      chan<- *job // as many fit in as there are senders
	release   func(*job)

	woken    chan struct{}
	hinted   chan struct{}
	nextLook atomic.Int64 // instant at which something is known to fall due; math.MaxInt64: none
	paused   bool         // the installation was, at the last claim; only run's goroutine touches it
}

func newClaimer(c Config, d Dependencies, m *metrics, h *health, k *databaseClock, s *seats, jobs chan<- *job) *claimer {
	p := &claimer{
		config: c, store: d.Store, logger: d.Logger, metrics: m, health: h, clock: k, endpoints: newEndpoints(c, d), shares: newShares(c.Senders),
		seats: s, jobs: jobs, woken: make(chan struct{}, 1), hinted: make(chan struct{}, 1),
	}
	p.nextLook.Store(math.MaxInt64)
	return p
}

// wake makes the claimer look at once.
func (p *claimer) wake() { ring(p.woken) }

// lookAt makes it look at that moment at the latest. Only the nearest one is kept: polling finds the others, since it
// starts anew at its shortest period whenever there was work.
func (p *claimer) lookAt(at instant) {
	for {
		next := p.nextLook.Load()
		if int64(at) >= next {
			return
		}
		if p.nextLook.CompareAndSwap(next, int64(at)) {
			ring(p.hinted)
			return
		}
	}
}

func ring(bell chan<- struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// run claims until the context ends.
func (p *claimer) run(ctx context.Context) {
	idle, failed, empty := p.config.PollMin, claimBackoffMin, 0
	due, bound := true, false // work is known to be due; the last claim was bound by the senders
	for {
		if !due && !p.rest(ctx, idle) {
			return
		}
		if !p.seats.await(ctx, bound) {
			return
		}
		got, budget, more, err := p.claim(ctx)
		switch {
		case err != nil:
			if !sleep(ctx, jitter(failed)) {
				return
			}
			failed, due = min(2*failed, claimBackoffMax), true
			continue
		case got > 0:
			idle, empty, due = p.config.PollMin, 0, more
		default:
			empty++
			if due = more && empty < emptyClaims; !due {
				idle, empty = min(2*idle, p.config.PollMax), 0
			}
			if p.paused && !sleep(ctx, pausedPause) {
				return
			}
		}
		failed = claimBackoffMin
		bound = more && got > budget/2
	}
}

// rest waits for a notification, for what is known to fall due, or for the next poll. It reports false at the end.
func (p *claimer) rest(ctx context.Context, idle time.Duration) bool {
	poll := now().add(idle)
	timer := time.NewTimer(idle)
	defer timer.Stop()
	for {
		look := min(poll, instant(p.nextLook.Load()))
		timer.Reset(max(0, until(look)))
		select {
		case <-p.woken:
		case <-timer.C:
		case <-p.hinted:
			continue
		case <-ctx.Done():
			return false
		}
		if next := p.nextLook.Load(); next <= int64(now()) {
			p.nextLook.CompareAndSwap(next, math.MaxInt64)
		}
		return ctx.Err() == nil
	}
}

// claim claims for the senders that are free and hands out what it got.
func (p *claimer) claim(ctx context.Context) (got, budget int, more bool, err error) {
	// A stop must not end the claim half-way: nobody would know what was claimed until its lease ends.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimTimeout)
	defer cancel()
	budget = p.seats.free()
	perLane, exclude, caps := p.shares.bounds()
	asked := now() // the lease begins later than this, whatever the way there takes
	batch, err := p.store.Claim(ctx, store.ClaimRequest{
		Budget: budget, Lanes: min(budget, p.config.ClaimLanes), PerLane: min(perLane, budget),
		Lease: p.config.Lease, Exclude: exclude, Caps: caps,
	})
	p.metrics.claimDuration.Observe(since(asked).Seconds())
	if err != nil {
		p.metrics.storeErrors.claim.Inc()
		p.health.failed("claim", err)
		return 0, budget, false, err
	}
	p.health.worked()
	p.notePause(batch.Paused)
	p.metrics.leasesExpired.Add(float64(batch.Reaped))
	p.metrics.claimed.Add(float64(len(batch.Claims)))
	p.seats.take(len(batch.Claims))
	got, err = p.handOut(ctx, batch, asked.add(p.config.Lease))
	return got, budget, batch.More, err
}

// notePause says once that nothing is sent, and once that it is again.
func (p *claimer) notePause(paused bool) {
	switch {
	case paused && !p.paused:
		p.logger.Warn("the installation is paused, nothing is sent until `postrider resume`", "event", "paused")
	case p.paused && !paused:
		p.logger.Info("the installation is resumed", "event", "resumed")
	}
	p.paused = paused
}

// handOut gives the claims to the senders, first those whose endpoint is known as it is now, and says how many it gave.
func (p *claimer) handOut(ctx context.Context, batch store.Batch, leaseEnd instant) (given int, err error) {
	clock := databaseTime{at: batch.At, read: now()}
	p.clock.set(clock)
	var waiting []*job
	var stale []int64
	for i := range batch.Claims {
		c := &batch.Claims[i]
		j := &job{clock: clock, share: p.shares.take(c.LaneID), endpoint: p.endpoints.current(c)}
		j.result.Claim = *c
		j.lease.Store(int64(leaseEnd))
		if j.endpoint == nil {
			if waiting = append(waiting, j); !contains(stale, c.EndpointID) {
				stale = append(stale, c.EndpointID)
			}
			continue
		}
		given += p.give(j)
	}
	if len(waiting) == 0 {
		return given, nil
	}
	loaded, err := p.endpoints.load(ctx, stale)
	if err != nil {
		p.metrics.storeErrors.endpoints.Inc()
		p.health.failed("load endpoints", err)
		for _, j := range waiting {
			p.giveBack(j)
		}
		return given, err
	}
	if since(clock.read) > handOutTime {
		for _, j := range waiting {
			p.giveBack(j)
		}
		return given, nil
	}
	for _, j := range waiting {
		j.endpoint = loaded[j.result.Claim.EndpointID]
		given += p.give(j)
	}
	return given, nil
}

// contains looks from the end: claims come lane by lane, so that what is looked for is mostly the last one.
func contains(ids []int64, id int64) bool {
	for i := len(ids) - 1; i >= 0; i-- {
		if ids[i] == id {
			return true
		}
	}
	return false
}

// give hands a claim to a sender, if it may be sent, and returns how many that were.
func (p *claimer) give(j *job) int {
	if !j.endpoint.takes(j.result.Claim.LaneID) {
		p.giveBack(j)
		return 0
	}
	if pace := j.endpoint.pace; pace > 0 {
		p.lookAt(now().add(pace)) // its next token
	}
	p.jobs <- j // never blocks: no more was claimed than senders are free
	return 1
}

// giveBack releases a claim that no sender gets.
func (p *claimer) giveBack(j *job) {
	j.result.Verdict = store.Released
	j.result.Claim.Body, j.result.Claim.Headers = nil, nil
	j.share.give(false)
	p.release(j)
	p.seats.give()
}

// seats counts the senders that are free.
type seats struct {
	all   int
	count atomic.Int64
	want  atomic.Int64 // how many must be free for the bell to ring
	bell  chan struct{}
}

func newSeats(n int) *seats {
	s := &seats{all: n, bell: make(chan struct{}, 1)}
	s.count.Store(int64(n))
	s.want.Store(math.MaxInt64)
	return s
}

func (s *seats) free() int  { return int(s.count.Load()) }
func (s *seats) take(n int) { s.count.Add(-int64(n)) }

func (s *seats) give() {
	if s.count.Add(1) >= s.want.Load() {
		ring(s.bell)
	}
}

// await waits until a sender is free, and where the last claim was bound by the senders, until half of them are or
// gatherTime is over. It reports false if the context ended first.
func (s *seats) await(ctx context.Context, bound bool) bool {
	defer s.want.Store(math.MaxInt64)
	if bound {
		timer := time.NewTimer(gatherTime)
		defer timer.Stop()
		if done, ok := s.awaitOr(ctx, max(1, s.all/2), timer.C); done {
			return ok
		}
	}
	_, ok := s.awaitOr(ctx, 1, nil)
	return ok
}

// awaitOr reports done if n are free or the context ended, of which ok tells; else enough came first.
func (s *seats) awaitOr(ctx context.Context, n int, enough <-chan time.Time) (done, ok bool) {
	s.want.Store(int64(n))
	for s.free() < n {
		select {
		case <-s.bell:
		case <-enough:
			return false, false
		case <-ctx.Done():
			return true, false
		}
	}
	return true, ctx.Err() == nil
}

package dispatcher

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postrider/postrider/destination"
	"github.com/postrider/postrider/store"
)

// Store is what a dispatcher needs of the database; [store.Store] says what each method does.
type Store interface {
	Claim(ctx context.Context, r store.ClaimRequest) (store.Batch, error)
	Complete(ctx context.Context, results []store.Result) ([]store.Recorded, error)
	Extend(ctx context.Context, leases []store.Lease, lease time.Duration) (map[int64]bool, time.Time, error)
	Endpoints(ctx context.Context, ids []int64) ([]store.Endpoint, error)
	Listen(ctx context.Context, wake func()) error
	Chores
}

var _ Store = (*store.Store)(nil)

// Dependencies of a dispatcher. All are required.
type Dependencies struct {
	Store   Store
	Keyring Keyring
	Policy  *destination.Policy
	Logger  *slog.Logger
	Metrics prometheus.Registerer
}

// flushTime is how long the last outcomes may take to be recorded once the grace period is over, or nothing is in flight
// any more.
const flushTime = 10 * time.Second

// Dispatcher claims, sends and records, and runs the store's chores. It is made by [New] and runs once.
type Dispatcher struct {
	config  Config
	kept    *atomic.Pointer[Config] // with the retention that is in force
	logger  *slog.Logger
	metrics *metrics
	network *network
	health  *health

	claimer  *claimer
	senders  []*sender
	keeper   *keeper
	recorder *recorder
	chores   []chore

	jobs      chan *job
	endSend   context.CancelFunc // ends the requests in flight
	endRecord context.CancelFunc // gives up recording
	ran       atomic.Bool
}

// New makes a dispatcher. It fails for a configuration that [Config.Validate] refuses.
func New(c Config, d Dependencies) (*Dispatcher, error) {
	return assemble(c, d, outside{})
}

// outside is what tests put in the place of the world.
type outside struct {
	resolver  *net.Resolver
	roots     *x509.CertPool
	transport http.RoundTripper
}

func assemble(c Config, d Dependencies, o outside) (*Dispatcher, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if d.Store == nil || d.Keyring == nil || d.Policy == nil || d.Logger == nil || d.Metrics == nil {
		return nil, errors.New("dispatcher: a dependency is missing")
	}
	c = c.WithDefaults()
	seats := newSeats(c.Senders)
	m, err := newMetrics(d.Metrics, seats)
	if err != nil {
		return nil, err
	}
	var clock databaseClock
	connections := newNetwork(d.Policy, c.MaxTimeout, o.resolver)
	if o.transport == nil {
		o.transport = newTransport(connections, c.Senders, c.MaxTimeout, o.roots, &clock)
	}
	sendLife, endSend := context.WithCancel(context.Background())
	recordLife, endRecord := context.WithCancel(context.Background())
	kept := &atomic.Pointer[Config]{}
	kept.Store(&c)
	p := &Dispatcher{
		config: c, kept: kept, logger: d.Logger, metrics: m, network: connections, health: newHealth(d.Logger),
		jobs: make(chan *job, c.Senders), endSend: endSend, endRecord: endRecord,
	}
	p.claimer = newClaimer(c, d, m, p.health, &clock, seats, p.jobs)
	p.recorder = newRecorder(recordLife, d, m, p.health, p.claimer)
	p.claimer.release = p.recorder.put
	slots := make([]atomic.Pointer[job], c.Senders)
	for i := range c.Senders {
		p.senders = append(p.senders, &sender{
			config: c, life: sendLife, transport: o.transport, logger: d.Logger, metrics: m,
			slot: &slots[i], seats: seats, record: p.recorder.put,
		})
	}
	p.keeper = &keeper{config: c, store: d.Store, logger: d.Logger, slots: slots}
	p.chores = newChores(kept, d, m)
	return p, nil
}

// Change puts a destination policy and the retention of a configuration in force while the dispatcher runs; what else the
// configuration says is of no account. It fails for one that [Config.Validate] refuses, and then changes nothing.
//
// The policy counts for whatever is claimed and connected from now on. Connections to addresses that it forbids are closed,
// with the requests on them, which count as failed attempts. Retention counts from the next turn of its chore.
func (p *Dispatcher) Change(c Config, policy *destination.Policy) error {
	if err := c.Validate(); err != nil {
		return err
	}
	c = c.WithDefaults()
	p.kept.Store(&c)
	p.claimer.endpoints.policy.Store(policy)
	p.network.govern(policy)
	return nil
}

// Run delivers until the context ends. Then it claims nothing more, lets the requests in flight go on for Config.Grace,
// releases the rest so that others take it at once, records, and returns nil. A database that is away is waited for.
func (p *Dispatcher) Run(ctx context.Context) error {
	if !p.ran.CompareAndSwap(false, true) {
		return errors.New("dispatcher: it has run already")
	}
	defer p.network.close()
	defer p.endSend()
	defer p.endRecord()

	// What serves the whole run ends when nothing is in flight any more, not when the stop is asked for.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	var keeping, background, sending, recording sync.WaitGroup
	keeping.Go(func() { p.keeper.run(life) })
	keeping.Go(func() { p.boundStop(ctx, life) })
	background.Go(func() { p.listen(ctx) })
	for i := range p.chores {
		background.Go(func() { p.chores[i].run(ctx, p.logger, p.metrics) })
	}
	for range completers {
		recording.Go(p.recorder.run)
	}
	for _, s := range p.senders {
		sending.Go(func() { s.run(ctx.Done(), p.jobs) }) //nolint:contextcheck // requests outlive the stop, for the grace period
	}
	p.logger.Info("dispatching", "event", "started", "senders", p.config.Senders)

	p.claimer.run(ctx) // until the stop
	p.health.stop()
	p.logger.Info("claiming has ended, finishing what is in flight", "event", "stopping", "grace", p.config.Grace.String())
	close(p.jobs)
	sending.Wait()
	p.recorder.close()
	flush := time.AfterFunc(flushTime, p.endRecord)
	defer flush.Stop()
	recording.Wait()
	end()
	keeping.Wait()
	background.Wait()
	p.logger.Info("stopped", "event", "stopped")
	return nil
}

// Ready says why this replica does not dispatch now, or nil.
func (p *Dispatcher) Ready() error { return p.health.ready() }

// boundStop sees to it that a stop comes to its end: it breaks off requests when the grace period is over, and recording
// some time later. Nothing that waits for either can then wait any longer, whatever the database does.
func (p *Dispatcher) boundStop(ctx, life context.Context) {
	select {
	case <-ctx.Done():
	case <-life.Done():
		return
	}
	if !sleep(life, max(0, p.config.Grace)) {
		return
	}
	p.endSend()
	if sleep(life, flushTime) {
		p.endRecord()
	}
}

// listen wakes the claimer at each notification. A lost connection is made again; meanwhile polling serves.
func (p *Dispatcher) listen(ctx context.Context) {
	const least, most = 100 * time.Millisecond, 10 * time.Second
	pause := least
	for first := true; ctx.Err() == nil; first = false {
		if !first {
			p.metrics.reconnects.Inc()
		}
		began := now()
		err := p.claimer.store.Listen(ctx, p.claimer.wake)
		if ctx.Err() != nil {
			return
		}
		if since(began) > most {
			pause = least
		}
		p.logger.Warn("not listening for notifications, polling until it is back", "event", "listen_lost",
			"error", err, "again_in", pause.String())
		if !sleep(ctx, jitter(pause)) {
			return
		}
		pause = min(2*pause, most)
	}
}

// sleep reports false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

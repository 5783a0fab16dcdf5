package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postrider/postrider/bench/sink"
	"github.com/postrider/postrider/store"
)

var (
	hundred  = layout{name: "hundred", groups: []endpoints{{kind: sink.OK, count: 100}}}
	thousand = layout{name: "thousand", groups: []endpoints{{kind: sink.OK, count: 1000}}}
	hot      = layout{name: "hot", groups: []endpoints{{kind: sink.OK, count: 1, change: func(s *store.EndpointSpec) { s.MaxConcurrency = 1000 }}}}
	flaky    = layout{name: "flaky", groups: []endpoints{{kind: sink.Flaky, count: 100, change: retrySoon}}}
)

// retrySoon keeps waiting out of the figure as far as it can be: what counts is what attempts cost. Ten failures in a row,
// which open a circuit by default, do happen by chance in so many attempts.
func retrySoon(s *store.EndpointSpec) {
	s.BackoffBase, s.BackoffFactor, s.MaxAttempts, s.FailureThreshold = 200*time.Millisecond, 1, 50, 1000
}

// drained is what working off a loaded queue came to.
type drained struct {
	perSecond float64 // from the first request's arrival until everything was recorded
	attempts  float64 // requests per second in the same time
	usage     usage
}

// whose says whom a lost or doubled delivery is counted against.
type whose string

const (
	ours     whose = ""
	opponent whose = "_river"
)

// drain loads a queue while no dispatcher runs, starts one and measures how fast it works everything off.
func drain(l layout, count func(plan) int, note func(*run, drained, int)) func(context.Context, *run) error {
	return func(ctx context.Context, r *run) error {
		return r.with(ctx, l, func(db *database) error {
			n := count(r.plan)
			d, err := r.drainAll(ctx, db, db.endpoints, l.groups[0].kind, n)
			if err == nil {
				note(r, d, n)
			}
			return err
		})
	}
}

func (r *run) drainAll(ctx context.Context, db *database, among []store.Endpoint, kind string, n int) (d drained, err error) {
	if err := db.load(ctx, among, n); err != nil {
		return d, err
	}
	if err := db.exec(ctx, `ANALYZE postrider.delivery`); err != nil {
		return d, err
	}
	if err := r.sink.Reset(ctx); err != nil {
		return d, err
	}
	m, err := db.measure(ctx)
	if err != nil {
		return d, err
	}
	p, err := db.dispatch(ctx)
	if err != nil {
		return d, err
	}
	defer p.stop()
	stop := r.observe(ctx, db, r.unit, p)
	defer func() { err = errors.Join(err, stop()) }()
	m.watchAll(p.child)
	if err := r.arrived(ctx, db, p.child, ours, kind, n); err != nil {
		return d, err
	}
	if err := p.recorded(ctx, n); err != nil {
		return d, err
	}
	if d, err = r.drained(ctx, m, ours, kind, n); err != nil {
		return d, err
	}
	metrics, err := p.metrics(ctx)
	if err != nil {
		return d, err
	}
	r.claims = metrics[claimsMetric+"_count"] / float64(n)
	return d, nil
}

// arrived waits until n deliveries have arrived at the sink. It fails when there is no progress any more; what is missing
// then and waits nowhere is lost.
func (r *run) arrived(ctx context.Context, db *database, c *child, by whose, kind string, n int) error {
	const patience = 60 * time.Second
	var last sink.Stats
	for {
		before := last.Delivered
		err := poll(ctx, patience, 20*time.Millisecond, func() (bool, error) {
			select {
			case <-c.done:
				return false, fmt.Errorf("%s has ended: %w", c.name, errors.Join(c.err, errEnded))
			default:
			}
			var err error
			last, err = r.sink.Stats(ctx, kind)
			return last.Delivered >= int64(n), err
		})
		if errors.Is(err, errSlow) && last.Delivered > before {
			continue
		}
		if errors.Is(err, errSlow) {
			waiting, err := db.waiting(ctx, by, kind)
			if err != nil {
				return err
			}
			missing := n - int(last.Delivered)
			r.lose(by, max(0, missing-waiting))
			return fmt.Errorf("%d of %d deliveries did not arrive, %d of them still wait or are given up; the last lines of %s:\n%s",
				missing, n, waiting, c.name, tail(c.log))
		}
		return err
	}
}

// waiting counts what the database still knows of: pending deliveries and dead letters, or unfinished jobs.
func (db *database) waiting(ctx context.Context, by whose, kind string) (int, error) {
	if by == opponent {
		return ask[int](ctx, db, `SELECT count(*) FROM river_job WHERE state <> 'completed'`)
	}
	const query = `SELECT count(*) FROM postrider.endpoint e
		JOIN (SELECT endpoint_id FROM postrider.delivery UNION ALL SELECT endpoint_id FROM postrider.dead_letter) d USING (endpoint_id)
		WHERE e.namespace = $1 AND e.url LIKE '%/' || $2 || '/%'`
	return ask[int](ctx, db, query, namespace, kind)
}

// drained reads all figures at the moment at which everything is recorded.
func (r *run) drained(ctx context.Context, m *meter, by whose, kind string, n int) (drained, error) {
	ended := time.Now().UnixNano()
	used, err := m.read(ctx)
	if err != nil {
		return drained{}, err
	}
	stats, err := r.sink.Stats(ctx, kind)
	if err != nil {
		return drained{}, err
	}
	r.double(by, stats)
	if stats.Delivered != int64(n) {
		return drained{}, fmt.Errorf("%d deliveries arrived where %d were owed", stats.Delivered, n)
	}
	took := time.Duration(ended - stats.First).Seconds()
	return drained{perSecond: float64(n) / took, attempts: float64(stats.Requests) / took, usage: used}, nil
}

// noteCosts notes what each process spent on a delivery, and the most memory that it had.
func (r *run) noteCosts(prefix string, u usage, n int) {
	for name, used := range u.cpu {
		r.note(prefix+"_cpu_us_"+name, float64(used.Microseconds())/float64(n))
	}
	for name, peak := range u.peak {
		r.note(prefix+"_peak_mib_"+name, peak)
	}
	r.note(prefix+"_wal_bytes", u.walBytes/float64(n))
}

func noteHundred(r *run, d drained, n int) {
	r.note("drain_per_s_postrider", d.perSecond)
	r.note("wal_bytes_per_delivery", d.usage.walBytes/float64(n))
	r.note("claims_per_delivery", r.claims)
	r.noteCosts("drain_per_s_postrider", d.usage, n)
}

func noteThousand(r *run, d drained, _ int) { r.note("drain_thousand_per_s", d.perSecond) }
func noteHot(r *run, d drained, _ int)      { r.note("drain_hot_per_s", d.perSecond) }
func noteFlaky(r *run, d drained, _ int)    { r.note("drain_flaky_attempts_per_s", d.attempts) }

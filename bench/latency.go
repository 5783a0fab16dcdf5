package main

import (
	"context"
	"errors"
	"time"

	"github.com/postrider/postrider/bench/sink"
)

const fanOut = 10

var ten = layout{name: "ten", groups: []endpoints{{kind: sink.OK, count: fanOut, types: "load.*"}}}

// stack is a whole Postrider on a database: ingest and a dispatcher.
type stack struct {
	db         *database
	dispatcher *part
	ingest     *part
	producer   *producer
}

// onStack runs a function with both parts running and an empty sink, and then makes sure that all that was accepted
// arrived, once for each of copies endpoints.
func (r *run) onStack(ctx context.Context, t template, kind string, types func(int64) string, copies int, f func(*stack) error) (err error) {
	db, err := r.copyOf(ctx, t)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.drop(ctx)) }()
	if err := r.sink.Reset(ctx); err != nil {
		return err
	}
	s := &stack{db: db}
	if s.dispatcher, err = db.dispatch(ctx); err != nil {
		return err
	}
	defer s.dispatcher.stop()
	if s.ingest, err = db.ingest(ctx); err != nil {
		return err
	}
	defer s.ingest.stop()
	s.producer = newProducer(s.ingest, types)
	defer s.producer.close()
	if err := f(s); err != nil {
		return err
	}
	if err := r.arrived(ctx, s.db, s.dispatcher.child, ours, kind, int(s.producer.accepted.Load())*copies); err != nil {
		return err
	}
	stats, err := r.sink.Stats(ctx, kind)
	r.double(ours, stats)
	return err
}

// throughHTTP is the closed loop, and then half of what it reached, at a fixed rate.
func throughHTTP(ctx context.Context, r *run) error {
	t, err := r.lay(ctx, hundred)
	if err != nil {
		return err
	}
	return r.onStack(ctx, t, sink.OK, eachIn(100), 1, func(s *stack) error {
		if err := r.closed(ctx, s, 1, "accept_deliver"); err != nil {
			return err
		}
		if err := r.sink.ForgetLatencies(ctx); err != nil {
			return err
		}
		half, _ := r.latest("accept_deliver_per_s")
		half /= 2
		r.note("accept_deliver_half_offered_per_s", half)
		return r.timed(ctx, s, half, r.plan.half, "accept_deliver_half")
	})
}

// closed notes how many deliveries a second arrive while all producers post, the backlog that they leave included.
func (r *run) closed(ctx context.Context, s *stack, copies int, key string) (err error) {
	stop := r.observe(ctx, s.db, key, s.dispatcher, s.ingest)
	defer func() { err = errors.Join(err, stop()) }()
	m, err := s.db.measure(ctx, s.dispatcher.child, s.ingest.child)
	if err != nil {
		return err
	}
	if err := s.producer.closedLoop(ctx, r.plan.closed); err != nil {
		return err
	}
	n := int(s.producer.accepted.Load()) * copies
	if err := r.arrived(ctx, s.db, s.dispatcher.child, ours, sink.OK, n); err != nil {
		return err
	}
	used, err := m.read(ctx)
	if err != nil {
		return err
	}
	stats, err := r.sink.Stats(ctx, sink.OK)
	if err != nil {
		return err
	}
	r.note(key+"_per_s", float64(n)/time.Duration(stats.Last-m.began.UnixNano()).Seconds())
	r.noteCosts(key, used, n)
	return nil
}

// timed posts at a fixed rate and notes the latency from the intended time of posting to the arrival.
func (r *run) timed(ctx context.Context, s *stack, perSecond float64, d time.Duration, key string) (err error) {
	stop := r.observe(ctx, s.db, key, s.dispatcher, s.ingest)
	defer func() { err = errors.Join(err, stop()) }()
	if err := s.producer.fixedRate(ctx, perSecond, d); err != nil {
		return err
	}
	if err := r.arrived(ctx, s.db, s.dispatcher.child, ours, sink.OK, int(s.producer.accepted.Load())); err != nil {
		return err
	}
	l, err := r.sink.Latency(ctx, sink.OK)
	if err != nil {
		return err
	}
	r.note(key+"_p50_ms", l.P50*1000)
	r.note(key+"_p99_ms", l.P99*1000)
	return nil
}

const lowPerSecond = 100

// lowRate is 100 events a second, after a short warm-up.
func lowRate(ctx context.Context, r *run) error {
	t, err := r.lay(ctx, hundred)
	if err != nil {
		return err
	}
	return r.onStack(ctx, t, sink.OK, eachIn(100), 1, func(s *stack) error {
		if err := r.warm(ctx, s, lowPerSecond); err != nil {
			return err
		}
		return r.timed(ctx, s, lowPerSecond, r.plan.low, "latency_at_100_per_s")
	})
}

// warm posts for a moment and forgets the latencies: connections are made, endpoints and plans remembered.
func (r *run) warm(ctx context.Context, s *stack, perSecond float64) error {
	if err := s.producer.fixedRate(ctx, perSecond, r.plan.warm); err != nil {
		return err
	}
	if err := r.arrived(ctx, s.db, s.dispatcher.child, ours, sink.OK, int(s.producer.accepted.Load())); err != nil {
		return err
	}
	return r.sink.ForgetLatencies(ctx)
}

// fanOutTen is the closed loop with ten endpoints that all get every event.
func fanOutTen(ctx context.Context, r *run) error {
	t, err := r.lay(ctx, ten)
	if err != nil {
		return err
	}
	return r.onStack(ctx, t, sink.OK, eachIn(1), fanOut, func(s *stack) error { return r.closed(ctx, s, fanOut, "fan_out_10") })
}

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/bench/sink"
	"github.com/postrider/postrider/store"
)

// What one endpoint's trouble, or somebody's long transaction, does to the others.

const (
	healthyEndpoints = 20
	healthyPerSecond = 200
	hangingPerSecond = 100
)

// mixed has healthy endpoints, then a dead one, then one that never answers.
var mixed = layout{name: "mixed", groups: []endpoints{
	{kind: sink.OK, count: healthyEndpoints}, {kind: sink.Down, count: 1}, {kind: sink.Hang, count: 1},
}}

const deadEndpoint, hangingEndpoint = healthyEndpoints, healthyEndpoints + 1

// healthyAlone is what the next two are compared with.
func healthyAlone(ctx context.Context, r *run) error {
	t, err := r.lay(ctx, mixed)
	if err != nil {
		return err
	}
	return r.healthy(ctx, t, "healthy_alone", nil)
}

// besideDead has an endpoint beside them that only fails and has a million deliveries due.
func besideDead(ctx context.Context, r *run) error {
	t, err := r.prepare(ctx, "dead", migrated(func(ctx context.Context, db *database) error {
		if err := db.apply(ctx, mixed); err != nil {
			return err
		}
		return db.addDue(ctx, db.endpoints[deadEndpoint], r.plan.due)
	}))
	if err != nil {
		return err
	}
	return r.healthy(ctx, t, "healthy_beside_dead", nil)
}

// besideHanging has an endpoint beside them that gets events all the time and never answers.
func besideHanging(ctx context.Context, r *run) error {
	t, err := r.lay(ctx, mixed)
	if err != nil {
		return err
	}
	return r.healthy(ctx, t, "healthy_beside_hanging", func(ctx context.Context, s *stack) error {
		p := newProducer(s.ingest, func(int64) string { return typeOf(hangingEndpoint) })
		defer p.close()
		return p.fixedRate(ctx, hangingPerSecond, r.plan.warm+r.plan.beside)
	})
}

// healthy notes the latency of the healthy endpoints, and runs what else is going on beside them.
func (r *run) healthy(ctx context.Context, t template, key string, beside func(context.Context, *stack) error) error {
	return r.onStack(ctx, t, sink.OK, eachIn(healthyEndpoints), 1, func(s *stack) error {
		group, ctx := errgroup.WithContext(ctx)
		if beside != nil {
			group.Go(func() error { return beside(ctx, s) })
		}
		group.Go(func() error {
			if err := r.warm(ctx, s, healthyPerSecond); err != nil {
				return err
			}
			return r.timed(ctx, s, healthyPerSecond, r.plan.beside, key)
		})
		return group.Wait()
	})
}

// addDue gives an endpoint n deliveries that are due, of a thousand events.
func (db *database) addDue(ctx context.Context, e store.Endpoint, n int) error {
	if err := db.addEvents(ctx, []int64{e.ID}); err != nil {
		return err
	}
	return db.exec(ctx, fmt.Sprintf(`
		WITH e AS MATERIALIZED (SELECT array_agg(id) AS ids FROM postrider.event)
		INSERT INTO postrider.delivery (lane_id, endpoint_id, event_id, available_at)
		SELECT %d, %d, e.ids[1 + n %% 1000], now() - interval '1 min' FROM generate_series(1, %d) n, e`, e.LaneID, e.ID, n),
		fmt.Sprintf(`UPDATE postrider.lane SET due_at = now() - interval '1 min' WHERE lane_id = %d`, e.LaneID),
		`VACUUM ANALYZE postrider.delivery, postrider.lane`)
}

// addEvents adds a thousand events for deliveries that are made by SQL.
func (db *database) addEvents(ctx context.Context, endpoints []int64) error {
	const insert = `INSERT INTO postrider.event (id, namespace, namespace_uid, type, content_type, body, endpoint_ids)
		SELECT postrider.uuid7(), $1, $2, 'load.bulk', 'application/json', $3, $4 FROM generate_series(1, 1000)`
	_, err := db.conn.Exec(ctx, insert, namespace, namespaceUID, sink.Body(bodyBytes, 0), endpoints)
	return err
}

// heldSnapshot offers half of what the machine can do, first as it is, then while somebody holds a snapshot open.
func heldSnapshot(ctx context.Context, r *run) error {
	offered := r.capacity() / 2
	if offered == 0 {
		return errors.New("the baselines are needed to know what half of the load is; add baseline_http, baseline_db, baseline_insert to -only")
	}
	r.note("held_snapshot_offered_per_s", offered)
	return r.with(ctx, hundred, func(db *database) (err error) {
		if err := r.sink.Reset(ctx); err != nil {
			return err
		}
		p, err := db.dispatch(ctx)
		if err != nil {
			return err
		}
		defer p.stop()
		s, err := db.store(ctx, loadConns)
		if err != nil {
			return err
		}
		defer s.Close()
		a, err := db.accepter(ctx, s, db.endpoints)
		if err != nil {
			return err
		}
		feeding, end := context.WithCancel(ctx)
		fed := make(chan error, 1)
		go func() { fed <- a.feed(feeding, offered) }()
		err = r.whileHeld(ctx, db, p)
		end()
		if err = errors.Join(err, <-fed); err != nil {
			return err
		}
		if err := r.arrived(ctx, db, p.child, ours, sink.OK, int(a.next.Load())); err != nil {
			return err
		}
		stats, err := r.sink.Stats(ctx, sink.OK)
		r.double(ours, stats)
		return err
	})
}

// whileHeld measures without the snapshot and, at the end of the time for which it is held, with it.
func (r *run) whileHeld(ctx context.Context, db *database, p *part) error {
	if err := rest(ctx, r.plan.warm); err != nil {
		return err
	}
	if err := r.window(ctx, p, r.plan.unheld, "unheld_snapshot"); err != nil {
		return err
	}
	holder, err := pgx.Connect(ctx, db.dsn)
	if err != nil {
		return err
	}
	defer func() { _ = holder.Close(context.WithoutCancel(ctx)) }() // which releases it
	if _, err := holder.Exec(ctx, "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM postrider.lane"); err != nil {
		return err
	}
	if err := rest(ctx, r.plan.held-r.plan.unheld); err != nil {
		return err
	}
	const key = "held_snapshot"
	stop := r.observe(ctx, db, key, p)
	return errors.Join(r.window(ctx, p, r.plan.unheld, key), stop())
}

// window notes the rate of deliveries and the claims' p99 for a while.
func (r *run) window(ctx context.Context, p *part, d time.Duration, key string) error {
	before, err := p.metrics(ctx)
	if err != nil {
		return err
	}
	stats, err := r.sink.Stats(ctx, sink.OK)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := rest(ctx, d); err != nil {
		return err
	}
	after, err := r.sink.Stats(ctx, sink.OK)
	if err != nil {
		return err
	}
	took := time.Since(began).Seconds()
	m, err := p.metrics(ctx)
	if err != nil {
		return err
	}
	r.note(key+"_per_s", float64(after.Delivered-stats.Delivered)/took)
	r.note(key+"_claim_p99_ms", m.quantile(before, claimsMetric, .99)*1000)
	return nil
}

// feed accepts events at a rate until the context ends, and tells the dispatcher as ingest does.
func (a *accepter) feed(ctx context.Context, perSecond float64) error {
	const every = 10 * time.Millisecond
	tick := time.NewTicker(every)
	defer tick.Stop()
	began := time.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n := min(groupSize, int(perSecond*time.Since(began).Seconds())-int(a.next.Load()))
		if n <= 0 {
			continue
		}
		// What was begun is finished: an accept that is cut off may be in the database or not.
		whole := context.WithoutCancel(ctx)
		if err := a.accept(whole, n, 0); err != nil {
			return err
		}
		if err := a.store.Notify(whole); err != nil {
			return err
		}
	}
}

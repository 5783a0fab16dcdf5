package main

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/bench/sink"
	"github.com/postrider/postrider/store"
)

// The parts that a delivery is made of, each alone and as fast as it goes.

// httpClients is how many requests the HTTP baseline has under way: with more or fewer it is slower here.
const httpClients = 64

// baselineHTTP is H: signed POSTs of one client to the sink, without a database.
func baselineHTTP(ctx context.Context, r *run) error {
	if err := r.sink.Reset(ctx); err != nil {
		return err
	}
	p := newPoster(r.key, httpClients)
	defer p.close()
	body := sink.Body(bodyBytes, 0)
	var sent atomic.Int64
	began := time.Now()
	group, within := errgroup.WithContext(ctx)
	for n := range httpClients {
		group.Go(func() error {
			for time.Since(began) < r.plan.baseline {
				if err := p.post(within, r.url(sink.OK, n), uuid.New(), body); err != nil {
					return err
				}
				sent.Add(1)
			}
			return nil
		})
	}
	err := group.Wait()
	r.note("baseline_http_per_s", float64(sent.Load())/time.Since(began).Seconds())
	if err != nil {
		return err
	}
	return r.latencyOfOne(ctx, "baseline_post", func(ctx context.Context) error {
		return p.post(ctx, r.url(sink.OK, 0), uuid.New(), body)
	})
}

// baselineCommit is one tiny commit alone: what durability costs on this disk.
func baselineCommit(ctx context.Context, r *run) error {
	return r.with(ctx, hundred, func(db *database) error {
		if err := db.exec(ctx, `CREATE TABLE bench_commit (n int)`); err != nil {
			return err
		}
		return r.latencyOfOne(ctx, "baseline_commit", func(ctx context.Context) error {
			return db.exec(ctx, `INSERT INTO bench_commit VALUES (1)`)
		})
	})
}

// baselinePaced is two tiny commits and one POST at the rate of the latency's measurement, and from a timetable too: what they
// take where everybody who has a part in them has gone to sleep since the last ones.
func baselinePaced(ctx context.Context, r *run) error {
	if err := r.sink.Reset(ctx); err != nil {
		return err
	}
	p := newPoster(r.key, 1)
	defer p.close()
	body := sink.Body(bodyBytes, 0)
	return r.with(ctx, hundred, func(db *database) error {
		if err := db.exec(ctx, `CREATE TABLE bench_commit (n int)`); err != nil {
			return err
		}
		times := make([]time.Duration, 0, r.plan.singles)
		began := time.Now()
		for n := range r.plan.singles {
			at := began.Add(time.Duration(n) * time.Second / lowPerSecond)
			if err := untilExactly(ctx, at); err != nil {
				return err
			}
			for range 2 {
				if err := db.exec(ctx, `INSERT INTO bench_commit VALUES (1)`); err != nil {
					return err
				}
			}
			if err := p.post(ctx, r.url(sink.OK, 0), uuid.New(), body); err != nil {
				return err
			}
			times = append(times, time.Since(at))
		}
		r.noteQuantiles("two_commits_plus_post_paced", times)
		return nil
	})
}

// latencyOfOne does something again and again, one after another, and notes its quantiles.
func (r *run) latencyOfOne(ctx context.Context, key string, do func(context.Context) error) error {
	times := make([]time.Duration, 0, r.plan.singles)
	for range r.plan.singles {
		began := time.Now()
		if err := do(ctx); err != nil {
			return err
		}
		times = append(times, time.Since(began))
	}
	r.noteQuantiles(key, times)
	return nil
}

func (r *run) noteQuantiles(key string, times []time.Duration) {
	slices.Sort(times)
	r.note(key+"_p50_ms", milliseconds(times[len(times)/2]))
	r.note(key+"_p99_ms", milliseconds(times[len(times)*99/100]))
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// baselineDB is D: claim and complete through the store, with bodies and attempts, as a dispatcher whose requests take no
// time would.
func baselineDB(ctx context.Context, r *run) error {
	return r.with(ctx, hundred, func(db *database) error {
		if err := db.load(ctx, db.endpoints, r.plan.drain); err != nil {
			return err
		}
		s, err := db.store(ctx, poolConns)
		if err != nil {
			return err
		}
		defer s.Close()
		began := time.Now()
		done, err := claimAndComplete(ctx, s, r.plan.drain)
		r.note("baseline_db_per_s", float64(done)/time.Since(began).Seconds())
		return err
	})
}

// claimAndComplete has one claimer and two completers, as a dispatcher has.
func claimAndComplete(ctx context.Context, s *store.Store, n int) (int64, error) {
	const completers = 2
	var done atomic.Int64
	batches := make(chan []store.Result, completers)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer close(batches)
		for claimed := 0; claimed < n; {
			b, err := s.Claim(ctx, store.ClaimRequest{Budget: groupSize, Lanes: 128, PerLane: groupSize / 2, Lease: time.Minute})
			if err != nil {
				return err
			}
			if len(b.Claims) == 0 {
				if err := rest(ctx, time.Millisecond); err != nil {
					return err
				}
				continue
			}
			claimed += len(b.Claims)
			select {
			case batches <- resultsOf(b.Claims):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return nil
	})
	for range completers {
		group.Go(func() error {
			for batch := range batches {
				recorded, err := s.Complete(ctx, batch)
				if err != nil {
					return err
				}
				for _, one := range recorded {
					if one.Fenced || one.Err != nil {
						return errors.Join(errors.New("a completion was refused"), one.Err)
					}
				}
				done.Add(int64(len(batch)))
			}
			return nil
		})
	}
	err := group.Wait()
	return done.Load(), err
}

func resultsOf(claims []store.Claim) []store.Result {
	results := make([]store.Result, len(claims))
	for i, c := range claims {
		c.Body, c.Headers = nil, nil
		results[i] = store.Result{Claim: c, Version: c.Version, Verdict: store.Delivered, Status: 200, Duration: time.Millisecond}
	}
	return results
}

// baselineInsert is I: events accepted in bulk, past HTTP, their lanes woken.
func baselineInsert(ctx context.Context, r *run) error {
	return r.with(ctx, hundred, func(db *database) error {
		s, err := db.store(ctx, loadConns)
		if err != nil {
			return err
		}
		defer s.Close()
		a, err := db.accepter(ctx, s, db.endpoints)
		if err != nil {
			return err
		}
		began := time.Now()
		group, within := errgroup.WithContext(ctx)
		for range loaders {
			group.Go(func() error {
				for time.Since(began) < r.plan.baseline {
					if err := a.accept(within, groupSize, 0); err != nil {
						return err
					}
				}
				return nil
			})
		}
		err = group.Wait()
		r.note("baseline_insert_per_s", float64(a.next.Load())/time.Since(began).Seconds())
		return err
	})
}

package store

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/test/localstack"
)

// Behind a PgBouncer that pools by transaction everything works: sessions change under the store's feet, nothing that was
// prepared or set on one is there on the next, and what listens goes past it.
func TestEverythingWorksBehindATransactionPooler(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{})
	if err := migrations.Up(t.Context(), pg.DSN("postgres")); err != nil {
		t.Fatal(err)
	}
	pooled := localstack.StartPgBouncer(t, pg, "postgres")
	s, err := Open(t.Context(), Options{DSN: pooled, DirectDSN: pg.DSN("postgres"), MaxConns: 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	var fitting sync.WaitGroup
	for range 3 { // as the parts do, all at once
		fitting.Go(func() {
			if _, err := s.FitRole(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	fitting.Wait()
	f := &fixture{Store: s, t: t, dsn: pg.DSN("postgres")}
	// The pooler's sessions of before go.
	direct := &fixture{Store: openStore(t, f.dsn), t: t, dsn: f.dsn}
	direct.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`)
	f.until("the settings are in force", func() bool {
		stale, err := s.FitRole(t.Context())
		return err == nil && !stale
	})

	e := f.endpoint("ledger")
	woken := make(chan struct{}, 100)
	listening, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- s.Listen(listening, func() { woken <- struct{}{} })
	}()
	<-woken
	const producers, rounds = 16, 20
	var working sync.WaitGroup
	for range producers {
		working.Go(func() {
			for range rounds {
				f.post("", 1, e)
			}
		})
	}
	working.Wait()
	f.wake("", e)
	if err := s.Notify(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case <-woken:
	case <-time.After(10 * time.Second):
		t.Error("nobody was woken")
	}
	var mutex sync.Mutex
	done := 0
	for range 4 {
		working.Go(func() {
			for {
				batch, err := s.Claim(t.Context(), ClaimRequest{Budget: 25, Lanes: 10, PerLane: 25, Lease: time.Minute})
				if err != nil {
					t.Error(err)
					return
				}
				if len(batch.Claims) == 0 {
					return
				}
				results := make([]Result, 0, len(batch.Claims))
				for _, c := range batch.Claims {
					results = append(results, Result{Claim: c, Version: e.Version, Verdict: Delivered, Status: 200})
				}
				if _, err := s.Complete(t.Context(), results); err != nil {
					t.Error(err)
					return
				}
				mutex.Lock()
				done += len(results)
				mutex.Unlock()
			}
		})
	}
	working.Wait()
	if left := ask[int](f, `SELECT count(*) FROM postrider.delivery`); done != producers*rounds || left != 0 {
		t.Errorf("%d deliveries were recorded and %d are left, want %d and none", done, left, producers*rounds)
	}
	if _, err := s.MakeDays(t.Context()); err != nil {
		t.Error(err)
	}
	if err := dropDays(t.Context(), s); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("listening ended with %v, want its context's end", err)
	}
}

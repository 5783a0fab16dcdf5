package ingest

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/postrider/postrider/migrations"
	"github.com/postrider/postrider/test/localstack"
)

// make accept-load runs the long form of the tests in this file, for a minute and through HTTP.
var loadFor = flag.Duration("load", 5*time.Second, "how long 1,000 producers post while Postgres is restarted twice")

// tally is what some producers were answered.
type tally struct {
	mu       sync.Mutex
	accepted [][]byte // ids
	refused  int
	wrong    []string
	took     []time.Duration
	progress atomic.Int64 // accepted so far
}

func (c *tally) merge(o *tally) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.accepted, c.took, c.wrong = append(c.accepted, o.accepted...), append(c.took, o.took...), append(c.wrong, o.wrong...)
	c.refused += o.refused
}

// quantile of the times of the accepted.
func (c *tally) quantile(q float64) time.Duration {
	if len(c.took) == 0 {
		return 0
	}
	slices.Sort(c.took)
	return c.took[int(q*float64(len(c.took)-1))]
}

// produce has producers post one event after another until the context ends. Whoever is refused pauses a little.
func (c *tally) produce(ctx context.Context, post func() (status int, id []byte, detail string), producers int) {
	var group sync.WaitGroup
	for range producers {
		group.Go(func() {
			own := &tally{}
			for ctx.Err() == nil {
				began := time.Now()
				status, id, detail := post()
				switch {
				case status == http.StatusAccepted:
					own.accepted, own.took = append(own.accepted, id), append(own.took, time.Since(began))
					c.progress.Add(1)
					continue
				case status == http.StatusServiceUnavailable:
					own.refused++
				default:
					own.wrong = append(own.wrong, detail)
				}
				time.Sleep(50*time.Millisecond + rand.N(50*time.Millisecond)) // the client's pace, not a wait
			}
			c.merge(own)
		})
	}
	group.Wait()
}

const loaded = `{"type":"render.done","payload":{"frame":1,"of":"` + "0123456789abcdef0123456789abcdef0123456789abcdef" + `"}}`

// poster returns a try without the check of the contract, which takes longer than the request.
func (r *rig) poster(path string) func() (status int, id []byte, detail string) {
	return func() (int, []byte, string) { return r.post(path) }
}

func (r *rig) post(path string) (status int, id []byte, detail string) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodPost, r.url+path, strings.NewReader(loaded))
	if err != nil {
		return 0, nil, err.Error()
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := r.client.Do(request)
	if err != nil {
		return 0, nil, err.Error()
	}
	defer func() { _ = response.Body.Close() }() // it was read
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, nil, err.Error()
	}
	if response.StatusCode != http.StatusAccepted {
		if response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") == "" {
			return 0, nil, "503 without Retry-After"
		}
		return response.StatusCode, nil, string(text)
	}
	var answer struct{ ID uuid.UUID }
	if err := json.Unmarshal(text, &answer); err != nil {
		return 0, nil, err.Error()
	}
	return response.StatusCode, answer.ID[:], ""
}

// durable is a Postgres of the test's own with data on disk, and a tenant in it that has one endpoint.
func durable(t *testing.T) (*localstack.Postgres, *tenant) {
	t.Helper()
	postgres := localstack.StartPostgres(t, localstack.PostgresOptions{Durable: true})
	dsn, err := postgres.CreateDatabase(t.Context(), "postrider")
	if err != nil {
		t.Fatal(err)
	}
	if err := migrations.Up(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	s, pool := openStore(t, dsn, 10)
	n := newTenantIn(t, s, pool, "billing", uuid.NewString())
	n.endpoint(t, "ledger", "*")
	return postgres, n
}

// loadedServer has room for all producers, and one event a commit where shared is false.
func loadedServer(t *testing.T, n *tenant, shared bool) *rig {
	t.Helper()
	return start(t, options{store: n.store, quiet: true, config: func(c *Config) {
		c.MaxInFlight = 2000
		if !shared {
			c.groupEvents, c.committers = 1, 10
		}
	}})
}

// Acceptance: 1,000 producers at once over a pool of 10 connections, while Postgres is restarted twice: every 202 is found
// in the database, nothing but 503 with Retry-After beside it, and memory is flat. Not parallel: it looks at the memory of
// the whole process.
func TestAThousandProducersWhilePostgresIsRestartedTwice(t *testing.T) { //nolint:paralleltest // measures memory
	postgres, n := durable(t)
	r := loadedServer(t, n, true)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	all := &tally{}
	var load sync.WaitGroup
	load.Go(func() { all.produce(ctx, r.poster(n.path()), 1000) })
	defer load.Wait()
	defer cancel()
	began := time.Now()
	pass := func(part float64) { // of the load's time, and a number of events, for a machine that has much else to do
		from, most := all.progress.Load(), time.Now().Add(time.Minute+*loadFor)
		for until := time.Now().Add(time.Duration(part * float64(*loadFor))); time.Now().Before(until) || all.progress.Load() < from+300; {
			if time.Now().After(most) {
				t.Fatalf("%d were accepted in a minute", all.progress.Load()-from)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	pass(0.2)
	before := allocated()
	pass(0.15)
	if err := postgres.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pass(0.2)
	postgres.Kill()
	if err := postgres.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	pass(0.3)
	cancel()
	load.Wait()
	// What the producers remember grows: an id and a time each.
	const remembered, most = 100, 48 << 20
	if grown := allocated() - before - remembered*int64(len(all.accepted)); grown > most {
		t.Errorf("%d bytes more are held at the end, want %d at most", grown, most)
	}
	if len(all.wrong) > 0 {
		t.Errorf("%d answers were neither 202 nor 503, such as: %s", len(all.wrong), all.wrong[0])
	}
	checkKept(t, n, all)
	t.Logf("%d accepted (%.0f/s), %d refused, %.0f recovered; p50 %v, p99 %v", len(all.accepted),
		float64(len(all.accepted))/time.Since(began).Seconds(), all.refused, testutil.ToFloat64(r.metrics.recovered), all.quantile(0.5), all.quantile(0.99))
}

// checkKept demands each accepted event once, with its delivery.
func checkKept(t *testing.T, n *tenant, all *tally) {
	t.Helper()
	conn, err := n.pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	if _, err := conn.Exec(t.Context(), `CREATE TEMPORARY TABLE answered (id uuid)`); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.CopyFrom(t.Context(), pgx.Identifier{"answered"}, []string{"id"},
		pgx.CopyFromSlice(len(all.accepted), func(i int) ([]any, error) { return []any{all.accepted[i]}, nil })); err != nil {
		t.Fatal(err)
	}
	var once, found, delivered int
	if err := conn.QueryRow(t.Context(), `SELECT count(DISTINCT id),
			(SELECT count(*) FROM answered JOIN postrider.event USING (id)),
			(SELECT count(*) FROM answered a JOIN postrider.delivery d ON d.event_id = a.id) FROM answered`).Scan(&once, &found, &delivered); err != nil {
		t.Fatal(err)
	}
	if want := len(all.accepted); once != want || found != want || delivered != want {
		t.Errorf("of %d answers of 202, %d have an id of their own, %d an event, %d a delivery", want, once, found, delivered)
	}
}

func allocated() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// Sharing commits against one event a commit, over the same pool of 10 connections, interleaved. The short form leaves
// HTTP out: the race detector makes that what is measured.
func TestSharedCommitsAcceptSeveralTimesAsMuch(t *testing.T) { //nolint:paralleltest // measures
	_, n := durable(t)
	long := *loadFor >= time.Minute
	rounds, each, kinds := 1, time.Second, map[int]float64{200: 1.3}
	if long {
		rounds, each, kinds = 5, 3*time.Second, map[int]float64{1: 0, 32: 0, 1000: 3}
	}
	run := func(shared bool, producers int) (all *tally, rate float64) {
		r := loadedServer(t, n, shared)
		post := r.poster(n.path())
		if !long {
			post = func() (int, []byte, string) {
				e := event{eventType: "render.done", contentType: mediaTypeJSON, payload: []byte(loaded)}
				o := r.accepter.accept(t.Context(), []submission{{namespace: n.name, event: e}})[0]
				if o.err != nil {
					return storeProblem(o.err).Status, nil, o.err.Error()
				}
				return http.StatusAccepted, o.id[:], ""
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		all = &tally{}
		var load sync.WaitGroup
		load.Go(func() { all.produce(ctx, post, producers) })
		measure := func() (int64, time.Time) { return all.progress.Load(), time.Now() }
		time.Sleep(each / 3) // connections are made, and the processor caches warm
		first, from := measure()
		time.Sleep(each)
		last, to := measure()
		cancel()
		load.Wait()
		if len(all.wrong) > 0 || len(all.accepted) == 0 {
			t.Fatalf("%d accepted; %d wrong answers %.200q", len(all.accepted), len(all.wrong), all.wrong)
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		return all, float64(last-first) / to.Sub(from).Seconds()
	}
	for _, producers := range slices.Sorted(maps.Keys(kinds)) {
		var more, wait []float64 // ratios, one a round
		for range rounds {
			a, first := run(false, producers)
			b, second := run(true, producers)
			c, third := run(true, producers)
			d, fourth := run(false, producers)
			alone, together := (first+fourth)/2, (second+third)/2
			more = append(more, together/alone)
			wait = append(wait, float64(b.quantile(0.5)+c.quantile(0.5))/float64(a.quantile(0.5)+d.quantile(0.5)))
			t.Logf("%d producers: alone %.0f/s, p50 %v, p99 %v; together %.0f/s, p50 %v, p99 %v", producers,
				alone, a.quantile(0.5), a.quantile(0.99), together, b.quantile(0.5), b.quantile(0.99))
		}
		slices.Sort(more)
		slices.Sort(wait)
		t.Logf("%d producers, together to alone: accepted %.2f (%.2f to %.2f), p50 %.2f (%.2f to %.2f)", producers,
			more[rounds/2], more[0], more[rounds-1], wait[rounds/2], wait[0], wait[rounds-1])
		if more[rounds/2] < kinds[producers] {
			t.Errorf("%d producers: %.2f times as much is accepted, want %.1f at least", producers, more[rounds/2], kinds[producers])
		}
	}
}

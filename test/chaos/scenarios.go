package chaos

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/postrider/postrider/test/check"
)

// rate is ten endpoints that are owed more than their rate allows.
func rate() Scenario {
	s := Scenario{
		Name: "rate", Title: "ten endpoints at 100 a second, four dispatchers: never more, and hardly less",
		Dispatchers: 4, Ingests: 1,
		Load:  Load{Workers: 16, Rate: 130, Types: []string{"a.one"}},
		After: rateIsUsed,
	}
	for i := range 10 {
		s.Endpoints = append(s.Endpoints, Endpoint{Name: fmt.Sprintf("rated-%d", i), Types: []string{"*"}, Concurrency: 64, Rate: 100, Burst: 10})
	}
	return s
}

// rateIsUsed looks at how much of the rate was used once there was a backlog.
func rateIsUsed(_ context.Context, w *world, record check.Record, _ check.Report) ([]string, error) {
	const warmUp, least = 3 * time.Second, 0.97
	var first, last time.Time
	for _, f := range record.Facts {
		if f.Kind == check.Sending {
			if first.IsZero() {
				first = f.At.Add(warmUp)
			}
			last = f.At
		}
	}
	whole := last.Sub(first).Seconds()
	if whole <= 0 {
		return []string{"the load was too short to tell how much of the rate was used"}, nil
	}
	used := map[string]float64{}
	for _, f := range record.Facts {
		if f.Kind == check.Arrived && !f.At.Before(first) && f.At.Before(last) {
			used[f.Endpoint]++
		}
	}
	var wrong []string
	sum, worst := 0.0, math.Inf(1)
	for _, e := range w.scenario.Endpoints {
		part := used[e.Name] / (float64(e.Rate) * whole)
		sum, worst = sum+part, min(worst, part)
	}
	mean := sum / float64(len(w.scenario.Endpoints))
	w.say("of the rate was used %.1f %%, by the worst endpoint %.1f %%, in %.0f seconds", 100*mean, 100*worst, whole)
	if mean < least {
		wrong = append(wrong, fmt.Sprintf("only %.1f %% of the rate was used", 100*mean))
	}
	return wrong, nil
}

// concurrency is narrow endpoints with slow receivers, and dispatchers that are killed while they are at the limit.
func concurrency() Scenario {
	s := Scenario{
		Name: "concurrency", Title: "never more than maxConcurrency at once, though dispatchers are killed at the limit",
		Dispatchers: 4, Ingests: 1,
		Load:   Load{Workers: 8, Rate: 30, Types: []string{"a.one"}},
		Faults: Faults{Dispatchers: 8 * time.Second, Wire: 20 * time.Second},
		After: func(_ context.Context, w *world, _ check.Record, report check.Report) (wrong []string, err error) {
			for _, e := range w.scenario.Endpoints {
				if got := report.Endpoints[e.Name].Concurrency; got != e.Concurrency {
					wrong = append(wrong, fmt.Sprintf("%s had at most %d requests at once, want exactly its %d: the limit was not reached, or passed", e.Name, got, e.Concurrency))
				}
			}
			return wrong, nil
		},
	}
	for _, n := range []int{1, 2, 5} {
		s.Endpoints = append(s.Endpoints, Endpoint{
			Name: fmt.Sprintf("narrow-%d", n), Types: []string{"*"}, Concurrency: n, Slow: time.Duration(n) * 45 * time.Millisecond, Trouble: 0.3,
		})
	}
	return s
}

// circuitScenario is an endpoint that is dead for the first half of the load, beside a healthy one.
func circuitScenario() Scenario {
	return Scenario{
		Name: "circuit", Title: "a dead endpoint costs a request per cooldown, and nothing of its budget",
		Dispatchers: 4, Ingests: 1,
		Load: Load{Workers: 8, Rate: 40, Types: []string{"a.one"}},
		Endpoints: []Endpoint{
			{Name: "dead", Types: []string{"*"}, Concurrency: 4, Threshold: 8, Cooldown: time.Second, Dead: 0.5},
			{Name: "healthy", Types: []string{"*"}, Concurrency: 16},
		},
		After: circuitHeld,
	}
}

// circuitHeld looks at the dead endpoint: how many requests it cost, how soon its recovery was noticed, and whether the
// attempts that were recorded are the requests that came.
func circuitHeld(ctx context.Context, w *world, record check.Record, _ check.Report) ([]string, error) {
	e := w.scenario.Endpoints[0]
	var wrong []string
	requests, whileDead := 0, 0
	var began, lastFailure, firstSuccess time.Time
	for _, f := range record.Facts {
		switch {
		case f.Kind == check.Sending && began.IsZero():
			began = f.At
		case f.Kind == check.Answered && f.Endpoint == e.Name:
			requests++
			if f.Status/100 != 2 {
				whileDead++
				lastFailure = f.At
			} else if firstSuccess.IsZero() {
				firstSuccess = f.At
			}
		}
	}
	dead := lastFailure.Sub(began)
	// Those that open it, those under way by then, and a probe per cooldown, which doubles once.
	most := e.Threshold + e.Concurrency + 2 + int(dead/(2*e.Cooldown))
	took := firstSuccess.Sub(lastFailure)
	w.say("dead for %s: %d requests, at most %d are allowed; the first success came %s after the last failure", dead.Round(time.Millisecond), whileDead, most, took.Round(time.Millisecond))
	if whileDead > most {
		wrong = append(wrong, fmt.Sprintf("the dead endpoint got %d requests, over the %d allowed", whileDead, most))
	}
	// The recovery lies between the last failure and a cooldown later.
	if took > 2*e.Cooldown+2*time.Second {
		wrong = append(wrong, fmt.Sprintf("the recovery was noticed %s after the last failure, over a cooldown", took))
	}
	db, err := w.connect(ctx)
	if err != nil {
		return wrong, err
	}
	defer func() { _ = db.Close(ctx) }()
	var attempts, highest, deliveries int
	if err := db.QueryRow(ctx, `SELECT count(*), coalesce(max(a.number), 0), count(DISTINCT a.event_id) FROM postrider.attempt a JOIN postrider.endpoint e USING (endpoint_id) WHERE e.name = $1`,
		e.Name).Scan(&attempts, &highest, &deliveries); err != nil {
		return wrong, fmt.Errorf("count the attempts: %w", err)
	}
	w.say("%d deliveries took %d attempts, the highest number is %d; %d requests came", deliveries, attempts, highest, requests)
	if attempts != requests {
		wrong = append(wrong, fmt.Sprintf("%d attempts are recorded and %d requests came: the difference was spent on nothing", attempts, requests))
	}
	return wrong, nil
}

// ordering is many keys, failures and kills.
func ordering() Scenario {
	return Scenario{
		Name: "ordering", Title: "1,000 keys of 100 events, four dispatchers, failures and kills: order holds for each key",
		Dispatchers: 4, Ingests: 2,
		Load: Load{Workers: 64, Keys: 1000, Count: 100_000, Types: []string{"a.one"}},
		Endpoints: []Endpoint{
			{Name: "ordered", Types: []string{"*"}, Concurrency: 256, Ordered: true, Timeout: timeoutLimit, Trouble: 0.5},
		},
		Faults: Faults{Dispatchers: 12 * time.Second, Ingest: 30 * time.Second},
	}
}

// rolling stops processes as an upgrade does, so that nothing explains a repeat but the receiver.
func rolling() Scenario {
	return Scenario{
		Name: "rolling", Title: "dispatchers and ingest are told to stop under load: nothing is repeated",
		Dispatchers: 4, Ingests: 2,
		Load: Load{Workers: 32, Keys: 500, Types: []string{"a.one"}},
		Endpoints: []Endpoint{
			{Name: "ordered", Types: []string{"*"}, Concurrency: 64, Ordered: true, Timeout: timeoutLimit, Slow: 30 * time.Millisecond},
			{Name: "plain", Types: []string{"*"}, Concurrency: 64, Timeout: timeoutLimit, Slow: 30 * time.Millisecond},
		},
		Faults: Faults{Dispatchers: 6 * time.Second, Ingest: 10 * time.Second, Gently: true},
	}
}

// alone is an installation that loses the Kubernetes API before the first event, and never gets it back.
func alone() Scenario {
	return Scenario{
		Name: "alone", Title: "without the Kubernetes API: delivering, partitions, expiry and sweeps go on",
		Dispatchers: 2, Ingests: 1,
		Load: Load{Workers: 8, Keys: 20, Rate: 40, Types: []string{"a.one", "b.two"}},
		Endpoints: []Endpoint{
			{Name: "ordered", Types: []string{"a.*"}, Concurrency: 16, Ordered: true, Trouble: 1},
			{Name: "expiring", Types: []string{"b.*"}, Concurrency: 4, Threshold: 3, Cooldown: 20 * time.Second, MaxDuration: 4 * time.Second, Dead: 1},
			{Name: "quiet", Types: []string{"quiet.*"}, Concurrency: 1},
		},
		Faults: Faults{Dispatchers: 10 * time.Second, Postgres: 15 * time.Second},
		Before: func(ctx context.Context, w *world) error {
			// Ingest goes on letting in those whom it let in lately.
			if err := w.postOne(ctx, "a.first"); err != nil {
				return err
			}
			w.kube.Stop()
			w.say("the Kubernetes API is stopped, for good")
			return nil
		},
		During: partitionsAndSweepsGoOn,
		After: func(_ context.Context, w *world, record check.Record, report check.Report) (wrong []string, err error) {
			expired := 0
			for _, f := range record.Facts {
				if f.Kind == check.Died && f.Problem == "Expired" {
					expired++
				}
			}
			w.say("%d deliveries expired behind an open circuit", expired)
			if expired == 0 {
				wrong = append(wrong, "nothing expired behind the open circuit")
			}
			return wrong, nil
		},
	}
}

// partitionsAndSweepsGoOn takes away partitions of days to come and loses a touch, and waits until both are mended.
func partitionsAndSweepsGoOn(ctx context.Context, w *world) error {
	try := func(what, query string, args ...any) error {
		return until(ctx, time.Minute, what, func(ctx context.Context) error {
			db, err := w.connect(ctx) // Postgres is taken away in between
			if err != nil {
				return err
			}
			defer func() { _ = db.Close(ctx) }()
			var done bool
			if err := db.QueryRow(ctx, query, args...).Scan(&done); err != nil {
				return err
			}
			if !done {
				return errors.New("not yet")
			}
			return nil
		})
	}
	exec := func(query string) error {
		return until(ctx, time.Minute, query, func(ctx context.Context) error {
			db, err := w.connect(ctx)
			if err != nil {
				return err
			}
			defer func() { _ = db.Close(ctx) }()
			_, err = db.Exec(ctx, query)
			return err
		})
	}
	const days = `SELECT count(*) >= 4 FROM pg_inherits WHERE inhparent = 'postrider.event'::regclass AND
		inhrelid::regclass::text >= 'postrider.event_' || to_char((now() AT TIME ZONE 'UTC')::date, 'YYYYMMDD')`
	if err := exec(`DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT inhrelid::regclass FROM pg_inherits WHERE inhparent = 'postrider.event'::regclass AND
			inhrelid::regclass::text > 'postrider.event_' || to_char((now() AT TIME ZONE 'UTC')::date + 1, 'YYYYMMDD')
		LOOP EXECUTE 'DROP TABLE ' || name; END LOOP; END $$`); err != nil {
		return err
	}
	// The chore looks once an hour, and when a dispatcher starts.
	if err := w.replicas[1].end(ctx, kill, 0); err != nil {
		return err
	}
	if err := try("the partitions of the days to come are made again", days); err != nil {
		return err
	}
	w.say("partitions that were missing are made again")
	// A touch that is lost with its process leaves a lane that nobody looks at. It is held until the touch has come, which is
	// then undone.
	const quiet = ` FROM postrider.endpoint e WHERE e.name = 'quiet' AND l.endpoint_id = e.endpoint_id`
	if err := exec("UPDATE postrider.lane l SET paused = true" + quiet); err != nil {
		return err
	}
	if err := w.postOne(ctx, "quiet.one"); err != nil {
		return err
	}
	if err := try("the lane is touched", "SELECT l.due_at < 'infinity' FROM postrider.lane l JOIN postrider.endpoint e USING (endpoint_id) WHERE e.name = 'quiet'"); err != nil {
		return err
	}
	if err := exec("UPDATE postrider.lane l SET paused = false, due_at = 'infinity'" + quiet); err != nil {
		return err
	}
	if err := try("the sweep finds a lane that nobody looks at", `SELECT NOT EXISTS (
		SELECT FROM postrider.delivery d JOIN postrider.endpoint e USING (endpoint_id) WHERE e.name = 'quiet')`); err != nil {
		return err
	}
	w.say("a lane that nobody looked at was swept")
	return nil
}

// postOne posts an event of a type, from a producer of its own.
func (w *world) postOne(ctx context.Context, eventType string) error {
	one := check.Load{
		Name: eventType, URL: "http://" + w.service.address(), TokenFile: w.token, Namespace: namespace, Types: []string{eventType},
		Workers: 1, Count: 1, Journal: w.posts,
	}
	return one.Run(ctx)
}

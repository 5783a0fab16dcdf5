package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/test/check"
)

// maxShown bounds what is listed of a kind.
const maxShown = 10

// drain waits until the queue is empty, and returns what is left when patience is over.
func (w *world) drain(ctx context.Context, patience time.Duration) (int, error) {
	db, err := w.connect(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close(ctx) }()
	left := 0
	err = until(ctx, patience, "the queue is empty", func(ctx context.Context) error {
		if err := db.QueryRow(ctx, "SELECT count(*) FROM postrider.delivery").Scan(&left); err != nil || left == 0 {
			return err
		}
		return errors.New("it is not")
	})
	if left > 0 {
		err = nil // the verdict tells of them
	}
	return left, err
}

// connect connects past the wires.
func (w *world) connect(ctx context.Context) (*pgx.Conn, error) {
	db, err := pgx.Connect(ctx, w.postgres.DSN("postrider"))
	if err != nil {
		return nil, fmt.Errorf("look into the database: %w", err)
	}
	return db, nil
}

// What must not be left in the database, each with a query of one text column. $1: the endpoints whose deliveries may die,
// which leave an open circuit behind.
var remains = []struct{ what, query string }{
	{"a delivery is left", `
SELECT format('delivery %s of event %s on lane %s (%s): attempt %s, available at %s, key %s, claim %s until %s; now %s', d.id, d.event_id, d.lane_id, e.name, d.attempt,
	d.available_at, coalesce(d.ordering_key, 'none'), coalesce(d.claim_token::text, 'none'), coalesce(d.lease_until::text, 'ever'), now())
FROM postrider.delivery d JOIN postrider.endpoint e USING (endpoint_id) WHERE $1::text[] IS NOT NULL ORDER BY d.id`},
	{"a lane is not at rest", `
SELECT format('lane %s (%s): in flight %s, lease until %s, probe %s, open until %s, failures %s', l.lane_id, e.name, l.inflight,
	coalesce(l.lease_end::text, 'none'), coalesce(l.probe_token::text, 'none'), coalesce(l.open_until::text, 'closed'), l.fails)
FROM postrider.lane l JOIN postrider.endpoint e USING (endpoint_id)
WHERE l.inflight <> 0 OR l.lease_end IS NOT NULL OR l.probe_token IS NOT NULL
	OR l.open_until IS NOT NULL AND e.name <> ALL($1::text[])`},
	{"a delivery was recorded as delivered twice", `
SELECT format('event %s at %s: %s times', a.event_id, e.name, count(*))
FROM postrider.attempt a JOIN postrider.endpoint e USING (endpoint_id)
WHERE a.outcome = 'delivered' AND $1::text[] IS NOT NULL GROUP BY a.event_id, e.name, a.replay_no HAVING count(*) > 1`},
}

// verdict checks the journals and the database and returns what is wrong.
func (w *world) verdict(ctx context.Context) ([]string, error) {
	db, err := w.connect(ctx)
	if err != nil {
		return w.problems, err
	}
	defer func() { _ = db.Close(ctx) }()
	if err := errors.Join(w.bury(ctx, db), w.giveUp(ctx, db)); err != nil {
		return w.problems, err
	}
	record, err := check.Read(w.journal("posts"), w.journal("arrivals"), w.journal("disruptions"))
	if err != nil {
		return w.problems, err
	}
	report := check.Check(record, w.checks())
	var text bytes.Buffer
	report.Print(&text)
	_, _ = w.out.Write(text.Bytes())
	w.mutex.Lock()
	found := append([]string{}, w.problems...)
	w.say("processes that ended by themselves: %d", w.exits)
	w.mutex.Unlock()
	w.listRepeats(report)
	if !report.OK() {
		found = append(found, report.Details...)
	}
	mortal := []string{}
	for _, e := range w.scenario.Endpoints {
		if e.MaxDuration > 0 {
			mortal = append(mortal, e.Name)
		}
	}
	for _, r := range remains {
		rows, err := db.Query(ctx, r.query, mortal)
		if err != nil {
			return found, fmt.Errorf("look whether %s: %w", r.what, err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return found, fmt.Errorf("look whether %s: %w", r.what, err)
		}
		for i, line := range lines {
			if i == maxShown {
				found = append(found, fmt.Sprintf("%s: %d more", r.what, len(lines)-maxShown))
				break
			}
			found = append(found, r.what+": "+line)
		}
	}
	missing, err := missingEvents(ctx, db, record)
	if err != nil {
		return found, err
	}
	found = append(found, missing...)
	if w.scenario.After != nil {
		more, err := w.scenario.After(ctx, w, record, report)
		if err != nil {
			return found, err
		}
		found = append(found, more...)
	}
	for i, event := range report.Offenders {
		if i == maxShown {
			break
		}
		if err := w.history(ctx, db, record, event); err != nil {
			return found, err
		}
	}
	return found, nil
}

// checks are the options of the check that follow from the scenario.
func (w *world) checks() check.Options {
	o := check.Options{Timeout: timeoutLimit, Recording: 4 * time.Second, Lag: time.Second, Circuits: map[string]check.Circuit{}}
	for _, e := range w.scenario.Endpoints {
		o.Timeout = min(o.Timeout, e.timeout())
		if e.Threshold > 0 {
			o.Circuits[e.Name] = check.Circuit{Threshold: e.Threshold, Cooldown: e.Cooldown}
		}
	}
	return o
}

// bury notes the dead letters, of which there may be some only where the scenario says so.
func (w *world) bury(ctx context.Context, db *pgx.Conn) error {
	rows, err := db.Query(ctx, `SELECT d.event_id::text, e.name, d.reason, d.died_at, d.attempts
FROM postrider.dead_letter d JOIN postrider.endpoint e USING (endpoint_id)`)
	if err != nil {
		return fmt.Errorf("look for dead letters: %w", err)
	}
	f, reason, attempts := check.Fact{Kind: check.Died}, "", 0
	_, err = pgx.ForEachRow(rows, []any{&f.Event, &f.Endpoint, &reason, &f.At, &attempts}, func() error {
		f.Problem = reason
		if w.endpoints[f.Endpoint] == nil || w.endpoints[f.Endpoint].MaxDuration == 0 {
			w.wrong("event %s was given up at %s after %d attempts: %s", f.Event, f.Endpoint, attempts, reason)
		}
		return w.disruptions.Write(f)
	})
	return err
}

// giveUp notes the attempts that had no answer in the endpoint's whole timeout, by the record of who made them.
func (w *world) giveUp(ctx context.Context, db *pgx.Conn) error {
	rows, err := db.Query(ctx, `SELECT a.event_id::text, e.name, a.number, a.at
FROM postrider.attempt a JOIN postrider.endpoint e USING (endpoint_id)
WHERE a.reason = 'Timeout' AND a.duration_ms >= extract(epoch FROM e.timeout) * 1000`)
	if err != nil {
		return fmt.Errorf("look for attempts without an answer: %w", err)
	}
	f := check.Fact{Kind: check.GaveUp}
	_, err = pgx.ForEachRow(rows, []any{&f.Event, &f.Endpoint, &f.Attempt, &f.At}, func() error { return w.disruptions.Write(f) })
	return err
}

// missingEvents are those that were acknowledged and are not in the database.
func missingEvents(ctx context.Context, db *pgx.Conn, record check.Record) ([]string, error) {
	var ids []uuid.UUID
	for _, f := range record.Facts {
		if f.Kind == check.Accepted {
			id, err := uuid.Parse(f.Event)
			if err != nil {
				return nil, fmt.Errorf("the id of an accepted event: %w", err)
			}
			ids = append(ids, id)
		}
	}
	rows, err := db.Query(ctx, "SELECT i::text FROM unnest($1::uuid[]) AS t(i) WHERE NOT EXISTS (SELECT FROM postrider.event WHERE id = i)", ids)
	if err != nil {
		return nil, fmt.Errorf("look for the accepted events: %w", err)
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("look for the accepted events: %w", err)
	}
	for i, id := range missing {
		missing[i] = "event " + id + " was acknowledged and is not in the database"
	}
	return missing[:min(len(missing), maxShown)], nil
}

// listRepeats tells why deliveries came again.
func (w *world) listRepeats(report check.Report) {
	for i, line := range report.Repeated {
		if i == 3*maxShown {
			w.say("… and %d more repeats", len(report.Repeated)-i)
			return
		}
		w.say("repeated: %s", line)
	}
}

// history tells all that is known of an event.
func (w *world) history(ctx context.Context, db *pgx.Conn, record check.Record, event string) error {
	w.say("history of event %s:", event)
	post := ""
	for _, f := range record.Facts {
		if f.Event == event && f.Post != "" {
			post = f.Post
			break
		}
	}
	for _, f := range record.Facts {
		if f.Event != event && (post == "" || f.Post != post) {
			continue
		}
		line, err := json.Marshal(f)
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(w.out, "    %s\n", line)
	}
	rows, err := db.Query(ctx, `SELECT format('attempt %s at %s of %s: %s %s %s, took %s ms, again at %s', a.number, e.name, a.at, a.outcome, a.status, a.reason, a.duration_ms, a.retry_at)
FROM postrider.attempt a JOIN postrider.endpoint e USING (endpoint_id) WHERE a.event_id = $1::uuid ORDER BY a.at`, event)
	if err != nil {
		return fmt.Errorf("look for the attempts: %w", err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return fmt.Errorf("look for the attempts: %w", err)
	}
	_, _ = fmt.Fprintf(w.out, "    %s\n", strings.Join(lines, "\n    "))
	return nil
}

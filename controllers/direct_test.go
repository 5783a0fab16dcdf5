package controllers

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/postrider/postrider/api/v1alpha1"
)

// direct is the reconciler without a manager: it works when told to, reads from the API server itself, and its time is
// the test's.
type direct struct {
	*world
	part       *part
	reconciler *Reconciler
	feed       *feed
	events     *events.FakeRecorder
	now        time.Time
}

func (w *world) direct(alter ...func(*Config)) *direct {
	w.t.Helper()
	d := &direct{world: w, now: time.Now().Truncate(time.Second), events: events.NewFakeRecorder(100)}
	c := w.config()
	c.clock = func() time.Time { return d.now }
	for _, a := range alter {
		a(&c)
	}
	w.must(c.Validate())
	d.part = newPart(w.store, w.keyring, w.policy, c)
	d.reconciler = d.part.reconciler(w.client, w.client)
	d.reconciler.recorder = d.events
	d.feed = &feed{store: w.store, facts: d.part.facts, ownership: d.part.ownership, metrics: d.part.metrics, review: newReview(&d.part.settings), log: c.logger()}
	d.claim()
	return d
}

// claim claims the database, as ownership does.
func (d *direct) claim() {
	d.t.Helper()
	o := d.part.ownership
	o.store, o.live, o.keyring, o.log = d.store, d.client, d.keyring, d.part.config.logger()
	o.installation.Namespace, o.installation.Release = d.part.config.Namespace, d.part.config.release()
	o.takeOver = d.part.config.TakeOver
	d.must(o.Start(patience(d.t)))
}

// reconcile looks at one object, after the feed looked at the store.
func (d *direct) reconcile(name string) ctrl.Result {
	d.t.Helper()
	d.must(d.feed.read(patience(d.t)))
	result, err := d.reconciler.Reconcile(patience(d.t), ctrl.Request{NamespacedName: d.key(name)})
	d.must(err)
	return result
}

// status reconciles and checks the conditions.
func (d *direct) status(name, want string) v1alpha1.WebhookEndpointStatus {
	d.t.Helper()
	d.reconcile(name)
	e := d.get(name)
	if err := conditionsAre(e, want); err != nil {
		d.t.Fatal(err)
	}
	return e.Status
}

// told lists the Events so far: "Normal Synced …".
func (d *direct) told() []string {
	var list []string
	for {
		select {
		case e := <-d.events.Events:
			list = append(list, e)
		default:
			return list
		}
	}
}

func message(s v1alpha1.WebhookEndpointStatus, kind string) string {
	return conditionOf(s, kind).Message
}

func containsAll(text string, parts ...string) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) })
}

func TestABrokenSpecIsHeldAndStalled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.direct(func(c *Config) { c.Limits.Timeout = 20 * time.Second })
	w.signedBy("signing")
	for name, test := range map[string]struct {
		alter  func(*v1alpha1.WebhookEndpointSpec)
		reason string
	}{
		"limit":  {func(s *v1alpha1.WebhookEndpointSpec) { s.Timeout = "25s" }, "LimitExceeded"},
		"policy": {func(s *v1alpha1.WebhookEndpointSpec) { s.URL = "https://169.254.169.254/latest" }, "URLNotAllowed"},
		"contradiction": {
			func(s *v1alpha1.WebhookEndpointSpec) {
				s.Retry = &v1alpha1.Retry{Backoff: &v1alpha1.Backoff{Base: "12h"}}
			}, "InvalidSpec",
		},
	} {
		w.create(name)
		d.status(name, ready)
		w.change(name, test.alter)
		status := d.status(name, "Ready=False/"+test.reason+" Stalled=True/"+test.reason)
		if a, b := message(status, v1alpha1.ConditionReady), message(status, v1alpha1.ConditionStalled); a != b || a == "" {
			t.Errorf("%s: Ready says %q, Stalled %q", name, a, b)
		}
		row := w.mustRow(name)
		if row.HoldReason != test.reason || row.LaneID == 0 || row.Generation != 2 || len(row.Keys) != 1 {
			t.Errorf("%s: the row is held for %q, lane %d, generation %d, %d keys", name, row.HoldReason, row.LaneID, row.Generation, len(row.Keys))
		}
		w.change(name, func(s *v1alpha1.WebhookEndpointSpec) { *s = plainSpec() })
		d.status(name, ready)
		if row := w.mustRow(name); row.HoldReason != "" {
			t.Errorf("%s: mended, but held for %s", name, row.HoldReason)
		}
	}
	// What is wrong from the beginning is in the store too: its events wait.
	w.create("new", func(s *v1alpha1.WebhookEndpointSpec) { s.Timeout = "25s" })
	d.status("new", "Ready=False/LimitExceeded Stalled=True/LimitExceeded")
	if row := w.mustRow("new"); row.HoldReason != "LimitExceeded" || row.LaneID == 0 {
		t.Errorf("row: %+v", row)
	}
}

// TestTheSpecStaysAsWritten is case K6.
func TestTheSpecStaysAsWritten(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.direct()
	w.signedBy("signing")
	for name, text := range map[string]v1alpha1.Duration{"a": "1h", "b": "60m", "c": "1h0m0s", "d": ""} {
		before := w.create(name, func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.RotationWindow = text })
		d.status(name, ready)
		after := w.get(name)
		if after.Generation != before.Generation || after.Spec.Signing.RotationWindow != text || after.Spec.Timeout != "" || after.Spec.State != "" {
			t.Errorf("%q: the spec was rewritten to %+v", text, after.Spec)
		}
		if len(after.Finalizers) != 0 {
			t.Errorf("%q: finalizers %v, want none", text, after.Finalizers)
		}
	}
}

// TestStatusIsThatOfTheStore follows an endpoint through success, failure and a dead letter.
func TestStatusIsThatOfTheStore(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger")
	d := w.direct()
	d.status("ledger", ready+" Delivering=True/NoAttempts")

	id := deliver(t, w, "ledger", 1)[0]
	settle(t, w, id, delivered)
	status := d.status("ledger", ready+" Delivering=True/Succeeding")
	if status.LastSuccessTime == nil || *status.ConsecutiveFailures != 0 || *status.PendingCount != 0 {
		t.Errorf("after a success: %+v", status)
	}

	id = deliver(t, w, "ledger", 1)[0]
	settle(t, w, id, retried)
	d.now = d.now.Add(time.Second)
	status = d.status("ledger", ready+" Delivering=False/Failing")
	if status.LastFailure == nil || status.LastFailure.EventID != id.String() || status.LastFailure.StatusCode != 503 ||
		*status.ConsecutiveFailures != 1 || *status.PendingCount != 1 || status.OldestPendingTime == nil {
		t.Errorf("after a failure: %+v, last %+v", status, status.LastFailure)
	}

	id = deliver(t, w, "ledger", 1)[0]
	settle(t, w, id, gaveUp)
	status = d.status("ledger", ready)
	if *status.DeadLetterCount != 1 {
		t.Errorf("after a dead letter: %d, want 1", *status.DeadLetterCount)
	}

	id = deliver(t, w, "ledger", 1)[0]
	settle(t, w, id, answered410)
	d.status("ledger", "Ready=False/Gone Stalled=True/Gone")
	w.change("ledger", func(s *v1alpha1.WebhookEndpointSpec) { s.URL = "https://hooks.example.com/new" })
	d.status("ledger", ready)
}

// TestMovingFiguresWaitForTheirTurn, whoever has the object reconciled meanwhile.
func TestMovingFiguresWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger")
	d := w.direct()
	d.status("ledger", ready)
	settle(t, w, deliver(t, w, "ledger", 1)[0], delivered)
	first := d.status("ledger", ready+" Delivering=True/Succeeding").LastSuccessTime

	exec(t, w, `UPDATE postrider.endpoint_status SET last_success_at = last_success_at + interval '5 s', updated_at = now()`)
	for range 5 {
		d.now = d.now.Add(5 * time.Second)
		if got := d.status("ledger", ready).LastSuccessTime; !got.Equal(first) {
			t.Fatalf("another success was written at once: %s after %s", got, first)
		}
	}
	d.now = d.now.Add(time.Minute)
	if got := d.status("ledger", ready).LastSuccessTime; !got.Equal(&metav1.Time{Time: first.Add(5 * time.Second)}) {
		t.Errorf("after a minute: %s, want what the store says", got)
	}
	if material, moved := d.count("material"), d.count("moving"); material != 2 || moved != 1 {
		t.Errorf("writes: %v material and %v moving, want 2 and 1", material, moved)
	}
}

func (d *direct) count(kind string) float64 {
	return testutil.ToFloat64(d.part.metrics.statusWrites.WithLabelValues(kind))
}

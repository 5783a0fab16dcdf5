package controllers

import (
	"fmt"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/localstack"
)

// TestDeletionIsNeverHeldUp is case K3 while the controller runs.
func TestDeletionIsNeverHeldUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	r := w.start()
	w.signedBy("signing")
	w.create("ledger")
	w.awaitConditions("ledger", ready)
	deliver(t, w, "ledger", 2)

	w.deleteSecret("signing")
	w.delete("ledger")
	err := w.client.Get(patience(t), w.key("ledger"), &v1alpha1.WebhookEndpoint{})
	if client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("a deleted object is still there: %v", err)
	}
	w.awaitNoRow("ledger")
	if got := r.count("postrider_endpoints_tombstoned_total", "deletion"); got != 1 {
		t.Errorf("%v deletions were noticed, want 1", got)
	}
}

func (w *world) awaitNoRow(name string) {
	w.t.Helper()
	eventually(w.t, 30*time.Second, func() error {
		if row := w.row(name); row != nil {
			return fmt.Errorf("endpoint %s still has a live row, of uid %s", name, row.UID)
		}
		return nil
	})
}

// TestADeletionDuringAnOutageOfPostgresIsMadeGood is case K3 with the database away.
func TestADeletionDuringAnOutageOfPostgresIsMadeGood(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{})
	api := localstack.KubeAPI(t)
	w := newWorldOn(t, api, localstack.Namespace(t, api), migrated(t, pg))
	w.signedBy("signing")
	w.create("ledger")
	w.create("replaced")
	w.create("kept")
	w.start()
	for _, name := range []string{"ledger", "replaced", "kept"} {
		w.awaitConditions(name, ready)
	}
	before := w.mustRow("replaced")
	deliver(t, w, "replaced", 2)

	pg.Stop()
	w.delete("ledger")
	w.delete("replaced")
	w.create("replaced")
	w.change("kept", func(s *v1alpha1.WebhookEndpointSpec) { s.Timeout = "3s" })
	w.awaitConditions("kept", "Ready=Unknown/StoreUnavailable Reconciling=True/Progressing")
	w.must(pg.Start(patience(t)))

	w.awaitNoRow("ledger")
	w.awaitConditions("kept", ready)
	w.awaitConditions("replaced", ready)
	if row := w.mustRow("replaced"); row.ID == before.ID {
		t.Error("an object that was deleted and made again during the outage was taken for the old one")
	}
	if row := w.mustRow("kept"); row.Spec.Timeout != 3*time.Second {
		t.Errorf("kept: timeout %s in the store, want 3s", row.Spec.Timeout)
	}
}

// TestDeletionsWhileNobodyWatchedAreMadeGood is case K3 with the controller away.
func TestDeletionsWhileNobodyWatchedAreMadeGood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	for _, name := range []string{"a", "b", "c"} {
		w.create(name)
	}
	r := w.start()
	for _, name := range []string{"a", "b", "c"} {
		w.awaitConditions(name, ready)
	}
	r.stop()
	w.delete("a")
	w.delete("b")
	r = w.start()
	w.awaitNoRow("a")
	w.awaitNoRow("b")
	w.awaitConditions("c", ready)
	if got := r.count("postrider_endpoints_tombstoned_total", "sweep"); got != 2 {
		t.Errorf("the sweep gave up %v rows, want 2", got)
	}
}

func TestTheSweepStopsWhereTooMuchIsGone(t *testing.T) {
	t.Parallel()
	const n, gone = 12, 7
	w := newWorld(t)
	w.signedBy("signing")
	for i := range n {
		w.create(fmt.Sprint("e", i))
	}
	r := w.start()
	for i := range n {
		w.awaitConditions(fmt.Sprint("e", i), ready)
	}
	r.stop()
	for i := range gone {
		w.delete(fmt.Sprint("e", i))
	}
	live := func() (n int) {
		refs, err := w.store.LiveEndpoints(patience(t), 0, 100)
		w.must(err)
		return len(refs)
	}
	r = w.start()
	eventually(t, 30*time.Second, func() error {
		if got := r.count("postrider_sweep_refused_endpoints"); got < sweepUnasked+1 {
			return fmt.Errorf("metric: %v refused", got)
		}
		return nil
	})
	if got := live(); got != n {
		t.Errorf("%d rows are left, want all %d", got, n)
	}
	if !logs.holds("--confirm-sweep") {
		t.Error("the log does not name the way out")
	}
	r.stop()
	r = w.start(func(c *Config) { c.ConfirmSweep = true })
	eventually(t, 30*time.Second, func() error {
		if got := live(); got != n-gone {
			return fmt.Errorf("%d rows are left, want %d", got, n-gone)
		}
		return nil
	})
	if got := r.count("postrider_sweep_refused_endpoints"); got != 0 {
		t.Errorf("metric: %v refused", got)
	}
}

// TestANarrowedWatchGivesUpNothingThatIsThere: rows of namespaces that are watched no more are judged by the API server.
func TestANarrowedWatchGivesUpNothingThatIsThere(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := newWorldOn(t, w.api, localstack.Namespace(t, w.api), w.dsn)
	for _, x := range []*world{w, other} {
		x.signedBy("signing")
		x.create("kept")
		x.create("deleted")
	}
	r := w.start(func(c *Config) { c.WatchNamespaces = []string{w.namespace, other.namespace} })
	for _, x := range []*world{w, other} {
		x.awaitConditions("kept", ready)
		x.awaitConditions("deleted", ready)
	}
	r.stop()
	w.delete("deleted")
	other.delete("deleted")
	w.start()
	w.awaitNoRow("deleted")
	other.awaitNoRow("deleted")
	if w.row("kept") == nil || other.row("kept") == nil {
		t.Error("the row of an object that is there was given up")
	}
}

// TestAnObjectDeletedAndMadeAgainAtOnceIsNew is case K4: the worker is held up meanwhile, so that one reconcile finds
// both changes.
func TestAnObjectDeletedAndMadeAgainAtOnceIsNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	gate := newGatedStore(w.store)
	w.startWith(gate)
	w.create("ledger")
	w.awaitConditions("ledger", ready)
	for round := range 5 {
		before := w.mustRow("ledger")
		deliver(t, w, "ledger", 2)
		gate.shut()
		w.change("ledger", func(s *v1alpha1.WebhookEndpointSpec) { s.MaxConcurrency = int32(2 + round) })
		<-gate.held
		w.delete("ledger")
		object := w.create("ledger")
		gate.release()
		e := w.awaitConditions("ledger", ready)
		after := w.mustRow("ledger")
		if after.ID == before.ID || after.UID != string(object.UID) || e.Status.EndpointID != after.PublicID.String() {
			t.Fatalf("round %d: row %d of uid %s, want a new one of uid %s", round, after.ID, after.UID, object.UID)
		}
		eventually(t, 10*time.Second, func() error {
			if pending := w.get("ledger").Status.PendingCount; pending == nil || *pending != 0 {
				return fmt.Errorf("pending: %v, want none of the old one's", pending)
			}
			return nil
		})
	}
}

// TestWhatHappensWhileAWatchIsLostIsMadeGood: the list after it reports no deletion where there is a new object of the
// name, and an inferred one where there is none.
func TestWhatHappensWhileAWatchIsLostIsMadeGood(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	var lose, restore func()
	w.api, lose, restore = cuttable(w.api, "webhookendpoints")
	r := w.start()
	for _, name := range []string{"replaced", "deleted", "kept"} {
		w.create(name)
		w.awaitConditions(name, ready)
	}
	before, kept := w.mustRow("replaced"), w.mustRow("kept")
	lose()
	w.delete("replaced")
	w.delete("deleted")
	w.create("replaced")
	restore()
	eventually(t, 60*time.Second, func() error { return conditionsAre(w.get("replaced"), ready) })
	if after := w.mustRow("replaced"); after.ID == before.ID {
		t.Error("the new object was given the old one's row")
	}
	w.awaitNoRow("deleted")
	if got := r.count("postrider_endpoints_tombstoned_total", "sweep"); got != 1 {
		t.Errorf("the sweep gave up %v rows, want 1", got)
	}
	if after := w.mustRow("kept"); after.ID != kept.ID || after.Version != kept.Version {
		t.Error("the row of an object that nothing happened to was touched")
	}
}

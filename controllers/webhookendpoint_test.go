package controllers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

// TestSecretsAreNoticed is case K1.
func TestSecretsAreNoticed(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var requests func(string) int
	w.api, requests = counted(w.api)
	w.start()
	w.create("ledger")
	w.create("neighbour", func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.SecretRef.Name = "other" })
	w.awaitConditions("ledger", "Ready=False/SecretNotFound")

	noticed := func(what, conditions string, keys int, do func()) {
		t.Helper()
		start := time.Now()
		do()
		eventually(t, 20*time.Second, func() error {
			e := w.get("ledger")
			if err := conditionsAre(e, conditions); err != nil {
				return err
			}
			if len(e.Status.SigningKeys) != keys {
				return fmt.Errorf("%d signing keys, want %d", len(e.Status.SigningKeys), keys)
			}
			return nil
		})
		t.Logf("%s: noticed after %s", what, time.Since(start).Round(10*time.Millisecond))
	}
	var first, second string
	noticed("a Secret is created", ready, 1, func() { first = w.signedBy("signing") })
	noticed("its value changes", ready, 2, func() { second = w.signedBy("signing") })
	noticed("its entry is renamed", "Ready=False/SecretKeyMissing", 2, func() { w.putSecret("signing", "renamed", second) })
	noticed("and named in the spec", ready, 2, func() {
		w.change("ledger", func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.SecretRef.Key = "renamed" })
	})
	noticed("it is deleted", "Ready=False/SecretNotFound", 2, func() { w.deleteSecret("signing") })
	noticed("it comes back as it was", ready, 2, func() { w.putSecret("signing", "renamed", first) })
	if keys := w.rowKeys("ledger"); !keys[0].Equal(parseKey(t, first)) || !keys[1].Equal(parseKey(t, second)) {
		t.Error("the row's keys are not the Secret's")
	}
	w.awaitConditions("neighbour", "Ready=False/SecretNotFound")
	// A read for each event, of the cache's lag perhaps two, and no poll.
	if reads := requests("GET /api/v1/namespaces/" + w.namespace + "/secrets/signing"); reads < 6 || reads > 20 {
		t.Errorf("the Secret was read %d times for 7 events", reads)
	}
}

// TestIdleObjectsAreLeftAlone is case K2, with some hundreds of objects. What is done for each of them is the same for
// ten thousand: the resync finds the agreement remembered, and the feed asks for all at once (feed_test.go).
func TestIdleObjectsAreLeftAlone(t *testing.T) {
	t.Parallel()
	const n = 200
	w := newWorld(t)
	var requests func(string) int
	w.api, requests = counted(w.api)
	w.signedBy("signing")
	for i := range n {
		w.create(fmt.Sprintf("endpoint-%03d", i))
	}
	r := w.start(func(c *Config) { c.resync, c.budgets.tick = time.Second, 100*time.Millisecond })
	versions := func() (objects, rows []string) {
		var list v1alpha1.WebhookEndpointList
		w.must(w.client.List(patience(t), &list, client.InNamespace(w.namespace)))
		for _, e := range list.Items {
			if conditionsAre(&e, ready) == nil && e.Status.PendingCount != nil {
				objects = append(objects, e.Name+" "+e.ResourceVersion)
			}
			if row := w.row(e.Name); row != nil {
				rows = append(rows, fmt.Sprint(e.Name, " ", row.Version))
			}
		}
		return objects, rows
	}
	var objects, rows []string
	eventually(t, time.Minute, func() error {
		if objects, rows = versions(); len(objects) < n {
			return fmt.Errorf("%d of %d are ready", len(objects), n)
		}
		return nil
	})
	writes, reads, reconciles := r.count("postrider_status_writes_total"), requests("/secrets/"), r.count("postrider_reconciles_total")
	eventually(t, time.Minute, func() error { // four resyncs and dozens of looks at the store
		if done := r.count("postrider_reconciles_total") - reconciles; done < 4*n {
			return fmt.Errorf("%v reconciles of idle objects", done)
		}
		return nil
	})
	afterObjects, afterRows := versions()
	if !slices.Equal(objects, afterObjects) || r.count("postrider_status_writes_total") != writes {
		t.Errorf("%v statuses of idle objects were written", r.count("postrider_status_writes_total")-writes)
	}
	if !slices.Equal(rows, afterRows) {
		t.Error("rows of idle objects were written")
	}
	if got := requests("/secrets/"); got != reads {
		t.Errorf("Secrets of idle objects were read %d times", got-reads)
	}
	if patches := requests("PATCH "); float64(patches) > writes+1 { // one more for the Event series
		t.Logf("%d patches, %v of a status", patches, writes)
	}
}

// TestTheStatusFollowsWithinFiveSeconds measures with the budgets of the design.
func TestTheStatusFollowsWithinFiveSeconds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger")
	w.start(func(c *Config) { c.budgets = budgets{} })
	w.awaitConditions("ledger", ready+" Delivering=True/NoAttempts")
	for _, step := range []struct {
		what string
		end  func(*store.Result)
		want func(*v1alpha1.WebhookEndpoint) bool
	}{
		{"the first success", delivered, func(e *v1alpha1.WebhookEndpoint) bool {
			return conditionsAre(e, ready+" Delivering=True/Succeeding") == nil
		}},
		{"the first failure", retried, func(e *v1alpha1.WebhookEndpoint) bool {
			return conditionsAre(e, ready+" Delivering=False/Failing") == nil
		}},
		{"the first success after failures", delivered, func(e *v1alpha1.WebhookEndpoint) bool {
			return conditionsAre(e, ready+" Delivering=True/Succeeding") == nil
		}},
		{"a dead letter", gaveUp, func(e *v1alpha1.WebhookEndpoint) bool {
			return e.Status.DeadLetterCount != nil && *e.Status.DeadLetterCount == 1
		}},
		{"a 410", answered410, func(e *v1alpha1.WebhookEndpoint) bool {
			return conditionsAre(e, "Ready=False/Gone Stalled=True/Gone") == nil
		}},
	} {
		event := deliver(t, w, "ledger", 1)[0]
		start := time.Now()
		settle(t, w, event, step.end)
		eventually(t, 20*time.Second, func() error {
			if e := w.get("ledger"); !step.want(e) {
				return fmt.Errorf("%s is not in the status: %s", step.what, conditionsText(e.Status))
			}
			return nil
		})
		took := time.Since(start)
		t.Logf("%s: in the status after %s", step.what, took.Round(10*time.Millisecond))
		if took > 5*time.Second {
			t.Errorf("%s was in the status after %s, want at most 5 s", step.what, took)
		}
	}
}

// TestEndpointsAreNeverMixedUp is case K4.
func TestEndpointsAreNeverMixedUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	other := newWorldOn(t, w.api, localstack.Namespace(t, w.api), w.dsn)
	w.signedBy("signing")
	other.signedBy("signing")
	w.start(func(c *Config) { c.WatchNamespaces = []string{w.namespace, other.namespace} })
	w.create("ledger")
	w.create("twin") // the same URL
	other.create("ledger")
	for _, e := range []*v1alpha1.WebhookEndpoint{w.awaitConditions("ledger", ready), w.awaitConditions("twin", ready), other.awaitConditions("ledger", ready)} {
		if row := w.rowOf(e); row.Name != e.Name || row.Namespace != e.Namespace {
			t.Errorf("%s/%s has the row of %s/%s", e.Namespace, e.Name, row.Namespace, row.Name)
		}
	}
	deliver(t, w, "ledger", 2)
	if got := *other.get("ledger").Status.PendingCount; got != 0 {
		t.Errorf("the namesake in another namespace has %d pending", got)
	}
	if keys, others := w.rowKeys("ledger"), other.rowKeys("ledger"); keys[0].Equal(others[0]) {
		t.Error("the namesakes share a key")
	}
	w.delete("ledger")
	w.awaitNoRow("ledger")
	if other.row("ledger") == nil || w.row("twin") == nil {
		t.Error("another endpoint's row went with it")
	}
}

// rowOf finds an object's row by the id in its status.
func (w *world) rowOf(e *v1alpha1.WebhookEndpoint) struct{ Namespace, Name string } {
	w.t.Helper()
	refs, err := w.store.LiveEndpoints(patience(w.t), 0, 100)
	w.must(err)
	for _, ref := range refs {
		rows, err := w.store.Endpoints(patience(w.t), []int64{ref.ID})
		w.must(err)
		if rows[0].PublicID.String() == e.Status.EndpointID {
			return struct{ Namespace, Name string }{ref.Namespace, ref.Name}
		}
	}
	w.t.Fatalf("no live row has the id %s", e.Status.EndpointID)
	panic("unreachable")
}

func TestKubernetesEventsTellOfTransitions(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start()
	e := w.create("ledger")
	w.awaitConditions("ledger", "Ready=False/SecretNotFound")
	w.signedBy("signing")
	w.awaitConditions("ledger", ready)
	eventually(t, 20*time.Second, func() error {
		var list eventsv1.EventList
		w.must(w.client.List(patience(t), &list, client.InNamespace(w.namespace)))
		var got []string
		for _, event := range list.Items {
			if event.Regarding.UID == e.UID && event.Regarding.Kind == "WebhookEndpoint" && event.ReportingController == eventSource && event.Action != "" {
				got = append(got, event.Type+"/"+event.Reason)
			}
		}
		slices.Sort(got)
		if want := "Normal/Synced Warning/SecretNotFound"; strings.Join(got, " ") != want {
			return fmt.Errorf("Events: got %q, want %q", got, want)
		}
		return nil
	})
}

// TestNothingOfASecretIsKept is case K8. What is logged, stored and shown is searched after each test.
func TestNothingOfASecretIsKept(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger")
	r := w.start()
	w.awaitConditions("ledger", ready)
	meta := metadataOf("Secret")
	w.must(r.mgr.GetCache().Get(patience(t), w.key("signing"), meta))
	if len(meta.Annotations) != 0 || len(meta.ManagedFields) != 0 || meta.ResourceVersion == "" {
		t.Errorf("the cache holds annotations %v and %d managed fields", meta.Annotations, len(meta.ManagedFields))
	}
}

func TestAReplacedKeyEndsByItself(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger", func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.RotationWindow = "3s" })
	w.start()
	w.awaitConditions("ledger", ready)
	value := w.signedBy("signing")
	keys := func(n int) func() error {
		return func() error {
			if got := len(w.get("ledger").Status.SigningKeys); got != n {
				return fmt.Errorf("%d keys in the status, want %d", got, n)
			}
			return nil
		}
	}
	eventually(t, 20*time.Second, keys(2))
	eventually(t, 20*time.Second, keys(1))
	if got := w.rowKeys("ledger"); len(got) != 1 || !got[0].Equal(parseKey(t, value)) {
		t.Errorf("keys in the row: %v", got)
	}
}

// TestAnUnboundedLoggerInTheContextHearsNoSecret: the read of a Secret does not rely on the bound of logs.go alone.
func TestAnUnboundedLoggerInTheContextHearsNoSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// Without the annotation: what a cache serves in earnest, this reconciler reads live, where the logger may hear it.
	w.must(w.client.Create(patience(t), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "signing", Namespace: w.namespace},
		StringData: map[string]string{v1alpha1.DefaultSigningSecretKey: w.secretValue()},
	}))
	w.create("ledger")
	d := w.direct()
	w.must(d.feed.read(patience(t)))
	unbounded := logr.FromSlogHandler(testLogger(t).Handler())
	_, err := d.reconciler.Reconcile(logr.NewContext(patience(t), unbounded), ctrl.Request{NamespacedName: w.key("ledger")})
	w.must(err)
	w.awaitConditions("ledger", ready)
	if !strings.Contains(logs.of(t.Name()), "Response Body") {
		t.Error("no body of a response was logged at all, so this test proves nothing")
	}
}

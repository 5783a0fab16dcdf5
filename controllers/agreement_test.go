package controllers

import (
	"context"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
)

func TestAnObjectThatNobodySawDeletedIsAdopted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.direct()
	w.signedBy("signing")
	w.create("ledger")
	d.status("ledger", ready)
	before := w.mustRow("ledger")
	deliver(t, w, "ledger", 3)

	w.delete("ledger")
	object := w.create("ledger", func(s *v1alpha1.WebhookEndpointSpec) { s.Timeout = "5s" })
	status := d.status("ledger", ready)
	after := w.mustRow("ledger")
	if after.ID != before.ID || after.UID != string(object.UID) || after.LaneID != before.LaneID || after.Spec.Timeout != 5*time.Second {
		t.Errorf("got row %d of uid %s with timeout %s, want row %d taken over by %s", after.ID, after.UID, after.Spec.Timeout, before.ID, object.UID)
	}
	if status.EndpointID != before.PublicID.String() || *status.PendingCount != 3 {
		t.Errorf("status: endpoint %s with %d pending, want %s with its backlog of 3", status.EndpointID, *status.PendingCount, before.PublicID)
	}
}

func TestAnObjectAfterADeletionThatWasSeenIsNew(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.direct()
	w.signedBy("signing")
	old := w.create("ledger")
	d.status("ledger", ready)
	before := w.mustRow("ledger")
	deliver(t, w, "ledger", 3)

	w.delete("ledger")
	d.part.endpoints.deleted(old) // as the watch does
	w.create("ledger")
	status := d.status("ledger", ready)
	after := w.mustRow("ledger")
	if after.ID == before.ID || after.PublicID == before.PublicID || *status.PendingCount != 0 {
		t.Errorf("got row %d with %d pending, want a new one after %d", after.ID, *status.PendingCount, before.ID)
	}
	if left := d.part.endpoints.of(d.key("ledger")); len(left) != 0 {
		t.Errorf("still remembered as deleted: %v", left)
	}
}

func TestAnotherInstallationsRowIsAdoptedAfterATakeOver(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	object := w.create("ledger")
	d := w.direct()
	d.status("ledger", ready)
	before := w.mustRow("ledger")
	// The row of another cluster: other uids, of the object and of the namespace.
	exec(t, w, `UPDATE postrider.endpoint SET uid = 'there', namespace_uid = 'elsewhere'; UPDATE postrider.installation SET cluster_uid = 'elsewhere'`)

	if err := d.part.ownership.try(patience(t)); !strings.Contains(err.Error(), "--take-over") {
		t.Fatalf("start without --take-over: %v", err)
	}
	d = w.direct(func(c *Config) { c.TakeOver = true })
	d.status("ledger", ready)
	if after := w.mustRow("ledger"); after.ID != before.ID || after.UID != string(object.UID) || after.NamespaceUID == "elsewhere" {
		t.Errorf("got row %d of %s in %s, want row %d adopted", after.ID, after.UID, after.NamespaceUID, before.ID)
	}
}

func TestARowOfAnEarlierNamespaceIsGivenUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger")
	d := w.direct()
	d.status("ledger", ready)
	before := w.mustRow("ledger")
	deliver(t, w, "ledger", 3)
	exec(t, w, `UPDATE postrider.endpoint SET uid = 'earlier', namespace_uid = 'earlier'; UPDATE postrider.namespace_version SET uid = 'earlier'`)

	d = w.direct()
	status := d.status("ledger", ready)
	after := w.mustRow("ledger")
	if after.ID == before.ID || *status.PendingCount != 0 {
		t.Errorf("got row %d with %d pending, want a new one that sees nothing of row %d", after.ID, *status.PendingCount, before.ID)
	}
	matching, err := w.store.Matching(patience(t), w.namespace)
	w.must(err)
	if matching.UID != after.NamespaceUID || len(matching.Endpoints) != 1 {
		t.Errorf("events of namespace %s reach %d endpoints, want the one of namespace %s", matching.UID, len(matching.Endpoints), after.NamespaceUID)
	}
}

func TestAnOlderGenerationChangesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger")
	d := w.direct()
	d.status("ledger", ready)
	exec(t, w, `UPDATE postrider.endpoint SET generation = 7, timeout = '3 s'`)
	before := w.mustRow("ledger")

	d = w.direct()
	status := d.status("ledger", "Ready=False/OlderGeneration Stalled=True/OlderGeneration")
	if after := w.mustRow("ledger"); after.Version != before.Version || after.Spec.Timeout != 3*time.Second {
		t.Errorf("the row was written: version %d, timeout %s", after.Version, after.Spec.Timeout)
	}
	if got := message(status, v1alpha1.ConditionReady); !containsAll(got, "generation 7", "only 1", "etcd") {
		t.Errorf("message: %q", got)
	}
	if status.Effective.Timeout != "3s" {
		t.Errorf("effective timeout: got %s, want the one in force, 3s", status.Effective.Timeout)
	}
}

func TestAnObjectThatSomebodysFinalizerHoldsIsGoneForUs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	e := w.create("ledger")
	e.Finalizers = []string{"example.com/audit"}
	w.must(w.client.Update(patience(t), e))
	d := w.direct()
	d.status("ledger", ready)
	w.delete("ledger")
	before := w.get("ledger")
	d.reconcile("ledger")
	if row := w.row("ledger"); row != nil {
		t.Errorf("there is still a live row: %+v", row)
	}
	after := w.get("ledger")
	if after.ResourceVersion != before.ResourceVersion {
		t.Error("the status of an object that is being deleted was written")
	}
	after.Finalizers = nil
	w.must(w.client.Update(patience(t), after))
}

func TestNothingIsWrittenTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger", func(s *v1alpha1.WebhookEndpointSpec) {
		s.Headers = []v1alpha1.Header{{Name: "X-Team", Value: "billing"}}
		s.RateLimit = &v1alpha1.RateLimit{Requests: 5}
		s.Retry = &v1alpha1.Retry{Schedule: []v1alpha1.Duration{"1s", "5s"}}
	})
	w.direct().status("ledger", ready)
	row, object := w.mustRow("ledger"), w.get("ledger")
	for range 2 { // after a restart, nothing is remembered
		d := w.direct()
		for range 3 {
			d.now = d.now.Add(time.Minute)
			d.reconcile("ledger")
		}
	}
	if got := w.mustRow("ledger"); got.Version != row.Version {
		t.Errorf("the row was written: version %d, was %d", got.Version, row.Version)
	}
	if got := w.get("ledger"); got.ResourceVersion != object.ResourceVersion {
		t.Error("the status was written")
	}
}

// staleClient is a cache that is behind: it shows an object as it was.
type staleClient struct {
	client.Client
	object *v1alpha1.WebhookEndpoint
}

func (c staleClient) Get(ctx context.Context, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
	if e, ok := o.(*v1alpha1.WebhookEndpoint); ok {
		c.object.DeepCopyInto(e)
		return nil
	}
	return c.Client.Get(ctx, key, o, opts...)
}

// TestTheNamespaceIsProved: an object that the cache still shows may belong to a namespace that is no more. Given a row
// in the present namespace of that name, it would get another tenant's events.
func TestTheNamespaceIsProved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	stale := w.create("ledger")
	w.delete("ledger")
	d := w.direct()
	d.reconciler.client = staleClient{w.client, stale}
	d.reconcile("ledger")
	if row := w.row("ledger"); row != nil {
		t.Errorf("an object that is gone got a row: %+v", row)
	}
	w.create("ledger")
	d.reconcile("ledger")
	if row := w.row("ledger"); row != nil {
		t.Errorf("an object that is gone got the row of its successor: %+v", row)
	}
	if got := w.get("ledger").Status.ObservedGeneration; got != -1 {
		t.Errorf("the successor got a status of generation %d", got)
	}
	d.reconciler.client = w.client
	d.status("ledger", ready)
}

// TestARowInAnotherNamespaceThanTheCacheKnowsIsNotTakenOnTrust: one of both caches is behind.
func TestARowInAnotherNamespaceThanTheCacheKnowsIsNotTakenOnTrust(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger")
	d := w.direct(func(c *Config) { c.WatchNamespaces = nil })
	d.status("ledger", ready)
	stale := w.get("ledger")
	exec(t, w, `UPDATE postrider.endpoint SET namespace_uid = 'earlier'`)
	before := w.mustRow("ledger")
	w.delete("ledger")
	w.create("ledger")

	d = w.direct(func(c *Config) { c.WatchNamespaces = nil })
	stale.Generation, stale.Spec.EventTypes = 2, []v1alpha1.EventTypePattern{"*"}
	d.reconciler.client = staleClient{w.client, stale}
	d.reconcile("ledger")
	if after := w.mustRow("ledger"); after.Version != before.Version {
		t.Error("an object of an earlier namespace changed its row, and perhaps the namespace's uid")
	}
}

package controllers

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	d.feed = &feed{store: w.store, facts: d.part.facts, ownership: d.part.ownership, metrics: d.part.metrics, log: c.logger()}
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

func TestWhatTheSecretHoldsDecides(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.direct()
	good := w.secretValue()
	raw := strings.Repeat("kirana-raw-key-", 3)
	short := "hunter2-hunter2"
	unpadded := strings.TrimRight(w.secretValue(), "=")
	bad := "whsec_not!base64!at!all"
	for _, secret := range []string{raw, short, unpadded, bad} {
		w.keepSecret(secret)
	}
	tests := []struct {
		name, value string
		reason      string // "": it is a key
		says        []string
	}{
		{"a generated one", good, "", nil},
		{"with the newline of a file", good + "\n", "", nil},
		{"raw bytes", raw, "", nil},
		{"a signature's prefix", "v1," + good, "InvalidSigningKey", []string{`"v1,"`, "remove"}},
		{"bad base64", bad, "InvalidSigningKey", []string{"base64", "openssl rand"}},
		{"unpadded base64", unpadded, "InvalidSigningKey", []string{"padding", "openssl rand"}},
		{"eight bytes", "12345678", "InvalidSigningKey", []string{"8 bytes", "24"}},
		{"too short", short, "InvalidSigningKey", []string{"15 bytes", "24"}},
		{"empty", "", "InvalidSigningKey", []string{"empty"}},
		{"two newlines", good + "\n\n", "InvalidSigningKey", []string{"base64"}},
	}
	w.create("ledger")
	for _, test := range tests {
		w.putSecret("signing", v1alpha1.DefaultSigningSecretKey, test.value)
		if test.reason == "" {
			d.status("ledger", ready)
			if got := w.rowKeys("ledger")[0]; !got.Equal(parseKey(t, test.value)) {
				t.Errorf("%s: the row has %s", test.name, got)
			}
			if row := w.mustRow("ledger"); row.HoldReason != "" {
				t.Errorf("%s: held for %s", test.name, row.HoldReason)
			}
			continue
		}
		status := d.status("ledger", "Ready=False/"+test.reason)
		if got := message(status, v1alpha1.ConditionReady); !containsAll(got, append(test.says, `"signing"`, `"signing-key"`)...) {
			t.Errorf("%s: message %q, want %q in it", test.name, got, test.says)
		}
		if row := w.mustRow("ledger"); row.HoldReason != test.reason {
			t.Errorf("%s: the row is held for %q, want %q", test.name, row.HoldReason, test.reason)
		}
	}
}

func TestAMissingSecretHoldsAndKeepsTheLastKeys(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.direct()
	w.create("ledger")
	status := d.status("ledger", "Ready=False/SecretNotFound Delivering=True/NoAttempts")
	if got := message(status, v1alpha1.ConditionReady); !containsAll(got, "spec.signing.secretRef.name", `"signing"`, w.namespace, "create it") {
		t.Errorf("message: %q", got)
	}
	row := w.mustRow("ledger")
	if row.HoldReason != "SecretNotFound" || row.LaneID == 0 || len(row.Keys) != 0 {
		t.Errorf("row: %+v, want one that is held, gets events and has no keys", row)
	}

	w.putSecret("signing", "another-entry", w.secretValue())
	status = d.status("ledger", "Ready=False/SecretKeyMissing")
	if got := message(status, v1alpha1.ConditionReady); !containsAll(got, "spec.signing.secretRef.key", `"signing-key"`) {
		t.Errorf("message: %q", got)
	}
	w.change("ledger", func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.SecretRef.Key = "another-entry" })
	d.status("ledger", ready)
	before := w.mustRow("ledger")

	w.deleteSecret("signing")
	d.status("ledger", "Ready=False/SecretNotFound")
	after := w.mustRow("ledger")
	if after.HoldReason != "SecretNotFound" || len(after.Keys) != 1 || !sameKey(after.Keys[0], before.Keys[0]) {
		t.Errorf("row without its Secret: held for %q with keys %v, want held with the last good key", after.HoldReason, after.Keys)
	}
	w.putSecret("signing", "another-entry", w.secretValue())
	if status = d.status("ledger", ready); len(status.SigningKeys) != 2 || w.mustRow("ledger").HoldReason != "" {
		t.Errorf("after the Secret came back with another key: %+v", status.SigningKeys)
	}
	var reasons []string
	for _, e := range d.told() {
		reasons = append(reasons, strings.Join(strings.Fields(e)[:2], " "))
	}
	want := []string{"Warning SecretNotFound", "Warning SecretKeyMissing", "Normal Synced", "Warning SecretNotFound", "Normal Synced", "Normal SigningKeyRotated"}
	if !slices.Equal(reasons, want) {
		t.Errorf("Events:\n got %q\nwant %q", reasons, want)
	}
}

// TestAKeyChangedTwiceWithinTheWindowSignsThreefold is case S2.
func TestAKeyChangedTwiceWithinTheWindowSignsThreefold(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	d := w.direct()
	start := d.now
	first := w.signedBy("signing")
	w.create("ledger", func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.RotationWindow = "1h" })
	d.status("ledger", ready)

	d.now = start.Add(10 * time.Minute)
	second := w.signedBy("signing")
	d.status("ledger", ready)
	d.now = start.Add(20 * time.Minute)
	third := w.signedBy("signing")
	result := d.reconcile("ledger")
	if want := 50 * time.Minute; result.RequeueAfter != want {
		t.Errorf("the next look is in %s, want %s, when the first key ends", result.RequeueAfter, want)
	}
	expect := func(at time.Duration, keys ...string) {
		t.Helper()
		d.now = start.Add(at)
		d.reconcile("ledger")
		got := w.rowKeys("ledger")
		if len(got) != len(keys) {
			t.Fatalf("at %s: %d keys, want %d", at, len(got), len(keys))
		}
		status := w.get("ledger").Status.SigningKeys
		for i, value := range keys {
			if !got[i].Equal(parseKey(t, value)) {
				t.Errorf("at %s: key %d is another one", at, i)
			}
			if status[i].Fingerprint != parseKey(t, value).Fingerprint() {
				t.Errorf("at %s: the status shows %s as key %d", at, status[i].Fingerprint, i)
			}
		}
		if status[0].ExpiresAt != nil {
			t.Errorf("at %s: the present key ends at %s", at, status[0].ExpiresAt)
		}
	}
	expect(20*time.Minute, third, second, first)
	if keys := w.mustRow("ledger").Keys; !keys[1].ExpiresAt.Equal(start.Add(80*time.Minute)) || !keys[2].ExpiresAt.Equal(start.Add(70*time.Minute)) {
		t.Errorf("ends: got %s and %s, want 80 and 70 minutes after %s", keys[1].ExpiresAt, keys[2].ExpiresAt, start)
	}
	expect(69*time.Minute, third, second, first)
	expect(70*time.Minute, third, second)
	expect(79*time.Minute, third, second)
	expect(80*time.Minute, third)
	version := w.mustRow("ledger").Version
	expect(10*time.Hour, third)
	if got := w.mustRow("ledger").Version; got != version {
		t.Errorf("the row was written again: version %d, then %d", version, got)
	}
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

func TestStoredValuesMoveToTheFirstKeyOfTheKeyring(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	value := w.signedBy("signing")
	w.create("ledger", func(s *v1alpha1.WebhookEndpointSpec) {
		s.Headers = []v1alpha1.Header{{Name: "X-Team", Value: "billing"}}
	})
	w.direct().status("ledger", ready)
	newer := w.signedBy("signing")
	w.direct().status("ledger", ready)

	sealedWith := func(want string) {
		t.Helper()
		row := w.mustRow("ledger")
		values := [][]byte{row.Spec.Headers}
		for _, k := range row.Keys {
			values = append(values, k.Sealed)
		}
		for i, v := range values {
			if name, err := keyName(v); err != nil || name != want {
				t.Errorf("value %d is sealed with %q, want %q (%v)", i, name, want, err)
			}
		}
		if keys := w.rowKeys("ledger"); len(keys) != 2 || !keys[0].Equal(parseKey(t, newer)) || !keys[1].Equal(parseKey(t, value)) {
			t.Errorf("the keys are others: %v", keys)
		}
	}
	sealedWith("first")
	w.keyring = testKeyring(t, "second", "first")
	w.direct().status("ledger", ready)
	sealedWith("second")
	version := w.mustRow("ledger").Version
	w.direct().status("ledger", ready)
	if got := w.mustRow("ledger").Version; got != version {
		t.Errorf("sealed anew twice: version %d, then %d", version, got)
	}
	w.keyring = testKeyring(t, "second")
	w.must(CheckKeyring(patience(t), w.store, w.keyring))
}

func TestAKeyringThatLacksAKeyRefusesToStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	d := w.direct()
	for _, name := range []string{"a", "b", "c"} {
		w.create(name)
		d.status(name, ready)
	}
	w.create("held", func(s *v1alpha1.WebhookEndpointSpec) { s.Signing.SecretRef.Name = "none" })
	d.status("held", "Ready=False/SecretNotFound")
	err := CheckKeyring(patience(t), w.store, testKeyring(t, "second"))
	if err == nil || !containsAll(err.Error(), `"first"`, "3 endpoints") {
		t.Errorf("got %v, want the missing key's name and the count of endpoints", err)
	}
}

func TestAKeyThatCannotBeReadComesBackFromItsSecret(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	value := w.signedBy("signing")
	w.create("ledger")
	w.direct().status("ledger", ready)
	exec(t, w, `UPDATE postrider.endpoint SET key_sealed = ARRAY[set_byte(key_sealed[1], 40, get_byte(key_sealed[1], 40) # 1)]`)
	w.direct().status("ledger", ready)
	if keys := w.rowKeys("ledger"); len(keys) != 1 || !keys[0].Equal(parseKey(t, value)) {
		t.Errorf("keys: %v, want the Secret's", keys)
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

package controllers

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/api/v1alpha1"
)

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
		{"raw bytes that end in two newlines", raw + "\n\n", "", nil},
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

package controllers

import (
	"reflect"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

// matching returns a row and a change that would write nothing new, each from scratch, every field set.
func matching() (store.Endpoint, store.EndpointChange) {
	spec := func() store.EndpointSpec {
		return store.EndpointSpec{
			State: store.Enabled, URL: "https://a.example", EventTypes: []string{"a.*"}, Timeout: time.Second, MaxConcurrency: 1,
			Rate: &store.Rate{Requests: 1, Per: time.Second, Burst: 1}, Ordered: true, Payload: "Raw", Headers: []byte("sealed"),
			MaxAttempts: 1, MaxDuration: time.Hour, BackoffBase: time.Second, BackoffFactor: 2, BackoffCap: time.Hour,
			Schedule: []time.Duration{time.Second}, FailureThreshold: 1, Cooldown: time.Second, MaxCooldown: time.Minute,
		}
	}
	keys := func() []store.SealedKey {
		return []store.SealedKey{{Sealed: []byte("new"), Fingerprint: "n"}, {Sealed: []byte("old"), Fingerprint: "o", ExpiresAt: noon}}
	}
	row := store.Endpoint{ID: 7, Version: 3, LaneID: 9, UID: "u", NamespaceUID: "n", Generation: 2, HoldReason: "SecretNotFound", Spec: spec(), Keys: keys()}
	return row, store.EndpointChange{UID: "u", NamespaceUID: "n", Generation: 2, HoldReason: "SecretNotFound", Spec: spec(), Keys: keys(), IfVersion: 3}
}

func TestWhatIsTheSameIsNotWritten(t *testing.T) {
	t.Parallel()
	row, change := matching()
	if !same(row, change) {
		t.Error("a row and a change that say the same are told apart")
	}
	row.Keys[1].ExpiresAt = row.Keys[1].ExpiresAt.In(time.FixedZone("elsewhere", 3600))
	if !same(row, change) {
		t.Error("the same moment in another zone is told apart")
	}
	row.Spec.Schedule, change.Spec.Schedule = nil, []time.Duration{}
	if !same(row, change) {
		t.Error("no schedule and an empty one are told apart")
	}
}

// TestEveryFieldOfASpecCounts finds the field that somebody adds to store.EndpointSpec and forgets in sameSpec.
func TestEveryFieldOfASpecCounts(t *testing.T) {
	t.Parallel()
	kind := reflect.TypeFor[store.EndpointSpec]()
	for i := range kind.NumField() {
		row, change := matching()
		field := reflect.ValueOf(&change.Spec).Elem().Field(i)
		if field.IsZero() {
			t.Fatalf("matching() leaves %s out", kind.Field(i).Name)
		}
		field.SetZero()
		if same(row, change) {
			t.Errorf("a change of %s alone is not seen", kind.Field(i).Name)
		}
	}
}

func TestEveryOtherPartOfAChangeCounts(t *testing.T) {
	t.Parallel()
	for name, alter := range map[string]func(*store.EndpointChange){
		"uid":           func(c *store.EndpointChange) { c.UID = "other" },
		"namespace uid": func(c *store.EndpointChange) { c.NamespaceUID = "other" },
		"generation":    func(c *store.EndpointChange) { c.Generation++ },
		"hold":          func(c *store.EndpointChange) { c.HoldReason = "" },
		"key":           func(c *store.EndpointChange) { c.Keys[0].Sealed = []byte("other") },
		"fingerprint":   func(c *store.EndpointChange) { c.Keys[0].Fingerprint = "other" },
		"end":           func(c *store.EndpointChange) { c.Keys[1].ExpiresAt = noon.Add(time.Second) },
		"fewer keys":    func(c *store.EndpointChange) { c.Keys = c.Keys[:1] },
		"rate":          func(c *store.EndpointChange) { c.Spec.Rate.Burst = 2 },
		"pattern":       func(c *store.EndpointChange) { c.Spec.EventTypes[0] = "b" },
	} {
		row, change := matching()
		alter(&change)
		if same(row, change) {
			t.Errorf("a change of the %s alone is not seen", name)
		}
	}
}

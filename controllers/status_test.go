package controllers

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/store"
)

var (
	endpointID = uuid.MustParse("01980000-0000-7000-8000-000000000001")
	eventID    = uuid.MustParse("01980000-0000-7000-8000-000000000002")
)

// truthOf is an endpoint at rest: generation 3, nothing sent yet, counted.
func truthOf(alter ...func(*truth)) truth {
	t := truth{
		generation: 3,
		row: store.Endpoint{ID: 1, PublicID: endpointID, Spec: store.EndpointSpec{
			State: store.Enabled, Timeout: 10 * time.Second, MaxAttempts: 12, MaxDuration: 24 * time.Hour, MaxConcurrency: 16,
		}},
		figures: figures{Circuit: v1alpha1.CircuitClosed, Counted: true},
		now:     noon,
	}
	for _, a := range alter {
		a(&t)
	}
	return t
}

func failed(status int, reason string) func(*truth) {
	return func(t *truth) {
		t.figures.Failures = 2
		t.figures.LastFailure = failure{At: noon, EventID: eventID, Status: status, Reason: reason, Message: "the receiver said no"}
	}
}

func circuitIs(state v1alpha1.CircuitState) func(*truth) {
	return func(t *truth) { t.figures.Circuit = state }
}

func succeeded(t *truth) { t.figures.LastSuccess = noon }

func heldFor(reason string) func(*truth) {
	return func(t *truth) { t.hold = hold{reason, "message of " + reason} }
}

func stateIs(state store.State) func(*truth) {
	return func(t *truth) { t.row.Spec.State = state }
}

func goneAway(t *truth) { t.figures.Gone = true }

func TestConditionsSayWhatIsTrue(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		truth truth
		want  string // type=status/reason, in the order of the list
	}{
		{"nothing sent yet", truthOf(), "Ready=True/Synced Delivering=True/NoAttempts"},
		{"succeeding", truthOf(succeeded), "Ready=True/Synced Delivering=True/Succeeding"},
		{"failing", truthOf(succeeded, failed(503, "ServerError")), "Ready=True/Synced Delivering=False/Failing"},
		{"circuit open", truthOf(failed(503, "ServerError"), circuitIs(v1alpha1.CircuitOpen)), "Ready=True/Synced Delivering=False/CircuitOpen"},
		{"circuit half open", truthOf(failed(503, "ServerError"), circuitIs(v1alpha1.CircuitHalfOpen)), "Ready=True/Synced Delivering=False/CircuitOpen"},
		{"paused", truthOf(succeeded, stateIs(store.Paused)), "Ready=True/Synced Delivering=False/Paused"},
		{"disabled", truthOf(failed(503, "ServerError"), stateIs(store.Disabled)), "Ready=True/Synced Delivering=False/Disabled"},
		{"no Secret: a Secret can come", truthOf(heldFor("SecretNotFound")), "Ready=False/SecretNotFound Delivering=True/NoAttempts"},
		{"no key", truthOf(heldFor("SecretKeyMissing"), succeeded), "Ready=False/SecretKeyMissing Delivering=True/Succeeding"},
		{"a bad key", truthOf(heldFor("InvalidSigningKey")), "Ready=False/InvalidSigningKey Delivering=True/NoAttempts"},
		{"a bad spec: nothing helps but another", truthOf(heldFor("InvalidSpec")), "Ready=False/InvalidSpec Delivering=True/NoAttempts Stalled=True/InvalidSpec"},
		{"above a limit", truthOf(heldFor("LimitExceeded")), "Ready=False/LimitExceeded Delivering=True/NoAttempts Stalled=True/LimitExceeded"},
		{"a forbidden URL", truthOf(heldFor("URLNotAllowed")), "Ready=False/URLNotAllowed Delivering=True/NoAttempts Stalled=True/URLNotAllowed"},
		{"gone", truthOf(goneAway, succeeded), "Ready=False/Gone Delivering=True/Succeeding Stalled=True/Gone"},
		{"gone, and no Secret", truthOf(goneAway, heldFor("SecretNotFound")), "Ready=False/SecretNotFound Delivering=True/NoAttempts"},
		{"older than the row", truthOf(heldFor(ReasonOlderGeneration)), "Ready=False/OlderGeneration Delivering=True/NoAttempts Stalled=True/OlderGeneration"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := describe(v1alpha1.WebhookEndpointStatus{ObservedGeneration: -1}, test.truth)
			if text := conditionsText(got); text != test.want {
				t.Errorf("\n got %s\nwant %s", text, test.want)
			}
			checkConditions(t, got, 3, noon)
		})
	}
}

// TestToolsUnderstandTheConditions computes what kstatus does of the generic conditions, by
// which Flux and Helm wait.
func TestToolsUnderstandTheConditions(t *testing.T) {
	t.Parallel()
	kstatus := func(generation int64, s v1alpha1.WebhookEndpointStatus) string {
		switch {
		case s.ObservedGeneration != generation:
			return "InProgress"
		case meta.IsStatusConditionTrue(s.Conditions, "Reconciling"):
			return "InProgress"
		case meta.IsStatusConditionTrue(s.Conditions, "Stalled"):
			return "Failed"
		case meta.IsStatusConditionTrue(s.Conditions, "Ready"):
			return "Current"
		}
		return "InProgress"
	}
	of := func(alter ...func(*truth)) v1alpha1.WebhookEndpointStatus {
		return describe(v1alpha1.WebhookEndpointStatus{ObservedGeneration: -1}, truthOf(alter...))
	}
	for name, test := range map[string]struct {
		status v1alpha1.WebhookEndpointStatus
		want   string
	}{
		"never reconciled":                   {v1alpha1.WebhookEndpointStatus{ObservedGeneration: -1}, "InProgress"},
		"ready":                              {of(), "Current"},
		"ready but failing":                  {of(failed(500, "ServerError")), "Current"},
		"an older one":                       {of(func(t *truth) { t.generation = 2 }), "InProgress"},
		"no Secret yet":                      {of(heldFor("SecretNotFound")), "InProgress"},
		"a broken spec":                      {of(heldFor("LimitExceeded")), "Failed"},
		"gone":                               {of(goneAway), "Failed"},
		"store away":                         {describeUnavailable(of(), 3, noon), "InProgress"},
		"store away and the spec was broken": {describeUnavailable(of(heldFor("InvalidSpec")), 3, noon), "InProgress"},
		"a right is missing":                 {describeForbidden(of(), 3, "secrets is forbidden", noon), "InProgress"},
	} {
		if got := kstatus(3, test.status); got != test.want {
			t.Errorf("%s: got %s, want %s (%s)", name, got, test.want, conditionsText(test.status))
		}
	}
}

func conditionsText(s v1alpha1.WebhookEndpointStatus) string {
	var words []string
	for _, c := range s.Conditions {
		words = append(words, c.Type+"="+string(c.Status)+"/"+c.Reason)
	}
	return strings.Join(words, " ")
}

// checkConditions holds for all conditions, whatever they say.
func checkConditions(t *testing.T, s v1alpha1.WebhookEndpointStatus, generation int64, since time.Time) {
	t.Helper()
	if s.ObservedGeneration != generation {
		t.Errorf("observedGeneration: got %d, want %d", s.ObservedGeneration, generation)
	}
	for _, c := range s.Conditions {
		if c.ObservedGeneration != generation || !c.LastTransitionTime.Equal(&metav1.Time{Time: since}) || c.Message == "" {
			t.Errorf("condition %s: got generation %d, transition %s, message %q; want generation %d, transition %s and a message",
				c.Type, c.ObservedGeneration, c.LastTransitionTime, c.Message, generation, since)
		}
	}
}

func TestTheWholeStatus(t *testing.T) {
	t.Parallel()
	end := noon.Add(time.Hour)
	got := describe(v1alpha1.WebhookEndpointStatus{ObservedGeneration: -1}, truthOf(succeeded, failed(503, "ServerError"), func(t *truth) {
		t.row.Keys = []store.SealedKey{{Fingerprint: "sha256:1f0a9c2e"}, {Fingerprint: "sha256:77aa01be", ExpiresAt: end}}
		t.figures.Pending, t.figures.OldestPending, t.figures.DeadLetters = 12, noon, 3
	}))
	got.Conditions = nil
	want := v1alpha1.WebhookEndpointStatus{
		ObservedGeneration:  3,
		EndpointID:          endpointID.String(),
		Effective:           &v1alpha1.EffectiveSettings{Timeout: "10s", MaxAttempts: 12, MaxDuration: "24h", MaxConcurrency: 16},
		SigningKeys:         []v1alpha1.SigningKeyStatus{{Fingerprint: "sha256:1f0a9c2e"}, {Fingerprint: "sha256:77aa01be", ExpiresAt: &metav1.Time{Time: end}}},
		LastSuccessTime:     &metav1.Time{Time: noon},
		LastFailure:         &v1alpha1.LastFailure{Time: metav1.Time{Time: noon}, EventID: eventID.String(), StatusCode: 503, Reason: "ServerError", Message: "the receiver said no"},
		ConsecutiveFailures: new(int64(2)),
		PendingCount:        new(int64(12)),
		OldestPendingTime:   &metav1.Time{Time: noon},
		DeadLetterCount:     new(int64(3)),
		Circuit:             v1alpha1.CircuitClosed,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +\n%s", diff)
	}
}

// TestStatusComesFromFacts: a status that lies is put right, and only times of transitions are taken from it.
func TestStatusComesFromFacts(t *testing.T) {
	t.Parallel()
	before := describe(v1alpha1.WebhookEndpointStatus{}, truthOf(heldFor("InvalidSpec"), failed(500, "ServerError"), circuitIs(v1alpha1.CircuitOpen)))
	later := noon.Add(time.Hour)
	after := describe(before, truthOf(succeeded, func(t *truth) { t.generation, t.now = 4, later }))
	if got, want := conditionsText(after), "Ready=True/Synced Delivering=True/Succeeding"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	checkConditions(t, after, 4, later)
	if after.LastFailure != nil || *after.ConsecutiveFailures != 0 {
		t.Errorf("yesterday's failure is still there: %+v", after)
	}

	again := describe(after, truthOf(succeeded, func(t *truth) { t.generation, t.now = 5, later.Add(time.Hour) }))
	checkConditions(t, again, 5, later) // nothing turned, so the times stay
}

func TestTheSameTruthIsTheSameStatus(t *testing.T) {
	t.Parallel()
	before := describe(v1alpha1.WebhookEndpointStatus{}, truthOf(succeeded, failed(0, "Timeout")))
	after := describe(before, truthOf(succeeded, failed(0, "Timeout"), func(t *truth) { t.now = noon.Add(time.Minute) }))
	if !equality.Semantic.DeepEqual(before, after) {
		t.Errorf("before -, after +\n%s", cmp.Diff(before, after))
	}
}

func TestConditionsOfOthersAndCountsNotKnownYetStay(t *testing.T) {
	t.Parallel()
	before := describe(v1alpha1.WebhookEndpointStatus{}, truthOf(func(t *truth) { t.figures.Pending, t.figures.DeadLetters = 5, 2 }))
	meta.SetStatusCondition(&before.Conditions, metav1.Condition{Type: "Audited", Status: metav1.ConditionTrue, Reason: "Fine"})
	after := describe(before, truthOf(func(t *truth) { t.figures.Counted = false }))
	if meta.FindStatusCondition(after.Conditions, "Audited") == nil {
		t.Error("a condition of somebody else is gone")
	}
	if *after.PendingCount != 5 || *after.DeadLetterCount != 2 {
		t.Errorf("counts that are not known yet: got %d and %d, want those of before", *after.PendingCount, *after.DeadLetterCount)
	}
}

func TestAStoreThatIsAwayLeavesStandingWhatItSaid(t *testing.T) {
	t.Parallel()
	before := describe(v1alpha1.WebhookEndpointStatus{}, truthOf(succeeded, func(t *truth) { t.figures.Pending = 5 }))
	later := noon.Add(time.Minute)
	away := describeUnavailable(before, 4, later)
	if got, want := conditionsText(away), "Ready=Unknown/StoreUnavailable Delivering=True/Succeeding Reconciling=True/Progressing"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if away.ObservedGeneration != 4 || *away.PendingCount != 5 {
		t.Errorf("got generation %d and %d pending, want 4 and 5", away.ObservedGeneration, *away.PendingCount)
	}
	if again := describeUnavailable(away, 4, later.Add(time.Minute)); !equality.Semantic.DeepEqual(away, again) {
		t.Errorf("looking again changes the status: %s", cmp.Diff(away, again))
	}
	back := describe(away, truthOf(succeeded, func(t *truth) { t.generation = 4 }))
	if got, want := conditionsText(back), "Ready=True/Synced Delivering=True/Succeeding"; got != want {
		t.Errorf("back: got %s, want %s", got, want)
	}
}

func TestFiguresAreReadBackFromTheStatus(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]figures{
		"nothing":     {Circuit: v1alpha1.CircuitClosed, Counted: true},
		"not counted": {Circuit: v1alpha1.CircuitClosed, LastSuccess: noon},
		"everything": {
			Circuit: v1alpha1.CircuitOpen, Gone: true, Failures: 4, LastSuccess: noon,
			LastFailure: failure{At: noon, EventID: eventID, Status: 410, Reason: "Gone", Message: "no more"},
			Counted:     true, Pending: 3, OldestPending: noon, DeadLetters: 1,
		},
		"no event": {Circuit: v1alpha1.CircuitHalfOpen, Failures: 1, LastFailure: failure{At: noon, Reason: "SealedKeyUnreadable"}, Counted: true},
	} {
		status := describe(v1alpha1.WebhookEndpointStatus{}, truthOf(func(t *truth) { t.figures = f }))
		if got := shownBy(status, f); got != f {
			t.Errorf("%s: want -, got +\n%s", name, cmp.Diff(f, got))
		}
	}
}

func TestWhatIsUrgent(t *testing.T) {
	t.Parallel()
	base := truthOf(succeeded, failed(503, "ServerError"), func(t *truth) { t.figures.Pending, t.figures.DeadLetters = 5, 1 })
	tests := []struct {
		name  string
		alter func(*truth)
		want  urgency
	}{
		{"nothing", func(*truth) {}, unchanged},
		{"time goes by", func(t *truth) { t.now = t.now.Add(time.Hour) }, unchanged},
		{"a new generation", func(t *truth) { t.generation++ }, material},
		{"a key", func(t *truth) { t.row.Keys = []store.SealedKey{{Fingerprint: "sha256:00000000"}} }, material},
		{"a setting", func(t *truth) { t.row.Spec.Timeout = time.Second }, material},
		{"a hold", heldFor("SecretNotFound"), material},
		{"gone", goneAway, material},
		{"a circuit that opens", circuitIs(v1alpha1.CircuitOpen), material},
		{"the first success after failures", func(t *truth) { t.figures.Failures = 0 }, material},
		{"a dead letter", func(t *truth) { t.figures.DeadLetters++ }, material},
		{"a purged dead letter", func(t *truth) { t.figures.DeadLetters-- }, material},
		{"another success", func(t *truth) { t.figures.LastSuccess = noon.Add(time.Second) }, moving},
		{"one more failure", func(t *truth) { t.figures.Failures++ }, moving},
		{"a failure of another kind", func(t *truth) { t.figures.LastFailure.Reason = "Timeout" }, moving},
		{"pending", func(t *truth) { t.figures.Pending++ }, moving},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			before := describe(v1alpha1.WebhookEndpointStatus{}, base)
			altered := base
			altered.row.Keys = nil
			test.alter(&altered)
			after := describe(before, altered)
			if got := compareStatus(before, after, altered.figures); got != test.want {
				t.Errorf("got %d, want %d", got, test.want)
			}
		})
	}

	held := truthOf(heldFor("InvalidSigningKey"))
	before := describe(v1alpha1.WebhookEndpointStatus{}, held)
	held.hold.Message = "wrong in another way"
	if got := compareStatus(before, describe(before, held), held.figures); got != material {
		t.Errorf("another message of a hold: got %d, want material", got)
	}

	circuits := func(a, b v1alpha1.CircuitState) urgency {
		return compare(figures{Circuit: a, Counted: true}, figures{Circuit: b, Counted: true})
	}
	if got := circuits(v1alpha1.CircuitOpen, v1alpha1.CircuitHalfOpen); got != settling {
		t.Errorf("open to half open: got %d, want settling", got)
	}
	if got := circuits(v1alpha1.CircuitHalfOpen, v1alpha1.CircuitClosed); got != material {
		t.Errorf("half open to closed: got %d, want material", got)
	}
}

func TestCircuit(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		activity store.Activity
		want     v1alpha1.CircuitState
	}{
		"closed":             {store.Activity{}, v1alpha1.CircuitClosed},
		"open":               {store.Activity{OpenUntil: noon.Add(time.Second)}, v1alpha1.CircuitOpen},
		"cooled down":        {store.Activity{OpenUntil: noon}, v1alpha1.CircuitHalfOpen},
		"a probe is sent":    {store.Activity{OpenUntil: noon.Add(time.Minute), Probing: true}, v1alpha1.CircuitHalfOpen},
		"long cooled down":   {store.Activity{OpenUntil: noon.Add(-time.Hour)}, v1alpha1.CircuitHalfOpen},
		"failing but closed": {store.Activity{ConsecutiveFailures: 3}, v1alpha1.CircuitClosed},
	} {
		if got := circuit(test.activity, noon); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

func TestTextsFitTheCRD(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain": "plain", "two\nlines\x00": "twolines", "\xff\xfebytes": "bytes", "žluťoučký": "žluťou",
	} {
		if got := clean(in, max(6, len([]rune(want)))); got != want {
			t.Errorf("clean(%q): got %q, want %q", in, got, want)
		}
	}
	if got := clean(strings.Repeat("ž", 300), 256); len([]rune(got)) != 256 {
		t.Errorf("got %d characters, want 256", len([]rune(got)))
	}
	for _, limit := range []int{1020, 1021, 1022, 1023, 1024} {
		got := cut(strings.Repeat("ž", 1000), limit)
		if len(got) > limit || !strings.HasSuffix(got, "ž…") {
			t.Errorf("cut to %d bytes: got %d, ending in %q", limit, len(got), got[len(got)-5:])
		}
	}
}

func TestEventsTellOfTransitionsOnly(t *testing.T) {
	t.Parallel()
	keys := func(fingerprints ...string) func(*truth) {
		return func(t *truth) {
			t.row.Keys = nil
			for _, f := range fingerprints {
				t.row.Keys = append(t.row.Keys, store.SealedKey{Fingerprint: f})
			}
		}
	}
	dead := func(n int) func(*truth) { return func(t *truth) { t.figures.DeadLetters = n } }
	none := v1alpha1.WebhookEndpointStatus{}
	of := func(alter ...func(*truth)) v1alpha1.WebhookEndpointStatus { return describe(none, truthOf(alter...)) }
	tests := []struct {
		name          string
		before, after v1alpha1.WebhookEndpointStatus
		want          string
	}{
		{"a new endpoint", none, of(), "Normal/Synced"},
		{"a new one without its Secret", none, of(heldFor("SecretNotFound")), "Warning/SecretNotFound"},
		{"its Secret comes", of(heldFor("SecretNotFound")), of(), "Normal/Synced"},
		{"wrong in another way", of(heldFor("SecretNotFound")), of(heldFor("InvalidSigningKey")), "Warning/InvalidSigningKey"},
		{"gone", of(), of(goneAway), "Warning/Gone"},
		{"nothing turned", of(succeeded), of(succeeded, failed(500, "ServerError"), dead(0)), ""},
		{"a circuit opens", of(failed(500, "ServerError")), of(failed(500, "ServerError"), circuitIs(v1alpha1.CircuitOpen)), "Warning/CircuitOpen"},
		{"half opens", of(circuitIs(v1alpha1.CircuitOpen)), of(circuitIs(v1alpha1.CircuitHalfOpen)), ""},
		{"closes", of(circuitIs(v1alpha1.CircuitHalfOpen)), of(succeeded), "Normal/CircuitClosed"},
		{"the first dead letter", of(), of(dead(1)), "Warning/DeadLetters"},
		{"one more", of(dead(1)), of(dead(2)), ""},
		{"a key is rotated", of(keys("a")), of(keys("b", "a")), "Normal/SigningKeyRotated"},
		{"an old key ends", of(keys("b", "a")), of(keys("b")), ""},
		{"the store is away", of(), describeUnavailable(of(), 3, noon), ""},
		{"and back", describeUnavailable(of(), 3, noon), of(), ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var words []string
			for _, a := range announcements(test.before, test.after) {
				words = append(words, a.kind+"/"+a.reason)
				if a.note == "" || len(a.note) > maxNote {
					t.Errorf("%s has a note of %d bytes", a.reason, len(a.note))
				}
			}
			if got := strings.Join(words, " "); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

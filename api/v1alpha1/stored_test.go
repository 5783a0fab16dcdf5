package v1alpha1_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/localstack"
)

// Case K6. The typed client's round trip is part of it: a Go type that rewrites 60m to 1h0m0s would rewrite the spec.
func TestASpecIsStoredAsWritten(t *testing.T) {
	t.Parallel()
	api, namespace := server(t)
	specs := map[string]string{"required": ``, "every": everyField}
	for _, d := range []string{"1h", "60m", "1h0m0s", "00060m", "0h60m"} {
		specs["duration-"+d] = `
signing: {rotationWindow: ` + d + `}
rateLimit: {requests: 5, per: ` + d + `}
retry: {maxDuration: ` + d + `, schedule: [1s, ` + d + `, 1000ms]}
circuitBreaker: {cooldown: ` + d + `, maxCooldown: ` + d + `}`
	}
	for name, spec := range specs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			written := endpoint(t, namespace, name, spec)
			if err := api.Create(t.Context(), written.DeepCopy()); err != nil {
				t.Fatalf("create: %v", err)
			}
			reconcileOnce(t, api, written)
			stored := get(t, api, written)
			if diff := cmp.Diff(written.Object["spec"], stored.Object["spec"]); diff != "" {
				t.Errorf("the stored spec differs from the written one (-written +stored):\n%s", diff)
			}

			var typed v1alpha1.WebhookEndpoint
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(written), &typed); err != nil {
				t.Fatalf("read: %v", err)
			}
			if err := api.Update(t.Context(), &typed); err != nil {
				t.Fatalf("write back what was read: %v", err)
			}
			if diff := cmp.Diff(stored.Object, get(t, api, written).Object); diff != "" {
				t.Errorf("a Go program that reads and writes changes the object (-before +after):\n%s", diff)
			}
		})
	}
}

// The samples are applied into a namespace of the test's own, as the API server would let kubectl apply them, strictly.
func TestApplyingTheSamplesTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	api, namespace := server(t)
	endpoints, paths := 0, map[string]bool{}
	for _, object := range samples(t) {
		if object.GetKind() == "Namespace" {
			continue
		}
		object.SetNamespace(namespace)
		first := apply(t, api, object)
		if object.GetKind() == "WebhookEndpoint" {
			first = reconcileOnce(t, api, object)
		}
		second := apply(t, api, object)
		if diff := cmp.Diff(first.Object, second.Object); diff != "" {
			t.Errorf("%s %s: the second apply changed (-first +second):\n%s", object.GetKind(), object.GetName(), diff)
		}
		if object.GetKind() != "WebhookEndpoint" {
			continue
		}
		endpoints++
		url, _, _ := unstructured.NestedString(object.Object, "spec", "url")
		path, found := strings.CutPrefix(url, "http://receiver.postrider-samples.svc:8080/")
		if !found || paths[path] {
			t.Errorf("%s: url %s: want the receiver of the samples and a path of its own", object.GetName(), url)
		}
		paths[path] = true
	}
	if endpoints != 5 {
		t.Errorf("got %d sample endpoints, want 5", endpoints)
	}
}

func TestWhatIsNotBuiltYetIsRefusedAndNotDropped(t *testing.T) {
	t.Parallel()
	api, namespace := server(t)
	for field, spec := range map[string]string{
		"spec.filter":               `filter: event.data.amount > 100`,
		"spec.tls":                  `tls: {caSecretRef: {name: ca}}`,
		"spec.headers[0].valueFrom": `headers: [{name: Authorization, value: v, valueFrom: {secretKeyRef: {name: auth, key: header}}}]`,
	} {
		err := api.Create(t.Context(), endpoint(t, namespace, "", spec), client.DryRunAll, client.FieldValidation("Strict"))
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `unknown field "`+field+`"`) {
			t.Errorf("%s: got error %v, want the unknown field to be refused", field, err)
		}
	}
}

func TestAWrongChangeIsRefusedToo(t *testing.T) {
	t.Parallel()
	api, namespace := server(t)
	object := endpoint(t, namespace, "ledger", everyField)
	if err := api.Create(t.Context(), object); err != nil {
		t.Fatalf("create: %v", err)
	}
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"retry":{"schedule":["1s"]}}}`))
	causes := refusal(t, api.Patch(t.Context(), object, patch))
	if len(causes) != 1 || causes[0].Field != "spec.retry" {
		t.Errorf("adding a schedule to a backoff: got %+v, want one refusal at spec.retry", causes)
	}
}

func TestAFreshStatusSaysThatNothingWasObserved(t *testing.T) {
	t.Parallel()
	api, namespace := server(t)
	typed := &v1alpha1.WebhookEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "typed"},
		Spec: v1alpha1.WebhookEndpointSpec{
			URL: "https://hooks.example.com/", EventTypes: []v1alpha1.EventTypePattern{"*"},
			Signing: v1alpha1.Signing{SecretRef: v1alpha1.SecretKeyReference{Name: "ledger-signing"}},
		},
		Status: v1alpha1.WebhookEndpointStatus{ObservedGeneration: 7, Circuit: v1alpha1.CircuitOpen},
	}
	untyped := endpoint(t, namespace, "untyped", ``)
	for _, object := range []client.Object{typed, untyped} {
		if err := api.Create(t.Context(), object); err != nil {
			t.Fatalf("create %s: %v", object.GetName(), err)
		}
		stored := endpoint(t, namespace, object.GetName(), ``)
		want := map[string]any{"observedGeneration": int64(-1)}
		if got := get(t, api, stored).Object["status"]; !cmp.Equal(got, any(want)) {
			t.Errorf("%s: status after creation: got %v, want %v", object.GetName(), got, want)
		}
	}
}

// A newer binary beside an older CRD (case K5): reasons and states that this CRD does not know are no reason to refuse a
// status, and nothing of the status is dropped.
func TestAStatusWithUnknownReasonsIsAccepted(t *testing.T) {
	t.Parallel()
	api, namespace := server(t)
	object := &v1alpha1.WebhookEndpoint{}
	created := endpoint(t, namespace, "ledger", everyField)
	if err := api.Create(t.Context(), created); err != nil {
		t.Fatalf("create: %v", err)
	}
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(created), object); err != nil {
		t.Fatalf("read: %v", err)
	}
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	count := int64(1)
	object.Status = v1alpha1.WebhookEndpointStatus{
		ObservedGeneration: object.Generation,
		Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "ReasonOfANewerBinary", LastTransitionTime: now, ObservedGeneration: object.Generation},
			{Type: "ConditionOfANewerBinary", Status: metav1.ConditionTrue, Reason: "New", LastTransitionTime: now},
		},
		EndpointID:      "01981f5e-7c1a-7b3c-9f00-1234567890ab",
		Effective:       &v1alpha1.EffectiveSettings{Timeout: "10s", MaxAttempts: 12, MaxDuration: "24h", MaxConcurrency: 16},
		SigningKeys:     []v1alpha1.SigningKeyStatus{{Fingerprint: "sha256:1f0a9c2e"}, {Fingerprint: "sha256:77aa01be", ExpiresAt: &now}},
		LastSuccessTime: &now,
		LastFailure: &v1alpha1.LastFailure{
			Time: now, EventID: "01981f5e-7c1a-7b3c-9f00-1234567890ac", StatusCode: 799, Reason: "FailureOfANewerBinary", Message: strings.Repeat("ü", 256),
		},
		ConsecutiveFailures: &count, PendingCount: &count, OldestPendingTime: &now, DeadLetterCount: &count,
		Circuit: "StateOfANewerBinary",
	}
	want := object.Status.DeepCopy()
	if err := api.Status().Update(t.Context(), object); err != nil {
		t.Fatalf("the status is refused: %v", err)
	}
	var stored v1alpha1.WebhookEndpoint
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(object), &stored); err != nil {
		t.Fatalf("read: %v", err)
	}
	if diff := cmp.Diff(want, &stored.Status); diff != "" {
		t.Errorf("status (-written +stored):\n%s", diff)
	}
	if stored.Generation != 1 {
		t.Errorf("generation after a status write: got %d, want 1", stored.Generation)
	}

	for field, status := range map[string]string{
		"status.lastFailure.message": `{"lastFailure":{"time":"2026-01-01T00:00:00Z","message":"` + strings.Repeat("ü", 257) + `"}}`,
		"status.circuit":             `{"circuit":"` + strings.Repeat("x", 33) + `"}`,
		"status.pendingCount":        `{"pendingCount":-1}`,
	} {
		patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":`+status+`}`))
		if causes := refusal(t, api.Status().Patch(t.Context(), object.DeepCopy(), patch)); causes[0].Field != field {
			t.Errorf("%s: got %+v, want it refused", field, causes)
		}
	}
}

func TestTheTableShowsWhatAnOperatorAsksFirst(t *testing.T) {
	t.Parallel()
	config := localstack.KubeAPI(t)
	api, namespace := server(t)
	object := endpoint(t, namespace, "ledger", ``)
	if err := api.Create(t.Context(), object); err != nil {
		t.Fatalf("create: %v", err)
	}

	fresh := table(t, config, namespace)
	type column struct {
		Name     string
		Priority int32
	}
	var columns []column
	for _, c := range fresh.ColumnDefinitions {
		columns = append(columns, column{c.Name, c.Priority})
	}
	if diff := cmp.Diff([]column{
		{"Name", 0}, {"URL", 0}, {"Ready", 0}, {"Last Success", 0}, {"Pending", 0}, {"Dead", 0}, {"Age", 0}, {"Circuit", 1}, {"Reason", 1},
	}, columns); diff != "" {
		t.Errorf("columns (-want +got):\n%s", diff)
	}
	if row := fresh.Rows[0].Cells; row[2] != nil || row[4] != nil || row[5] != nil {
		t.Errorf("before the first status: got %v, want no figures rather than zeros", row)
	}

	success := metav1.NewTime(time.Now().Add(-5*time.Minute - 10*time.Second)).Format(time.RFC3339)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"observedGeneration":1,
		"conditions":[
			{"type":"Delivering","status":"False","reason":"CircuitOpen","message":"","lastTransitionTime":"`+success+`"},
			{"type":"Ready","status":"True","reason":"Synced","message":"","lastTransitionTime":"`+success+`"}],
		"lastSuccessTime":"`+success+`","pendingCount":12,"deadLetterCount":0,"circuit":"Open"}}`))
	if err := api.Status().Patch(t.Context(), object, patch); err != nil {
		t.Fatalf("write the status: %v", err)
	}
	row := table(t, config, namespace).Rows[0].Cells
	row[6] = "age"
	want := []any{"ledger", "https://hooks.example.com/invoices", "True", "5m10s", float64(12), float64(0), "age", "Open", "Synced"}
	if since, _ := row[3].(string); strings.HasPrefix(since, "5m") {
		row[3] = "5m10s" // the seconds are this machine's speed
	}
	if diff := cmp.Diff(want, row); diff != "" {
		t.Errorf("row (-want +got):\n%s", diff)
	}
}

func TestEndpointsAreFoundByTheirShortNameAndCategory(t *testing.T) {
	t.Parallel()
	names := crd(t).Spec.Names
	if diff := cmp.Diff([]string{"whe"}, names.ShortNames); diff != "" {
		t.Errorf("short names (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"postrider"}, names.Categories); diff != "" {
		t.Errorf("categories (-want +got):\n%s", diff)
	}
}

// reconcileOnce writes a status, as the controller does soon after an object was made. Until then the default of the
// status is shown but not stored, and the next write of any kind stores it: that moves resourceVersion, once.
func reconcileOnce(t *testing.T, api client.Client, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"status":{"observedGeneration":1}}`))
	if err := api.Status().Patch(t.Context(), object.DeepCopy(), patch); err != nil {
		t.Fatalf("write a status: %v", err)
	}
	return get(t, api, object)
}

// table asks the API server for what kubectl get prints.
func table(t *testing.T, config *rest.Config, namespace string) metav1.Table {
	t.Helper()
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	server, err := rest.UnversionedRESTClientFor(config) // which asks again where the server is busy for a moment
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	text, err := server.Get().AbsPath("/apis/webhooks.postrider.dev/v1alpha1/namespaces", namespace, "webhookendpoints").
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
	if err != nil {
		t.Fatalf("ask for the table: %v", err)
	}
	var answer metav1.Table
	if err := json.Unmarshal(text, &answer); err != nil || len(answer.Rows) != 1 {
		t.Fatalf("table: %d rows, error %v; want one row", len(answer.Rows), err)
	}
	return answer
}

func get(t *testing.T, api client.Client, like *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(like.GroupVersionKind())
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(like), object); err != nil {
		t.Fatalf("read %s %s: %v", like.GetKind(), like.GetName(), err)
	}
	return object
}

// apply applies on the server's side, and returns the object as it is stored then.
func apply(t *testing.T, api client.Client, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	applied := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
	if err := api.Apply(t.Context(), applied, client.FieldOwner("postrider-test"), client.ForceOwnership); err != nil {
		t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
	}
	return get(t, api, object)
}

// samples are the objects of config/samples, in the order of its kustomization.
func samples(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	var kustomization struct{ Resources []string }
	read(t, "../../config/samples/kustomization.yaml", func(text []byte) error { return yaml.Unmarshal(text, &kustomization) })
	var all []*unstructured.Unstructured
	for _, file := range kustomization.Resources {
		all = append(all, objects(t, "../../config/samples/"+file)...)
	}
	return all
}

func objects(t *testing.T, file string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	read(t, file, func(text []byte) error {
		for _, document := range strings.Split(string(text), "\n---\n") {
			object := &unstructured.Unstructured{}
			if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
				return err
			}
			all = append(all, object)
		}
		return nil
	})
	return all
}

func read(t *testing.T, file string, parse func([]byte) error) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = parse(text)
	}
	if err != nil {
		t.Fatalf("read %s: %v", file, err)
	}
}

package v1alpha1_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	jsonpatch "github.com/evanphx/json-patch/v5"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json" // keeps whole numbers whole, as clients read them
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
)

const crdFile = "../../config/crd/bases/webhooks.postrider.dev_webhookendpoints.yaml"

func TestTheAPIServerAcceptsWhatIsRight(t *testing.T) {
	t.Parallel()
	api, namespace := server(t)
	for _, c := range acceptedSpecs() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			object := endpoint(t, namespace, "", c.spec)
			if err := api.Create(t.Context(), object, client.DryRunAll); err != nil {
				t.Errorf("spec %s\nis refused: %v", c.spec, err)
			}
		})
	}
}

// One mistake is told once: a user who reads two messages looks for two mistakes.
func TestTheAPIServerRefusesWhatIsWrongAndNamesTheRemedyOnce(t *testing.T) {
	t.Parallel()
	api, namespace := server(t)
	for _, c := range refusedSpecs() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			causes := refusal(t, api.Create(t.Context(), endpoint(t, namespace, "", c.spec), client.DryRunAll))
			causes = slices.DeleteFunc(causes, func(cause metav1.StatusCause) bool {
				return cause.Field == "<nil>" // the API server's own footnotes
			})
			if len(causes) != 1 || causes[0].Field != c.at || !strings.Contains(causes[0].Message, c.says) {
				t.Errorf("spec %s\ngot  %+v\nwant one refusal, %s: …%s…", c.spec, causes, c.at, c.says)
			}
			// A rule that breaks refuses too, but with CEL's words before ours.
			if strings.Contains(causes[0].Message, "evaluating rule") {
				t.Errorf("spec %s\na rule broke: %s: %s", c.spec, causes[0].Field, causes[0].Message)
			}
		})
	}
}

// Whoever adds a rule or a limit to the CRD is told here to add a case that it refuses.
func TestEveryRuleHasARefusedCase(t *testing.T) {
	t.Parallel()
	index := regexp.MustCompile(`\[\d+\]`)
	refused := map[string][]string{}
	for _, c := range refusedSpecs() {
		at := index.ReplaceAllString(c.at, "[]")
		refused[at] = append(refused[at], c.says)
	}
	spec := crd(t).Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	rules := rulesOf("spec", spec)
	if len(rules) < 50 {
		t.Fatalf("found only %d rules: is this the right file?", len(rules))
	}
	for _, r := range rules {
		if !slices.ContainsFunc(refused[r.at], func(says string) bool { return strings.Contains(says, r.says) }) {
			t.Errorf("no refused case at %s says %q: add one to refusedSpecs", r.at, r.says)
		}
	}
}

// Strings and lists without a limit make rules too dear for the API server, and objects too large for etcd.
func TestEveryStringAndListIsBounded(t *testing.T) {
	t.Parallel()
	var walk func(at string, s apiextensionsv1.JSONSchemaProps)
	walk = func(at string, s apiextensionsv1.JSONSchemaProps) {
		switch {
		case s.Type == "string" && s.MaxLength == nil && s.Enum == nil && s.Format != "date-time":
			t.Errorf("%s is a string without maxLength", at)
		case s.Type == "array" && s.MaxItems == nil:
			t.Errorf("%s is a list without maxItems", at)
		case s.Type == "array" && s.XListType == nil:
			t.Errorf("%s is a list without listType", at)
		case s.AdditionalProperties != nil || s.XPreserveUnknownFields != nil:
			t.Errorf("%s may hold anything", at)
		}
		each(at, s, walk)
	}
	root := crd(t).Spec.Versions[0].Schema.OpenAPIV3Schema
	walk("spec", root.Properties["spec"])
	walk("status", root.Properties["status"])
}

// Nothing is defaulted into what a user wrote (case K6); the one default tells a fresh status from an observed one.
func TestTheOnlyDefaultIsObservedGeneration(t *testing.T) {
	t.Parallel()
	var found []string
	var walk func(at string, s apiextensionsv1.JSONSchemaProps)
	walk = func(at string, s apiextensionsv1.JSONSchemaProps) {
		if s.Default != nil {
			found = append(found, at+"="+string(s.Default.Raw))
		}
		each(at, s, walk)
	}
	walk("", *crd(t).Spec.Versions[0].Schema.OpenAPIV3Schema)
	if want := []string{`.status={"observedGeneration":-1}`}; !slices.Equal(found, want) {
		t.Errorf("defaults: got %q, want %q", found, want)
	}
}

func TestWhatTheAPIServerAdmitsAsDurationParses(t *testing.T) {
	t.Parallel()
	for _, d := range durations {
		for _, text := range append([]string{d.least, d.most}, d.between...) {
			if _, err := v1alpha1.Duration(text).Duration(); err != nil {
				t.Errorf("%s: %q: %v", d.at, text, err)
			}
		}
	}
	for _, text := range notDurations {
		if length, err := v1alpha1.Duration(text).Duration(); err == nil && text != "" {
			t.Errorf("%q: got %v, want an error as the API server gives one", text, length)
		}
	}
}

// rule is something in the schema that may refuse: where it stands, and words of its refusal.
type rule struct{ at, says string }

func rulesOf(at string, s apiextensionsv1.JSONSchemaProps) []rule {
	var rules []rule
	add := func(format string, args ...any) { rules = append(rules, rule{at, fmt.Sprintf(format, args...)}) }
	for _, v := range s.XValidations {
		add("%s", v.Message)
	}
	if s.MaxLength != nil {
		add("Too long: may not be more than %d", *s.MaxLength)
	}
	if s.Minimum != nil {
		add("greater than or equal to %v", *s.Minimum)
	}
	if s.Maximum != nil {
		add("less than or equal to %v", *s.Maximum)
	}
	if s.MinItems != nil {
		add("at least %d items", *s.MinItems)
	}
	if s.MaxItems != nil {
		add("at most %d items", *s.MaxItems)
	}
	if s.Enum != nil {
		add("supported values: ")
	}
	if s.Pattern != "" || s.MinLength != nil {
		add("(a CEL rule instead of pattern or minLength, whose messages name no remedy)")
	}
	for _, name := range s.Required {
		rules = append(rules, rule{at + "." + name, "Required value"})
	}
	if s.XListType != nil && *s.XListType != "atomic" {
		rules = append(rules, rule{at + "[]", "Duplicate value"})
	}
	each(at, s, func(at string, s apiextensionsv1.JSONSchemaProps) { rules = append(rules, rulesOf(at, s)...) })
	return rules
}

func each(at string, s apiextensionsv1.JSONSchemaProps, visit func(string, apiextensionsv1.JSONSchemaProps)) {
	for name, property := range s.Properties {
		visit(at+"."+name, property)
	}
	if s.Items != nil {
		visit(at+"[]", *s.Items.Schema)
	}
}

func crd(t *testing.T) apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	text, err := os.ReadFile(crdFile)
	if err != nil {
		t.Fatalf("read the CRD: %v", err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		t.Fatalf("parse %s: %v", crdFile, err)
	}
	return crd
}

// endpoint is baseSpec with a YAML merge patch over it. Without a name the API server makes one.
func endpoint(t *testing.T, namespace, name, patch string) *unstructured.Unstructured {
	t.Helper()
	spec, err := jsonpatch.MergePatch(
		[]byte(`{"spec":`+toJSON(fromYAML(t, baseSpec))+`}`), []byte(`{"spec":`+toJSON(fromYAML(t, patch))+`}`))
	if patch == "" {
		spec, err = []byte(`{"spec":`+toJSON(fromYAML(t, baseSpec))+`}`), nil
	}
	if err != nil {
		t.Fatalf("patch %s: %v", patch, err)
	}
	object := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(spec, &object.Object); err != nil {
		t.Fatalf("patch %s: %v", patch, err)
	}
	object.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("WebhookEndpoint"))
	object.SetNamespace(namespace)
	if object.SetName(name); name == "" {
		object.SetGenerateName("ledger-")
	}
	return object
}

func refusal(t *testing.T, err error) []metav1.StatusCause {
	t.Helper()
	if !apierrors.IsInvalid(err) {
		t.Fatalf("got error %v, want the API server to refuse the spec as invalid", err)
	}
	status := apierrors.APIStatus(nil)
	errors.As(err, &status)
	return status.Status().Details.Causes
}

func fromYAML(t *testing.T, text string) any {
	t.Helper()
	var value any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatalf("parse %s: %v", text, err)
	}
	return value
}

func toJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // what came from YAML goes to JSON
	}
	return string(text)
}

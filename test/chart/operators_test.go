package chart

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/client-go/kubernetes/scheme"
)

// crdFolders are where the modules that operators/go.mod pins have their CRDs.
var crdFolders = map[string]string{
	"github.com/cert-manager/cert-manager":                  "deploy/crds",
	"github.com/cloudnative-pg/cloudnative-pg":              "config/crd/bases",
	"github.com/kedacore/keda/v2":                           "config/crd/bases",
	"github.com/prometheus-operator/prometheus-operator":    "example/prometheus-operator-crd",
	"github.com/postrider/postrider (this very repository)": "config/crd/bases",
}

// operatorKinds are those that the scenarios must have made, or the test has nothing to look at.
var operatorKinds = []string{"Certificate", "Cluster", "PodMonitor", "PrometheusRule", "ScaledObject", "ServiceMonitor", "WebhookEndpoint"}

// Objects of the operators' kinds, and endpoints, are what their CRDs allow: no unknown field, valid by schema and by rule.
func TestObjectsOfOperatorsAreWhatTheirCRDsAllow(t *testing.T) {
	t.Parallel()
	crds, err := readCRDs()
	if err != nil {
		t.Fatal(err)
	}
	more := []scenario{
		{name: "CloudNativePG, as docs/high-availability.md has it", values: `database: {cloudnativePG: {enabled: true, imageName: "ghcr.io/cloudnative-pg/postgresql:18", storage: {storageClass: fast}, spec: {postgresql: {synchronous: {method: any, number: 1}}}}}`},
		{name: "KEDA with authentication", values: `dispatcher: {autoscaling: {mode: KEDA, keda: {serverAddress: "https://prometheus:9090", trigger: {authenticationRef: {name: prometheus}}}}}`},
		{name: "monitoring with labels", kinds: monitoringKinds, values: `monitoring: {podMonitor: {interval: 15s, labels: {release: prometheus}}, prometheusRule: {labels: {release: prometheus}}}`},
	}
	seen := map[string]bool{}
	for _, s := range slices.Concat(scenarios, more) {
		for _, o := range render(t, s).objects {
			if scheme.Scheme.Recognizes(o.GroupVersionKind()) || o.GetKind() == "CustomResourceDefinition" {
				continue
			}
			seen[o.GetKind()] = true
			for _, problem := range crds.problems(o) {
				t.Errorf("%s: %s %s: %s", s.name, o.GetKind(), o.GetName(), problem)
			}
		}
	}
	for _, kind := range operatorKinds {
		if !seen[kind] {
			t.Errorf("no scenario makes a %s", kind)
		}
	}
}

// That what is wrong is found.
func TestWhatACRDForbidsIsFound(t *testing.T) {
	t.Parallel()
	crds, err := readCRDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, object, want string }{
		{"an unknown field", `{"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "spec": {"selector": {}, "podMetricsEndpoint": []}}`, "podMetricsEndpoint"},
		{"a wrong type", `{"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "spec": {"scaleTargetRef": {"name": "d"}, "minReplicaCount": "2", "triggers": []}}`, "minReplicaCount"},
		{"a missing field", `{"apiVersion": "cert-manager.io/v1", "kind": "Certificate", "spec": {"secretName": "s"}}`, "issuerRef"},
		{"a broken rule", `{"apiVersion": "webhooks.postrider.dev/v1alpha1", "kind": "WebhookEndpoint", "spec": {"url": "https://user:password@example.com/", "eventTypes": ["*"], "signing": {"secretRef": {"name": "s"}}}}`, "spec.url"},
	} {
		var o unstructured.Unstructured
		if err := json.Unmarshal([]byte(c.object), &o.Object); err != nil {
			t.Fatal(err)
		}
		found := crds.problems(&o)
		if !slices.ContainsFunc(found, func(p string) bool { return strings.Contains(p, c.want) }) {
			t.Errorf("%s: got %q, want something about %s", c.name, found, c.want)
		}
	}
}

// definitions make, of each version of a kind, what judges its objects.
type definitions map[schema.GroupVersionKind]func() (*crd, error)

type crd struct {
	structure *structuralschema.Structural
	schema    validation.SchemaValidator
	rules     *cel.Validator
}

// problems does what the API server does when it takes an object with strict field validation.
func (d definitions) problems(o *unstructured.Unstructured) []string {
	read, known := d[o.GroupVersionKind()]
	if !known {
		return []string{"nobody defines this kind in " + o.GetAPIVersion()}
	}
	c, err := read()
	if err != nil {
		return []string{err.Error()}
	}
	var object map[string]any
	text, err := json.Marshal(o.Object)
	if err == nil {
		err = utiljson.Unmarshal(text, &object) // whole numbers are whole, as the API server reads them
	}
	if err != nil {
		return []string{err.Error()}
	}
	var problems []string
	for _, path := range pruning.PruneWithOptions(object, c.structure, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}) {
		problems = append(problems, "unknown field "+path)
	}
	defaulting.Default(object, c.structure)
	for _, err := range validation.ValidateCustomResource(nil, object, c.schema) {
		problems = append(problems, err.Error())
	}
	broken, _ := c.rules.Validate(context.Background(), nil, c.structure, object, nil, celconfig.RuntimeCELCostBudget)
	for _, err := range broken {
		problems = append(problems, err.Error())
	}
	return problems
}

// readCRDs reads all of them, once.
var readCRDs = sync.OnceValues(func() (definitions, error) {
	modules, err := downloadOperators()
	if err != nil {
		return nil, err
	}
	modules["github.com/postrider/postrider (this very repository)"] = top
	all := definitions{}
	for module, folder := range crdFolders {
		files, err := filepath.Glob(filepath.Join(modules[module], folder, "*.yaml"))
		if err != nil || len(files) == 0 || modules[module] == "" {
			return nil, fmt.Errorf("%s has no CRDs in %s (%w)", module, folder, err)
		}
		for _, file := range files {
			if err := addCRDs(all, file); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return all, nil
})

// downloadOperators has the modules put into the module cache and returns their folders.
func downloadOperators() (map[string]string, error) {
	cmd := exec.Command("go", "mod", "download", "-json") //nolint:noctx // the test binary's own timeout ends it
	cmd.Dir, cmd.Env, cmd.Stderr = "operators", append(os.Environ(), "GOWORK=off", "GOFLAGS="), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go mod download in test/chart/operators: %w\n%s", err, out)
	}
	folders := map[string]string{}
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var module struct{ Path, Dir string }
		if err := decoder.Decode(&module); errors.Is(err, io.EOF) {
			return folders, nil
		} else if err != nil {
			return nil, fmt.Errorf("read what go mod download says: %w", err)
		}
		folders[module.Path] = module.Dir
	}
}

func addCRDs(all definitions, file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	objects, err := decode(string(text))
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetKind() != "CustomResourceDefinition" {
			continue
		}
		var definition apiextensionsv1.CustomResourceDefinition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &definition); err != nil {
			return err
		}
		for _, v := range definition.Spec.Versions {
			kind := schema.GroupVersionKind{Group: definition.Spec.Group, Version: v.Name, Kind: definition.Spec.Names.Kind}
			all[kind] = sync.OnceValues(func() (*crd, error) { return newCRD(v.Schema.OpenAPIV3Schema) })
		}
	}
	return nil
}

func newCRD(props *apiextensionsv1.JSONSchemaProps) (*crd, error) {
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(props, &internal, nil); err != nil {
		return nil, err
	}
	structure, err := structuralschema.NewStructural(&internal)
	if err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, err
	}
	return &crd{structure, validator, cel.NewValidator(structure, true, celconfig.PerCallLimit)}, nil
}

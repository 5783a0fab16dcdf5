package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

const chartFolder = "../../charts/postrider"

// scenario is a way to install the chart.
type scenario struct {
	name   string
	values string
	// kinds are further kinds that the cluster has, as group/version/Kind. A templating tool sees none.
	kinds []string
}

// monitoringKinds are those of the Prometheus operator.
var monitoringKinds = []string{
	"monitoring.coreos.com/v1/PodMonitor", "monitoring.coreos.com/v1/ServiceMonitor", "monitoring.coreos.com/v1/PrometheusRule",
}

// scenarios are rendered by every test about all of them.
var scenarios = []scenario{
	{name: "defaults"},
	{name: "external database", values: `database: {existingSecret: pg, keys: {directURL: direct, ownerURL: owner}, tls: {caSecret: pg-ca}}`},
	{name: "CloudNativePG", values: `database: {cloudnativePG: {enabled: true, spec: {resources: {requests: {cpu: "2"}}}}}`},
	{name: "watchNamespaces", values: `watchNamespaces: [billing, shop]`},
	{name: "HPA", values: `{dispatcher: {autoscaling: {mode: HPA}}, ingest: {autoscaling: {enabled: true}}}`},
	{name: "KEDA", values: `dispatcher: {autoscaling: {mode: KEDA, keda: {serverAddress: "http://prometheus:9090"}}}`},
	{name: "monitoring", kinds: monitoringKinds},
	{name: "monitoring by ServiceMonitor", values: `monitoring: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}, grafanaDashboard: {enabled: "true"}}`},
	{name: "metrics for some", values: `{metrics: {auth: true}, monitoring: {serviceMonitor: {enabled: true}}}`},
	{name: "metrics for some by PodMonitor", values: `{metrics: {auth: true, tokenSecret: {name: scrape}}, monitoring: {podMonitor: {enabled: true}}}`},
	{name: "monitoring off", values: `monitoring: {podMonitor: {enabled: false}, prometheusRule: {enabled: false}, grafanaDashboard: {enabled: false}}`, kinds: monitoringKinds},
	{name: "OpenShift", values: `postgres: {embedded: {runAsUser: null, fsGroup: null}}`},
	{name: "tests and TLS", values: `{tests: {enabled: true, clusterIP: 10.96.0.77}, ingest: {tls: {certManager: {enabled: true, issuerRef: {name: ca, kind: ClusterIssuer}}}}}`},
	{name: "own Secrets", values: `{keyring: {existingSecret: ring}, postgres: {embedded: {existingSecret: pg}}}`},
	{name: "everything set", values: everything},
}

// everything sets what the others leave at its default.
const everything = `
fullnameOverride: hooks
commonLabels: {team: platform}
image: {digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef, pullPolicy: Always}
imagePullSecrets: [{name: pull}]
serviceAccounts: {controller: {name: theirs}, ingest: {annotations: {note: kept}}}
destination: {allowedCIDRs: [10.1.0.0/16, "fd00::/8"], deniedCIDRs: [10.1.2.0/24], allowedPorts: [443, 8443], allowHTTP: true}
defaults: {timeout: 5s, maxConcurrency: 4, backoffBase: 1s, failureThreshold: 20}
limits: {timeout: 20s, maxAttempts: 50}
controller: {replicas: 1, takeOver: true, confirmSweep: true, settings: {workers: 4, pprof: true}, extraEnv: [{name: GOMEMLIMIT, value: 200MiB}]}
dispatcher: {replicas: 1, settings: {senders: 1000, lease: 2m, rememberedEndpoints: 2000000}, podAnnotations: {a: b}, podLabels: {c: d}, nodeSelector: {disk: fast}}
ingest: {replicas: 1, topologySpreadConstraints: null, priorityClassName: high, settings: {bodyLimit: 1048576, reviewAllowFor: 10s}, tls: {existingSecret: tls}}
networkPolicy: {ingestFrom: [{namespaceSelector: {}}], metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}
tests: {enabled: true, allowedCIDRs: [10.244.0.0/16, 10.96.0.0/12]}
`

// release is what rendering gave.
type release struct {
	objects []*unstructured.Unstructured
	notes   string
}

// rendered remembers what render gave for the same values: every test looks at most scenarios, and none changes an object.
var rendered = struct {
	sync.Mutex
	by map[string]func() (release, error)
}{by: map[string]func() (release, error){}}

// render renders as `helm install postrider -n postrider-system` does, or as a templating tool: there is no cluster to ask.
func render(t testing.TB, s scenario) release {
	t.Helper()
	key := s.values + strings.Join(s.kinds, ",")
	rendered.Lock()
	once := rendered.by[key]
	if once == nil {
		once = sync.OnceValues(func() (release, error) { return tryRender(s) })
		rendered.by[key] = once
	}
	rendered.Unlock()
	r, err := once()
	if err != nil {
		t.Fatalf("render %q: %v", s.name, err)
	}
	return r
}

func tryRender(s scenario) (release, error) {
	var values map[string]any
	if err := yaml.Unmarshal([]byte(s.values), &values); err != nil {
		return release{}, fmt.Errorf("the values of the test: %w", err)
	}
	loaded, err := loader.Load(chartFolder)
	if err != nil {
		return release{}, err
	}
	return renderChart(loaded, values, s.kinds)
}

func renderChart(loaded *chartv2.Chart, values map[string]any, kinds []string) (release, error) {
	capabilities := common.DefaultCapabilities.Copy()
	capabilities.KubeVersion = common.KubeVersion{Version: "v1.37.2", Major: "1", Minor: "37"}
	capabilities.APIVersions = append(slices.Clone(capabilities.APIVersions), kinds...)
	options := common.ReleaseOptions{Name: "postrider", Namespace: "postrider-system", Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(loaded, values, options, capabilities)
	if err != nil {
		return release{}, err
	}
	files, err := engine.Render(loaded, all)
	if err != nil {
		return release{}, err
	}
	var r release
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if strings.HasSuffix(name, "NOTES.txt") {
			r.notes = files[name]
			continue
		}
		objects, err := decode(files[name])
		if err != nil {
			return release{}, fmt.Errorf("%s: %w\n%s", name, err, files[name])
		}
		r.objects = append(r.objects, objects...)
	}
	return r, nil
}

func decode(text string) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := utilyaml.NewYAMLReader(newReader(text))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(document)) == 0 {
			continue
		}
		var object map[string]any
		if err := yaml.UnmarshalStrict(document, &object); err != nil {
			return nil, err
		}
		if len(object) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: object})
		}
	}
}

// get returns the object of a kind and name.
func (r release) get(t testing.TB, kind, name string) *unstructured.Unstructured {
	t.Helper()
	if o := r.find(kind, name); o != nil {
		return o
	}
	var names []string
	for _, o := range r.objects {
		names = append(names, o.GetKind()+"/"+o.GetName())
	}
	t.Fatalf("there is no %s %q among %v", kind, name, names)
	return nil
}

func (r release) find(kind, name string) *unstructured.Unstructured {
	for _, o := range r.objects {
		if o.GetKind() == kind && o.GetName() == name {
			return o
		}
	}
	return nil
}

func (r release) names(kind string) []string {
	var names []string
	for _, o := range r.objects {
		if o.GetKind() == kind {
			names = append(names, o.GetName())
		}
	}
	slices.Sort(names)
	return names
}

// as converts an object into its type, and fails if a field is unknown there.
func as[T any](t testing.TB, o *unstructured.Unstructured) T {
	t.Helper()
	var typed T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, &typed, true); err != nil {
		t.Fatalf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
	return typed
}

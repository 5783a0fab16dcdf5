package chart

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/lint"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

const (
	top       = "../.."
	reference = top + "/docs/reference/postrider.md"
)

// The chart's CRDs and rules have one source with config/: `make generate` copies them.
func TestChartAndConfigHaveTheSameCRDs(t *testing.T) {
	t.Parallel()
	r := render(t, scenario{})
	sources := manifests(t, top+"/config/crd/bases/*.yaml")
	same(t, "CRDs", r.names("CustomResourceDefinition"), slices.Collect(maps.Keys(sources))...)
	for name, source := range sources {
		got := r.get(t, "CustomResourceDefinition", name)
		if got.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
			t.Errorf("%s is deleted with the release, and all objects with it", name)
		}
		if !cmp.Equal(got.Object["spec"], source.Object["spec"]) {
			t.Errorf("%s differs from config/crd/bases; run: make generate\n%s", name, cmp.Diff(source.Object["spec"], got.Object["spec"]))
		}
		for key, value := range source.GetAnnotations() {
			if got.GetAnnotations()[key] != value {
				t.Errorf("%s: annotation %s: got %q, want %q", name, key, got.GetAnnotations()[key], value)
			}
		}
	}
	if off := render(t, scenario{values: `crds: {enabled: false}`}); len(off.names("CustomResourceDefinition")) != 0 {
		t.Error("there are CRDs without crds.enabled")
	}
}

func TestChartAndConfigGrantTheSame(t *testing.T) {
	t.Parallel()
	config := manifests(t, top+"/config/rbac/*role.yaml")
	r := render(t, scenario{})
	narrow := render(t, scenario{values: `watchNamespaces: [billing]`})
	for _, c := range []struct {
		release      release
		kind, name   string
		source       string
		labelsToo    bool
		namespacedIn string
	}{
		{r, "ClusterRole", "postrider-postrider-system-controller", "postrider-controller", false, ""},
		{narrow, "Role", "postrider-postrider-system-controller", "postrider-controller", false, "billing"},
		{r, "Role", "postrider-leader-election", "postrider-leader-election", false, "postrider-system"},
		{r, "ClusterRole", "postrider-viewer", "postrider-viewer", true, ""},
		{r, "ClusterRole", "postrider-editor", "postrider-editor", true, ""},
		{r, "ClusterRole", "postrider-producer", "postrider-producer", true, ""},
	} {
		got, source := c.release.get(t, c.kind, c.name), config[c.source]
		if source == nil {
			t.Errorf("config/rbac has no role %q", c.source)
			continue
		}
		if !cmp.Equal(got.Object["rules"], source.Object["rules"]) {
			t.Errorf("%s %s differs from config/rbac; run: make generate\n%s", c.kind, c.name, cmp.Diff(source.Object["rules"], got.Object["rules"]))
		}
		if got.GetNamespace() != c.namespacedIn {
			t.Errorf("%s %s is in namespace %q, want %q", c.kind, c.name, got.GetNamespace(), c.namespacedIn)
		}
		if !c.labelsToo {
			continue
		}
		for key, value := range source.GetLabels() {
			if got.GetLabels()[key] != value {
				t.Errorf("%s: label %s: got %q, want %q", c.name, key, got.GetLabels()[key], value)
			}
		}
	}
	plain := render(t, scenario{values: `rbac: {aggregate: false}`}).get(t, "ClusterRole", "postrider-viewer")
	for key := range plain.GetLabels() {
		if strings.Contains(key, "aggregate-to") {
			t.Errorf("rbac.aggregate false: label %s is there", key)
		}
	}
}

// manifests reads objects by name.
func manifests(t *testing.T, pattern string) map[string]*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %v, %v", pattern, files, err)
	}
	all := map[string]*unstructured.Unstructured{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects, err := decode(string(text))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, o := range objects {
			all[o.GetName()] = o
		}
	}
	return all
}

// flags returns the variables that each command knows, from the generated reference.
func flags(t *testing.T) map[string]map[string]bool {
	t.Helper()
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]bool{}
	for section := range strings.SplitSeq(string(text), "\n## postrider ") {
		command, body, _ := strings.Cut(section, "\n")
		all[command] = map[string]bool{}
		for _, found := range regexp.MustCompile("\\| `(POSTRIDER_[A-Z_]+)` \\|").FindAllStringSubmatch(body, -1) {
			all[command][found[1]] = true
		}
	}
	return all
}

// mayChange returns the settings of a command that its settings file may hold.
func mayChange(t *testing.T, command string) map[string]bool {
	t.Helper()
	text, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "\n## postrider "+command+"\n")
	section, _, _ = strings.Cut(section, "\n## ")
	names := map[string]bool{}
	for _, found := range regexp.MustCompile("\\| `--([a-z-]+)` † \\|").FindAllStringSubmatch(section, -1) {
		names[found[1]] = true
	}
	return names
}

// What may change while a part runs is in its settings file alone: a variable would win, and never change.
func TestSettingsThatMayChangeAreInTheSettingsFileAlone(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			r := render(t, s)
			for _, p := range r.pods(t) {
				c := p.spec.Containers[0]
				if c.Name != "controller" && c.Name != "dispatcher" && c.Name != "ingest" {
					continue
				}
				known := mayChange(t, c.Name)
				if len(known) == 0 {
					t.Fatalf("nothing of %s may change, says the reference", c.Name)
				}
				for name, value := range settingsFile(t, r, c.Name) {
					if !known[name] {
						t.Errorf("%s: the settings file has %s, which may not change while it runs", c.Name, name)
					}
					if text := fmt.Sprint(value); value == nil || strings.Contains(text, "e+") || strings.Contains(text, "map[") {
						t.Errorf("%s: %s is %v", c.Name, name, value)
					}
				}
				for _, name := range variables(t, r, c) {
					if flag := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "POSTRIDER_"), "_", "-")); known[flag] {
						t.Errorf("%s gets %s as a variable, which wins over its settings file", c.Name, name)
					}
				}
				if from := configMapOf(p, c, "POSTRIDER_SETTINGS_FILE"); !strings.HasSuffix(from, "-settings/"+c.Name+".yaml") {
					t.Errorf("%s follows %q", c.Name, from)
				}
			}
		})
	}
}

func variables(t *testing.T, r release, c corev1.Container) []string {
	t.Helper()
	var names []string
	for _, e := range c.Env {
		names = append(names, e.Name)
	}
	for _, from := range c.EnvFrom {
		names = slices.AppendSeq(names, maps.Keys(as[corev1.ConfigMap](t, r.get(t, "ConfigMap", from.ConfigMapRef.Name)).Data))
	}
	return names
}

// configMapOf says which entry of which ConfigMap a container finds in the file that a variable names. A subPath would
// never change.
func configMapOf(p pod, c corev1.Container, variable string) string {
	path := variableOf(c, variable).Value
	for _, m := range c.VolumeMounts {
		inside, below := strings.CutPrefix(path, m.MountPath+"/")
		for _, v := range p.spec.Volumes {
			if !below || v.Name != m.Name || v.ConfigMap == nil || m.SubPath != "" {
				continue
			}
			for _, item := range v.ConfigMap.Items {
				if item.Path == inside {
					return v.ConfigMap.Name + "/" + item.Key
				}
			}
		}
	}
	return ""
}

// A misspelt variable is ignored in silence: each one that a container gets is a flag of the command that it runs.
func TestEveryVariableIsAFlagOfItsCommand(t *testing.T) {
	t.Parallel()
	known := flags(t)
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			r := render(t, s)
			for _, p := range r.pods(t) {
				for _, c := range p.containers() {
					if c.Name == "postgres" {
						continue
					}
					command := strings.Join(slices.DeleteFunc(slices.Clone(c.Args), func(arg string) bool { return strings.HasPrefix(arg, "-") }), " ")
					if known[command] == nil {
						t.Errorf("%s/%s runs `postrider %s`, which does not exist", p.name, c.Name, command)
						continue
					}
					names := map[string]bool{}
					for _, e := range c.Env {
						if names[e.Name] {
							t.Errorf("%s/%s: %s is given twice", p.name, c.Name, e.Name)
						}
						names[e.Name] = true
					}
					for _, from := range c.EnvFrom {
						data, _, err := unstructured.NestedStringMap(r.get(t, "ConfigMap", from.ConfigMapRef.Name).Object, "data")
						if err != nil {
							t.Errorf("ConfigMap %s: %v", from.ConfigMapRef.Name, err)
						}
						for name, value := range data {
							names[name] = true
							if strings.Contains(value, "e+") || strings.Contains(value, "map[") || value == "" {
								t.Errorf("ConfigMap %s: %s is %q", from.ConfigMapRef.Name, name, value)
							}
						}
					}
					for name := range names {
						if strings.HasPrefix(name, "POSTRIDER_") && !known[command][name] {
							t.Errorf("%s/%s: `postrider %s` knows no %s", p.name, c.Name, command, name)
						}
					}
				}
			}
		})
	}
}

// Each flag of a part can be given by a value: one of its own, or settings.
func TestEveryFlagOfAPartCanBeGiven(t *testing.T) {
	t.Parallel()
	// Flags that the chart decides, and those whose values have names of their own.
	decided := regexp.MustCompile(`^POSTRIDER_(NAMESPACE|SETTINGS_FILE|RELEASE|KUBECONFIG|ADDRESS|METRICS_ADDRESS|METRICS_AUTH|LEADER_ELECTION|INSECURE_NO_AUTH|KEYRING_FILE|DATABASE_(URL|DIRECT_URL|URL_FILE|DIRECT_URL_FILE|PASSWORD_FILE|MAX_CONNS)|TLS_.*|LOG_.*|DESTINATION_.*|DEFAULT_.*|LIMIT_.*|WATCH_NAMESPACES|TAKE_OVER|CONFIRM_SWEEP|[A-Z]+_RETENTION|DEAD_LETTER_RETENTION|IDEMPOTENCY_WINDOW|GRACE|START_PAUSED|DRAIN_DELAY|SHUTDOWN_TIMEOUT|CONTROLLER_SHUTDOWN_TIMEOUT)$`)
	schema := readSchema(t)
	for _, part := range []string{"controller", "dispatcher", "ingest"} {
		given := map[string]bool{}
		for name := range dig(t, schema, "properties", part, "properties", "settings", "properties") {
			given["POSTRIDER_"+snake(name)] = true
		}
		for flag := range flags(t)[part] {
			if !decided.MatchString(flag) && !given[flag] {
				t.Errorf("no value gives %s to %s; add it to %s.settings in values.schema.json", flag, part, part)
			}
			delete(given, flag)
		}
		for flag := range given {
			t.Errorf("%s.settings allows what gives %s, which %s does not know", part, flag, part)
		}
	}
	for _, c := range []struct{ group, prefix string }{{"defaults", "POSTRIDER_DEFAULT_"}, {"limits", "POSTRIDER_LIMIT_"}} {
		given := map[string]bool{}
		for name := range dig(t, schema, "properties", c.group, "properties") {
			given[c.prefix+snake(name)] = true
		}
		for flag := range flags(t)["controller"] {
			if strings.HasPrefix(flag, c.prefix) && !given[flag] {
				t.Errorf("no value gives %s; add it to %s in values.schema.json", flag, c.group)
			}
			delete(given, flag)
		}
		if len(given) > 0 {
			t.Errorf("%s allows what gives %v, which the controller does not know", c.group, given)
		}
	}
}

func snake(name string) string {
	return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name, "${1}_$2"))
}

func readSchema(t *testing.T) map[string]any {
	t.Helper()
	text, err := os.ReadFile(chartFolder + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	return schema
}

func dig(t *testing.T, object map[string]any, path ...string) map[string]any {
	t.Helper()
	for _, name := range path {
		next, ok := object[name].(map[string]any)
		if !ok {
			t.Fatalf("values.schema.json: there is no %v", path)
		}
		object = next
	}
	return object
}

func TestHelmLintFindsNothing(t *testing.T) {
	t.Parallel()
	linted := lint.RunAll(chartFolder, map[string]any{}, "postrider-system")
	for _, m := range linted.Messages {
		if strings.Contains(m.Err.Error(), "icon is recommended") {
			continue // there is none
		}
		t.Errorf("%s: %v", m.Path, m.Err)
	}
}

// As a dependency the chart gets global values, and perhaps the condition that enables it.
func TestTheChartWorksInsideAnother(t *testing.T) {
	t.Parallel()
	child, err := loader.Load(chartFolder)
	if err != nil {
		t.Fatal(err)
	}
	parent := &chartv2.Chart{Metadata: &chartv2.Metadata{
		APIVersion: "v2", Name: "platform", Version: "1.0.0",
		Dependencies: []*chartv2.Dependency{{Name: "postrider", Version: "*", Condition: "postrider.enabled"}},
	}}
	parent.AddDependency(child)
	r, err := renderChart(parent, map[string]any{
		"global":    map[string]any{"registry": "r.io"},
		"postrider": map[string]any{"enabled": true, "dispatcher": map[string]any{"replicas": 3}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := as[appsv1.Deployment](t, r.get(t, "Deployment", "postrider-dispatcher")).Spec.Replicas; got == nil || *got != 3 {
		t.Errorf("replicas: got %v, want 3", got)
	}
}

// The guide for trouble has every reason that the API gives.
func TestTheTroubleshootingGuideHasEveryReason(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile(top + "/docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	api, err := os.ReadFile(top + "/api/v1alpha1/conditions.go")
	if err != nil {
		t.Fatal(err)
	}
	reasons := regexp.MustCompile(`Reason[A-Za-z]+ += "([A-Za-z]+)"`).FindAllStringSubmatch(string(api), -1)
	if len(reasons) < 15 {
		t.Fatalf("only %d reasons were found in the API", len(reasons))
	}
	for _, found := range reasons {
		switch reason := found[1]; reason {
		case "Synced", "Succeeding", "NoAttempts", "Progressing": // no trouble
		default:
			if !strings.Contains(string(guide), "`"+reason+"`") {
				t.Errorf("docs/troubleshooting.md does not say what to do about %s", reason)
			}
		}
	}
}

// Values that the documentation names are values of the chart.
func TestDocsNameOnlyValuesThatExist(t *testing.T) {
	t.Parallel()
	schema := readSchema(t)
	groups := slices.Collect(maps.Keys(dig(t, schema, "properties")))
	named := regexp.MustCompile("(?:`|--set '?)((?:" + strings.Join(groups, "|") + `)(?:\.[A-Za-z]+)+)`)
	files, err := filepath.Glob(top + "/docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range named.FindAllStringSubmatch(string(text), -1) {
			found++
			if !isValue(schema, strings.Split(match[1], ".")) {
				t.Errorf("%s names %s, which the chart does not have", filepath.Base(file), match[1])
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d values were found in the documentation", found)
	}
}

func isValue(schema map[string]any, path []string) bool {
	for _, name := range path {
		properties, ok := schema["properties"].(map[string]any)
		if !ok {
			return schema["type"] == "object" // free below here
		}
		if schema, ok = properties[name].(map[string]any); !ok {
			return false
		}
	}
	return true
}

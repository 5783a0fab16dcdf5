package chart

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	lua "github.com/yuin/gopher-lua"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const healthKey = "resource.customizations.health.webhooks.postrider.dev_WebhookEndpoint"

// The endpoints in testdata are as an installation left them; only ids, addresses and ports were made to look alike. Each is
// named after what it has been through.
func TestArgoCDTellsTheHealthOfEndpoints(t *testing.T) {
	t.Parallel()
	script := healthScript(t)
	crds, err := readCRDs()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]struct{ status, message string }{
		"just-created":        {"Progressing", "not seen this generation"},
		"just-changed":        {"Progressing", "not seen this generation"},
		"store-unavailable":   {"Progressing", "store cannot be reached"},
		"secret-not-found":    {"Progressing", `there is no Secret "to-come"`},
		"not-sent-yet":        {"Healthy", "Nothing was sent yet."},
		"succeeding":          {"Healthy", "The last attempt succeeded."},
		"failing":             {"Healthy", "The last attempt failed"}, // the receiver's trouble, for now
		"circuit-open":        {"Degraded", "So many attempts failed"},
		"invalid-signing-key": {"Degraded", "9 bytes long"},
		"url-not-allowed":     {"Degraded", "destination not allowed"},
		"paused":              {"Suspended", "state: Paused"},
		"disabled":            {"Suspended", "state: Disabled"},
	}
	files, err := filepath.Glob("testdata/endpoints/*.yaml")
	if err != nil || len(files) != len(want) {
		t.Fatalf("%d endpoints in testdata, want %d: %v", len(files), len(want), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var endpoint unstructured.Unstructured
			if err := yaml.Unmarshal(text, &endpoint.Object); err != nil {
				t.Fatal(err)
			}
			if problems := crds.problems(&endpoint); len(problems) > 0 {
				t.Errorf("the API server would not have it: %q", problems)
			}
			status, message := assess(t, script, endpoint.Object)
			if status != want[name].status || !strings.Contains(message, want[name].message) {
				t.Errorf("got %s: %q, want %s: %q", status, message, want[name].status, want[name].message)
			}
		})
	}
}

// What there is between an object's first moment and its first status.
func TestArgoCDWaitsForAnObjectWithoutAStatus(t *testing.T) {
	t.Parallel()
	for _, object := range []string{
		`{"metadata": {"generation": 1}}`,
		`{"metadata": {"generation": 1}, "status": {}}`,
		`{"metadata": {"generation": 1}, "status": {"observedGeneration": 1}}`,
		`{"metadata": {"generation": 1}, "status": {"observedGeneration": 1, "conditions": []}}`,
	} {
		var o map[string]any
		if err := json.Unmarshal([]byte(object), &o); err != nil {
			t.Fatal(err)
		}
		if status, message := assess(t, healthScript(t), o); status != "Progressing" || message == "" {
			t.Errorf("%s: got %s: %q", object, status, message)
		}
	}
}

func healthScript(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(chartFolder + "/files/argocd/argocd-cm.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var m corev1.ConfigMap
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		t.Fatal(err)
	}
	if m.Data[healthKey] == "" || len(m.Data) != 1 {
		t.Fatalf("the ConfigMap has %d entries, want %s alone", len(m.Data), healthKey)
	}
	return m.Data[healthKey]
}

// assess runs the script as Argo CD does: in this very interpreter, with the object as obj and few libraries.
func assess(t *testing.T, script string, object map[string]any) (status, message string) {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable, lua.StringLibName: lua.OpenString, lua.MathLibName: lua.OpenMath,
	} {
		if err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name)); err != nil {
			t.Fatal(err)
		}
	}
	state.SetGlobal("obj", toLua(state, object))
	if err := state.DoString(script); err != nil {
		t.Fatalf("the script: %v", err)
	}
	answer, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("the script returns %v, want a table", state.Get(-1))
	}
	return lua.LVAsString(answer.RawGetString("status")), lua.LVAsString(answer.RawGetString("message"))
}

func toLua(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, element := range v {
			table.RawSetString(key, toLua(state, element))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, element := range v {
			table.Append(toLua(state, element))
		}
		return table
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case float64:
		return lua.LNumber(v)
	case int64:
		return lua.LNumber(v)
	}
	return lua.LNil
}

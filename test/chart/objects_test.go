package chart

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func text(t *testing.T, o *unstructured.Unstructured) string {
	t.Helper()
	text, err := yaml.Marshal(o.Object)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// setting is a variable in the ConfigMap of a part; "": it is not there.
func setting(t *testing.T, r release, part, name string) string {
	t.Helper()
	return as[corev1.ConfigMap](t, r.get(t, "ConfigMap", "postrider-"+part)).Data[name]
}

// settingsFile is what a part may be told anew while it runs.
func settingsFile(t *testing.T, r release, part string) map[string]any {
	t.Helper()
	maps := r.names("ConfigMap")
	i := slices.IndexFunc(maps, func(name string) bool { return strings.HasSuffix(name, "-settings") })
	if i < 0 {
		t.Fatalf("there is no ConfigMap of settings among %v", maps)
	}
	var settings map[string]any
	if err := yaml.UnmarshalStrict([]byte(as[corev1.ConfigMap](t, r.get(t, "ConfigMap", maps[i])).Data[part+".yaml"]), &settings); err != nil {
		t.Fatalf("the settings file of %s: %v", part, err)
	}
	return settings
}

// variableOf returns a variable of a container, the zero value if it has none of that name.
func variableOf(c corev1.Container, name string) corev1.EnvVar {
	for _, e := range c.Env {
		if e.Name == name {
			return e
		}
	}
	return corev1.EnvVar{}
}

package chart

import (
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

// variableOf returns a variable of a container, the zero value if it has none of that name.
func variableOf(c corev1.Container, name string) corev1.EnvVar {
	for _, e := range c.Env {
		if e.Name == name {
			return e
		}
	}
	return corev1.EnvVar{}
}

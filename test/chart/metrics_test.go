package chart

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// With metrics.auth the parts that can ask the Kubernetes API serve HTTPS to those who may read; the dispatcher, which has no
// token, stays plain. Probes and monitors follow.
func TestMetricsForThoseWhoMayReadThem(t *testing.T) {
	t.Parallel()
	for _, auth := range []bool{false, true} {
		r := render(t, scenario{values: fmt.Sprintf(`{metrics: {auth: %t}, monitoring: {serviceMonitor: {enabled: true}}}`, auth)})
		for _, part := range []string{"controller", "dispatcher", "ingest"} {
			port, scheme := "metrics", corev1.URISchemeHTTP
			if auth && part != "dispatcher" {
				port, scheme = "https-metrics", corev1.URISchemeHTTPS
			}
			c := r.pod(t, "postrider-"+part).spec.Containers[0]
			if !slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == port && p.ContainerPort == 8081 }) {
				t.Errorf("auth %t: the ports of the %s are %v, want %s", auth, part, c.Ports, port)
			}
			for _, probe := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe} {
				if got := probe.HTTPGet; got.Port.StrVal != port || got.Scheme != scheme {
					t.Errorf("auth %t: a probe of the %s is %s %s, want %s %s", auth, part, got.Scheme, got.Port.StrVal, scheme, port)
				}
			}
			if want := fmt.Sprint(auth); part != "dispatcher" && setting(t, r, part, "POSTRIDER_METRICS_AUTH") != want {
				t.Errorf("the %s asks who reads its metrics: %s, want %s", part, setting(t, r, part, "POSTRIDER_METRICS_AUTH"), want)
			}
		}
		var ports []string
		endpoints, _, err := unstructured.NestedSlice(r.get(t, "ServiceMonitor", "postrider").Object, "spec", "endpoints")
		if err != nil {
			t.Fatal(err)
		}
		service := as[corev1.Service](t, r.get(t, "Service", "postrider-metrics"))
		for _, e := range endpoints {
			port := fmt.Sprint(e.(map[string]any)["port"]) //nolint:errcheck,forcetypeassert // a test
			ports = append(ports, port)
			if !slices.ContainsFunc(service.Spec.Ports, func(p corev1.ServicePort) bool { return p.Name == port && p.TargetPort.StrVal == port }) {
				t.Errorf("the Service has no port %s", port)
			}
		}
		want := []string{"metrics"}
		if auth {
			want = append(want, "https-metrics")
		}
		same(t, "ports that are read", ports, want...)
	}
}

// Whoever asks about readers may ask, and a role lets readers read. Without metrics.auth there is neither.
func TestRolesForMetrics(t *testing.T) {
	t.Parallel()
	const reader, delegator = "postrider-postrider-system-metrics-reader", "postrider-postrider-system-controller-auth-delegator"
	off := render(t, scenario{})
	if off.find("ClusterRole", reader) != nil || off.find("ClusterRoleBinding", delegator) != nil {
		t.Error("there are roles for metrics that everybody may read")
	}
	on := render(t, scenario{values: `metrics: {auth: true}`})
	role := as[rbacv1.ClusterRole](t, on.get(t, "ClusterRole", reader))
	if len(role.Rules) != 1 || !slices.Equal(role.Rules[0].NonResourceURLs, []string{"/metrics"}) || !slices.Equal(role.Rules[0].Verbs, []string{"get"}) {
		t.Errorf("readers may %v", role.Rules)
	}
	binding := as[rbacv1.ClusterRoleBinding](t, on.get(t, "ClusterRoleBinding", delegator))
	if binding.RoleRef.Name != "system:auth-delegator" || binding.Subjects[0].Name != "postrider-controller" {
		t.Errorf("got %v for %v", binding.RoleRef, binding.Subjects)
	}
}

// A PodMonitor cannot show Prometheus' own token.
func TestAPodMonitorNeedsATokenForMetricsThatAreNotForEverybody(t *testing.T) {
	t.Parallel()
	if _, err := tryRender(scenario{values: `{metrics: {auth: true}, monitoring: {podMonitor: {enabled: true}}}`}); err == nil {
		t.Error("it is rendered without a token")
	}
	r := render(t, scenario{values: `{metrics: {auth: true, tokenSecret: {name: scrape}}, monitoring: {podMonitor: {enabled: true}}}`})
	endpoints, _, err := unstructured.NestedSlice(r.get(t, "PodMonitor", "postrider").Object, "spec", "podMetricsEndpoints")
	if err != nil || len(endpoints) != 2 {
		t.Fatalf("got %v, %v", endpoints, err)
	}
	name, _, err := unstructured.NestedString(endpoints[1].(map[string]any), "authorization", "credentials", "name") //nolint:errcheck,forcetypeassert // a test
	if err != nil || name != "scrape" {
		t.Errorf("the token is of Secret %q, %v", name, err)
	}
}

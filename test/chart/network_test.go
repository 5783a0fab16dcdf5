package chart

import (
	"slices"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	v1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func (r release) policies(t *testing.T) []networkingv1.NetworkPolicy {
	t.Helper()
	var all []networkingv1.NetworkPolicy
	for _, o := range r.objects {
		if o.GetKind() == "NetworkPolicy" {
			all = append(all, as[networkingv1.NetworkPolicy](t, o))
		}
	}
	return all
}

// Each pod but the test's has one policy, which says something about both directions.
func TestEveryPodHasANetworkPolicy(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			r := render(t, s)
			for _, p := range r.pods(t) {
				if p.spec.Containers[0].Name == "selftest" {
					continue // receives from dispatchers, wherever they are
				}
				var selecting []string
				for _, policy := range r.policies(t) {
					selector, err := v1.LabelSelectorAsSelector(&policy.Spec.PodSelector)
					if err != nil {
						t.Fatal(err)
					}
					if selector.Matches(labels.Set(p.metadata.Labels)) {
						selecting = append(selecting, policy.Name)
						if len(policy.Spec.PolicyTypes) != 2 {
							t.Errorf("NetworkPolicy %s leaves a direction open", policy.Name)
						}
					}
				}
				same(t, "NetworkPolicies of the pod of "+p.name, selecting, p.name)
			}
		})
	}
	if off := render(t, scenario{values: `networkPolicy: {enabled: false}`}); len(off.policies(t)) != 0 {
		t.Error("there are NetworkPolicies without networkPolicy.enabled")
	}
}

func TestWhoMayReachWhom(t *testing.T) {
	t.Parallel()
	r := render(t, scenario{values: `networkPolicy: {metricsFrom: [{namespaceSelector: {matchLabels: {name: monitoring}}}]}`})
	for _, c := range []struct {
		name    string
		in, out []int32
		world   bool
	}{
		{name: "postrider-controller", in: []int32{8081}, out: []int32{53, 443, 5353, 5432, 6443}},
		{name: "postrider-dispatcher", in: []int32{8081}, out: []int32{53, 5353, 5432}, world: true},
		{name: "postrider-ingest", in: []int32{8080, 8081}, out: []int32{53, 443, 5353, 5432, 6443}},
		{name: "postrider-postgres", in: []int32{5432}},
		{name: "postrider-secrets", out: []int32{53, 443, 5353, 6443}},
	} {
		spec := as[networkingv1.NetworkPolicy](t, r.get(t, "NetworkPolicy", c.name)).Spec
		var in, out []int32
		world := false
		for _, rule := range spec.Ingress {
			in = append(in, ports(rule.Ports)...)
			if c.name == "postrider-postgres" && len(rule.From) != 3 {
				t.Errorf("Postgres is reached from %d places, want the three parts", len(rule.From))
			}
			if slices.Contains(ports(rule.Ports), 8081) && (len(rule.From) != 1 || rule.From[0].NamespaceSelector == nil) {
				t.Errorf("%s: metrics are read from %v, want what the values say", c.name, rule.From)
			}
		}
		for _, rule := range spec.Egress {
			if len(rule.Ports) == 0 {
				world = true
				for _, to := range rule.To {
					if to.IPBlock == nil {
						t.Errorf("%s: a rule without ports goes to %v", c.name, to)
					}
				}
			}
			out = append(out, ports(rule.Ports)...)
		}
		if got := tidy(in); !slices.Equal(got, c.in) {
			t.Errorf("%s: ingress to ports %v, want %v", c.name, got, c.in)
		}
		if got := tidy(out); !slices.Equal(got, c.out) {
			t.Errorf("%s: egress to ports %v, want %v", c.name, got, c.out)
		}
		if world != c.world {
			t.Errorf("%s: may reach the world: %t, want %t", c.name, world, c.world)
		}
	}
}

func ports(all []networkingv1.NetworkPolicyPort) []int32 {
	var numbers []int32
	for _, p := range all {
		numbers = append(numbers, p.Port.IntVal)
	}
	return numbers
}

func tidy(numbers []int32) []int32 {
	slices.Sort(numbers)
	return slices.Compact(numbers)
}

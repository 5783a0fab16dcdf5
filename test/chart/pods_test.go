package chart

import (
	"bufio"
	"io"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
)

func newReader(text string) *bufio.Reader { return bufio.NewReader(io.Reader(strings.NewReader(text))) }

// pod is what becomes a pod, whatever makes it.
type pod struct {
	name     string
	metadata metav1.ObjectMeta
	spec     corev1.PodSpec
}

func (r release) pods(t testing.TB) []pod {
	t.Helper()
	var pods []pod
	for _, o := range r.objects {
		switch o.GetKind() {
		case "Deployment":
			template := as[appsv1.Deployment](t, o).Spec.Template
			pods = append(pods, pod{o.GetName(), template.ObjectMeta, template.Spec})
		case "StatefulSet":
			template := as[appsv1.StatefulSet](t, o).Spec.Template
			pods = append(pods, pod{o.GetName(), template.ObjectMeta, template.Spec})
		case "Job":
			template := as[batchv1.Job](t, o).Spec.Template
			pods = append(pods, pod{o.GetName(), template.ObjectMeta, template.Spec})
		case "Pod":
			p := as[corev1.Pod](t, o)
			pods = append(pods, pod{p.Name, p.ObjectMeta, p.Spec})
		case "DaemonSet", "CronJob", "ReplicaSet":
			t.Fatalf("%s %s: teach this test about its kind", o.GetKind(), o.GetName())
		}
	}
	return pods
}

func (r release) pod(t testing.TB, name string) pod {
	t.Helper()
	for _, p := range r.pods(t) {
		if p.name == name {
			return p
		}
	}
	t.Fatalf("nothing makes a pod %q", name)
	return pod{}
}

func (p pod) containers() []corev1.Container {
	return append(append([]corev1.Container{}, p.spec.InitContainers...), p.spec.Containers...)
}

func TestEveryPodPassesPodSecurityRestricted(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, p := range render(t, s).pods(t) {
				result := policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &p.metadata, &p.spec))
				if !result.Allowed {
					t.Errorf("pod of %s: %s: %s", p.name, result.ForbiddenReason(), result.ForbiddenDetail())
				}
				for _, c := range p.containers() {
					if c.SecurityContext == nil || c.SecurityContext.ReadOnlyRootFilesystem == nil || !*c.SecurityContext.ReadOnlyRootFilesystem {
						t.Errorf("pod of %s: container %s can write its root file system", p.name, c.Name)
					}
					if c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
						t.Errorf("pod of %s: container %s has no request or no limit of memory", p.name, c.Name)
					}
				}
			}
		})
	}
}

// The evaluator finds what is wrong: otherwise the test above proves nothing.
func TestThePodSecurityEvaluatorRefusesAPrivilegedPod(t *testing.T) {
	t.Parallel()
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	p := render(t, scenario{}).pod(t, "postrider-dispatcher")
	p.spec.InitContainers[0].SecurityContext = nil
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	if policy.AggregateCheckResults(evaluator.EvaluatePod(restricted, &p.metadata, &p.spec)).Allowed {
		t.Error("an init container without a security context is allowed")
	}
}

func TestOnlyContainersThatUseTheKubernetesAPIHaveATokenForIt(t *testing.T) {
	t.Parallel()
	users := map[string]bool{"controller": true, "ingest": true, "secrets": true}
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, p := range render(t, s).pods(t) {
				if p.spec.AutomountServiceAccountToken == nil || *p.spec.AutomountServiceAccountToken {
					t.Errorf("pod of %s: a token is mounted into all of its containers", p.name)
				}
				tokens := map[string]bool{}
				for _, v := range p.spec.Volumes {
					if v.Projected == nil {
						continue
					}
					for _, source := range v.Projected.Sources {
						// A token with another audience is of no use to the Kubernetes API.
						if source.ServiceAccountToken != nil && source.ServiceAccountToken.Audience == "" {
							tokens[v.Name] = true
						}
					}
				}
				for _, c := range p.containers() {
					mounted := false
					for _, m := range c.VolumeMounts {
						mounted = mounted || tokens[m.Name]
					}
					if mounted != users[c.Name] {
						t.Errorf("pod of %s: container %s has a token for the Kubernetes API: %t, want %t", p.name, c.Name, mounted, users[c.Name])
					}
				}
				if strings.HasSuffix(p.name, "-dispatcher") && p.spec.ServiceAccountName != "" {
					t.Errorf("the dispatcher has ServiceAccount %q", p.spec.ServiceAccountName)
				}
			}
		})
	}
}

// Every Secret and ConfigMap that a pod refers to is made by the chart or by its hook, or named by the values.
func TestPodsReferToWhatIsThere(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			r := render(t, s)
			there := map[string]bool{"kube-root-ca.crt": true}
			for _, kind := range []string{"Secret", "ConfigMap"} {
				for _, name := range r.names(kind) {
					there[name] = true
				}
			}
			for _, o := range r.objects {
				switch o.GetKind() {
				case "Job":
					for _, e := range r.pod(t, o.GetName()).spec.Containers[0].Env {
						if strings.HasSuffix(e.Name, "_SECRET") {
							there[e.Value] = true
						}
					}
				case "Cluster":
					there[o.GetName()+"-app"], there[o.GetName()+"-ca"] = true, true
				case "Certificate":
					spec, _ := o.Object["spec"].(map[string]any)
					name, _ := spec["secretName"].(string)
					there[name] = true
				}
			}
			for _, p := range r.pods(t) {
				for _, name := range references(p) {
					if !there[name] && !strings.Contains(s.values, name) {
						t.Errorf("pod of %s refers to %q, which nobody makes", p.name, name)
					}
				}
			}
		})
	}
}

func references(p pod) []string {
	var names []string
	for _, v := range p.spec.Volumes {
		switch {
		case v.Secret != nil:
			names = append(names, v.Secret.SecretName)
		case v.ConfigMap != nil:
			names = append(names, v.ConfigMap.Name)
		case v.Projected != nil:
			for _, source := range v.Projected.Sources {
				if source.Secret != nil {
					names = append(names, source.Secret.Name)
				}
			}
		}
	}
	for _, c := range p.containers() {
		for _, e := range c.EnvFrom {
			if e.ConfigMapRef != nil {
				names = append(names, e.ConfigMapRef.Name)
			}
			if e.SecretRef != nil {
				names = append(names, e.SecretRef.Name)
			}
		}
		for _, e := range c.Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				names = append(names, e.ValueFrom.SecretKeyRef.Name)
			}
		}
	}
	return names
}

// A variable never changes while its pod runs: a password in one would need a restart when it is rotated.
func TestNoVariableHoldsACredential(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, p := range render(t, s).pods(t) {
				for _, c := range p.containers() {
					for _, e := range c.Env {
						if c.Name != "postgres" && e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
							t.Errorf("pod of %s: container %s gets %s from a Secret", p.name, c.Name, e.Name)
						}
					}
				}
			}
		})
	}
}

// fileOf says which entry of which Secret a container finds in the file that a variable names: "Secret/entry".
func fileOf(p pod, c corev1.Container, variable string) string {
	path := variableOf(c, variable).Value
	for _, m := range c.VolumeMounts {
		inside, below := strings.CutPrefix(path, m.MountPath+"/")
		if !below {
			continue
		}
		for _, v := range p.spec.Volumes {
			if v.Name != m.Name || v.Projected == nil {
				continue
			}
			for _, source := range v.Projected.Sources {
				if source.Secret == nil {
					continue
				}
				for _, item := range source.Secret.Items {
					if item.Path == inside {
						return source.Secret.Name + "/" + item.Key
					}
				}
			}
		}
	}
	return ""
}

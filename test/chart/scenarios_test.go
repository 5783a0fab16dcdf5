package chart

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

func TestDefaultsGiveAWorkingStackWithAnEmbeddedPostgres(t *testing.T) {
	t.Parallel()
	r := render(t, scenario{})
	same(t, "Deployments", r.names("Deployment"), "postrider-controller", "postrider-dispatcher", "postrider-ingest")
	same(t, "Services", r.names("Service"), "postrider-database", "postrider-ingest", "postrider-postgres")
	same(t, "PodDisruptionBudgets", r.names("PodDisruptionBudget"), "postrider-controller", "postrider-dispatcher", "postrider-ingest")
	same(t, "HorizontalPodAutoscalers", r.names("HorizontalPodAutoscaler"))
	same(t, "PodMonitors", r.names("PodMonitor"))

	set := as[appsv1.StatefulSet](t, r.get(t, "StatefulSet", "postrider-postgres"))
	if len(set.Spec.VolumeClaimTemplates) != 1 || set.Spec.PersistentVolumeClaimRetentionPolicy.WhenDeleted != appsv1.RetainPersistentVolumeClaimRetentionPolicyType {
		t.Error("the data of the embedded Postgres is not kept")
	}
	p := r.pod(t, "postrider-postgres")
	if data := variableOf(p.spec.Containers[0], "PGDATA").Value; !strings.HasPrefix(data, p.spec.Containers[0].VolumeMounts[0].MountPath+"/") {
		t.Errorf("PGDATA %q is not below the volume", data)
	}
	if p.spec.SecurityContext.FSGroup == nil || p.spec.SecurityContext.RunAsUser == nil {
		t.Error("the embedded Postgres has no fsGroup or no runAsUser")
	}
	for _, part := range []string{"postrider-controller", "postrider-dispatcher", "postrider-ingest"} {
		for _, c := range r.pod(t, part).containers() {
			if url := variableOf(c, "POSTRIDER_DATABASE_URL").Value; !strings.Contains(url, "@postrider-database.postrider-system.svc:5432/") {
				t.Errorf("%s/%s connects with %q, want the Service that has an address", part, c.Name, url)
			}
		}
	}
	if ip := as[corev1.Service](t, r.get(t, "Service", "postrider-database")).Spec.ClusterIP; ip != "" {
		t.Errorf("the Service in front of Postgres has clusterIP %q, want one of the cluster's choice", ip)
	}
	if !strings.Contains(r.notes, "not for production") || !strings.Contains(r.notes, "data-postrider-postgres-0") || !strings.Contains(r.notes, "postrider-keyring") {
		t.Errorf("the notes do not warn of the embedded Postgres, or do not say what stays:\n%s", r.notes)
	}
}

func TestOpenShiftMayChooseTheUser(t *testing.T) {
	t.Parallel()
	p := render(t, scenario{values: `postgres: {embedded: {runAsUser: null, fsGroup: null}}`}).pod(t, "postrider-postgres")
	if p.spec.SecurityContext.RunAsUser != nil || p.spec.SecurityContext.FSGroup != nil {
		t.Errorf("got runAsUser %v, fsGroup %v, want none", p.spec.SecurityContext.RunAsUser, p.spec.SecurityContext.FSGroup)
	}
}

func TestOnlyTheControllersPodMigratesAndTheOthersWait(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			for _, p := range render(t, s).pods(t) {
				var init []string
				for _, c := range p.spec.InitContainers {
					init = append(init, strings.Join(c.Args, " "))
				}
				want := map[string]string{"controller": "migrate up", "dispatcher": "migrate --wait", "ingest": "migrate --wait"}[p.spec.Containers[0].Name]
				if got := strings.Join(init, "; "); got != want {
					t.Errorf("pod of %s: init containers run %q, want %q", p.name, got, want)
				}
			}
		})
	}
}

func TestAnExternalDatabase(t *testing.T) {
	t.Parallel()
	r := render(t, scenario{values: `database: {existingSecret: pg, keys: {directURL: direct, ownerURL: owner}, tls: {caSecret: pg-ca, caKey: root.pem}}`})
	same(t, "StatefulSets", r.names("StatefulSet"))
	same(t, "NetworkPolicies", r.names("NetworkPolicy"), "postrider-controller", "postrider-dispatcher", "postrider-ingest", "postrider-secrets")
	for _, name := range []string{"postrider-controller", "postrider-dispatcher", "postrider-ingest"} {
		p := r.pod(t, name)
		for _, c := range p.containers() {
			wantKey, wantDirect := "url", "direct"
			if c.Name == "migrate" {
				wantKey, wantDirect = "owner", "" // the owner's credentials are in no other container
			}
			if from := fileOf(p, c, "POSTRIDER_DATABASE_URL_FILE"); from != "pg/"+wantKey {
				t.Errorf("%s/%s: the URL is %q, want entry %q of the Secret", name, c.Name, from, wantKey)
			}
			if from := fileOf(p, c, "POSTRIDER_DATABASE_DIRECT_URL_FILE"); strings.TrimPrefix(from, "pg/") != wantDirect {
				t.Errorf("%s/%s: the direct URL is %q, want entry %q of the Secret", name, c.Name, from, wantDirect)
			}
			if mode := variableOf(c, "PGSSLMODE").Value; mode != "verify-full" {
				t.Errorf("%s/%s: with a CA, the mode is %q, want verify-full", name, c.Name, mode)
			}
			if from := fileOf(p, c, "PGSSLROOTCERT"); from != "pg-ca/root.pem" {
				t.Errorf("%s/%s: the CA is %q", name, c.Name, from)
			}
		}
	}
	// The keyring alone is left to make.
	job := r.pod(t, "postrider-secrets").spec.Containers[0]
	if variableOf(job, "POSTRIDER_KEYRING_SECRET").Value != "postrider-keyring" || variableOf(job, "POSTRIDER_PASSWORD_SECRET").Name != "" {
		t.Errorf("the hook makes %v", job.Env)
	}
}

func TestCloudNativePG(t *testing.T) {
	t.Parallel()
	r := render(t, scenario{values: `database: {cloudnativePG: {enabled: true, instances: 5, spec: {storage: {size: 1Ti}, backup: {retentionPolicy: 30d}}}}`})
	same(t, "StatefulSets", r.names("StatefulSet"))
	cluster := r.get(t, "Cluster", "postrider-postgres")
	for path, want := range map[string]any{"instances": float64(5), "storage.size": "1Ti", "backup.retentionPolicy": "30d", "bootstrap.initdb.owner": "postrider"} {
		got, _, err := unstructured.NestedFieldNoCopy(cluster.Object, append([]string{"spec"}, strings.Split(path, ".")...)...)
		if err != nil || got != want {
			t.Errorf("spec.%s: got %v, want %v", path, got, want)
		}
	}
	if cluster.GetAnnotations()["helm.sh/resource-policy"] != "keep" {
		t.Error("uninstalling deletes the database")
	}
	p := r.pod(t, "postrider-dispatcher")
	c := p.spec.Containers[0]
	if from := fileOf(p, c, "POSTRIDER_DATABASE_URL_FILE"); from != "postrider-postgres-app/uri" {
		t.Errorf("the URL is %q, want that of the operator's Secret", from)
	}
	if from := fileOf(p, c, "PGSSLROOTCERT"); from != "postrider-postgres-ca/ca.crt" {
		t.Errorf("the CA is %q, want that of the operator's Secret", from)
	}
	if mode := variableOf(c, "PGSSLMODE").Value; mode != "verify-full" {
		t.Errorf("the mode is %q, want verify-full", mode)
	}
}

func TestWatchNamespacesGiveRolesThereAndNothingClusterWideButReviews(t *testing.T) {
	t.Parallel()
	r := render(t, scenario{values: `{watchNamespaces: [billing, shop], rbac: {userRoles: false}}`})
	same(t, "ClusterRoles", r.names("ClusterRole"))
	same(t, "ClusterRoleBindings", r.names("ClusterRoleBinding"), "postrider-postrider-system-ingest-auth-delegator")
	var where []string
	for _, o := range r.objects {
		if o.GetKind() == "Role" && strings.HasSuffix(o.GetName(), "-controller") {
			where = append(where, o.GetNamespace())
		}
	}
	same(t, "namespaces of the controller's Roles", where, "billing", "shop")
	for _, part := range []string{"controller", "ingest"} {
		if got := setting(t, r, part, "POSTRIDER_WATCH_NAMESPACES"); got != "billing,shop" {
			t.Errorf("the namespaces of %s are %q", part, got)
		}
	}
}

func TestSecretsAreReadAndNothingElse(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		for _, o := range render(t, s).objects {
			var rules []rbacv1.PolicyRule
			switch o.GetKind() {
			case "ClusterRole":
				rules = as[rbacv1.ClusterRole](t, o).Rules
			case "Role":
				rules = as[rbacv1.Role](t, o).Rules
			}
			for _, rule := range rules {
				if slices.Contains(rule.Verbs, "*") || slices.Contains(rule.Resources, "*") || slices.Contains(rule.APIGroups, "*") {
					t.Errorf("%s: %s %s grants *", s.name, o.GetKind(), o.GetName())
				}
				if !slices.Contains(rule.Resources, "secrets") || strings.HasSuffix(o.GetName(), "-secrets") {
					continue // the hook's own Role: create, and get by name
				}
				for _, verb := range rule.Verbs {
					if !slices.Contains([]string{"get", "list", "watch"}, verb) {
						t.Errorf("%s: %s %s may %s Secrets", s.name, o.GetKind(), o.GetName(), verb)
					}
				}
			}
		}
	}
}

func TestWithAnAutoscalerReplicasAreLeftOut(t *testing.T) {
	t.Parallel()
	hpa := render(t, scenario{values: `{dispatcher: {autoscaling: {mode: HPA, targetDue: 1000000}}, ingest: {autoscaling: {enabled: true}}}`})
	for _, name := range []string{"postrider-dispatcher", "postrider-ingest"} {
		if as[appsv1.Deployment](t, hpa.get(t, "Deployment", name)).Spec.Replicas != nil {
			t.Errorf("%s has replicas beside an autoscaler", name)
		}
		a := as[autoscalingv2.HorizontalPodAutoscaler](t, hpa.get(t, "HorizontalPodAutoscaler", name))
		if a.Spec.ScaleTargetRef.Name != name || *a.Spec.MinReplicas != 2 || a.Spec.MaxReplicas != 10 {
			t.Errorf("%s: got %+v", name, a.Spec)
		}
	}
	external := as[autoscalingv2.HorizontalPodAutoscaler](t, hpa.get(t, "HorizontalPodAutoscaler", "postrider-dispatcher")).Spec.Metrics[0].External
	if external.Metric.Name != "postrider_due" || external.Target.AverageValue.String() != "1M" || external.Metric.Selector.MatchLabels["namespace"] != "postrider-system" {
		t.Errorf("the dispatchers scale on %+v", external)
	}

	keda := render(t, scenario{values: `dispatcher: {autoscaling: {mode: KEDA, minReplicas: 3, keda: {serverAddress: "http://prometheus:9090"}}}`})
	if as[appsv1.Deployment](t, keda.get(t, "Deployment", "postrider-dispatcher")).Spec.Replicas != nil {
		t.Error("the dispatcher has replicas beside a ScaledObject")
	}
	triggers, _, err := unstructured.NestedSlice(keda.get(t, "ScaledObject", "postrider-dispatcher").Object, "spec", "triggers")
	if err != nil || len(triggers) != 1 {
		t.Fatalf("triggers: %v, %v", triggers, err)
	}
	trigger, _ := triggers[0].(map[string]any)
	if query, _, _ := unstructured.NestedString(trigger, "metadata", "query"); query != `max(postrider_due{namespace="postrider-system"})` {
		t.Errorf("KEDA asks for %q", query)
	}
	if as[policyv1.PodDisruptionBudget](t, keda.get(t, "PodDisruptionBudget", "postrider-dispatcher")).Spec.MaxUnavailable.IntValue() != 1 {
		t.Error("the dispatcher's disruption budget is not 1")
	}
}

func TestDisruptionBudgetsOnlyWhereThereIsMoreThanOneReplica(t *testing.T) {
	t.Parallel()
	r := render(t, scenario{values: `{controller: {replicas: 1}, dispatcher: {replicas: 5, autoscaling: {mode: HPA, minReplicas: 1}}, ingest: {podDisruptionBudget: false}}`})
	same(t, "PodDisruptionBudgets", r.names("PodDisruptionBudget"))
}

func TestMonitoringIsOnWhereTheKindExistsOrIsAskedFor(t *testing.T) {
	t.Parallel()
	dashboard := func(r release) bool { return r.find("ConfigMap", "postrider-dashboard") != nil }
	for _, c := range []struct {
		name, values                                      string
		kinds                                             []string
		podMonitor, serviceMonitor, rule, dashboardWanted bool
	}{
		{"auto, without the kinds (a templating tool)", ``, nil, false, false, false, false},
		{"auto, with the kinds", ``, monitoringKinds, true, false, true, true},
		{"true, without the kinds", `monitoring: {podMonitor: {enabled: true}, prometheusRule: {enabled: "true"}, grafanaDashboard: {enabled: true}}`, nil, true, false, true, true},
		{"false, with the kinds", `monitoring: {podMonitor: {enabled: false}, prometheusRule: {enabled: "false"}, grafanaDashboard: {enabled: false}}`, monitoringKinds, false, false, false, false},
		{"a ServiceMonitor in place of the PodMonitor", `monitoring: {serviceMonitor: {enabled: auto}}`, monitoringKinds, false, true, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := render(t, scenario{name: c.name, values: c.values, kinds: c.kinds})
			for kind, want := range map[string]bool{"PodMonitor": c.podMonitor, "ServiceMonitor": c.serviceMonitor, "PrometheusRule": c.rule} {
				if got := len(r.names(kind)) == 1; got != want {
					t.Errorf("%s: got %t, want %t", kind, got, want)
				}
			}
			if dashboard(r) != c.dashboardWanted {
				t.Errorf("dashboard: got %t, want %t", dashboard(r), c.dashboardWanted)
			}
		})
	}
}

func TestGracePeriodsAreLongerThanTheLongestRequest(t *testing.T) {
	t.Parallel()
	r := render(t, scenario{values: `{dispatcher: {graceSeconds: 40}, ingest: {drainSeconds: 15, shutdownSeconds: 60}, controller: {shutdownSeconds: 30}}`})
	for name, longest := range map[string]int64{"postrider-dispatcher": 40, "postrider-ingest": 75, "postrider-controller": 30} {
		if got := *r.pod(t, name).spec.TerminationGracePeriodSeconds; got <= longest {
			t.Errorf("%s: %d s, want more than %d s", name, got, longest)
		}
	}
	if got := setting(t, r, "dispatcher", "POSTRIDER_GRACE"); got != "40s" {
		t.Errorf("the dispatcher's grace is %q", got)
	}
}

func TestOnlyAReceiverOfTheTestIsLetIn(t *testing.T) {
	t.Parallel()
	off := render(t, scenario{})
	file := settingsFile(t, off, "dispatcher")
	if off.find("Pod", "postrider-selftest") != nil || file["destination-allow-http"] != false || fmt.Sprint(file["destination-allowed-cidrs"]) != "[]" {
		t.Error("without tests.enabled something is there for the test")
	}
	on := render(t, scenario{values: `tests: {enabled: true, clusterIP: 10.96.0.77}`})
	for _, part := range []string{"controller", "dispatcher"} {
		if got := fmt.Sprint(settingsFile(t, on, part)["destination-allowed-cidrs"]); got != "[10.96.0.77/32]" {
			t.Errorf("%s: allowed ranges %s, want the receiver's address alone", part, got)
		}
	}
	if ip := as[corev1.Service](t, on.get(t, "Service", "postrider-selftest")).Spec.ClusterIP; ip != "10.96.0.77" {
		t.Errorf("the receiver's address is %q", ip)
	}
}

// Hooks and tests leave nothing behind, and what the install hook makes exists before everything else.
func TestHooksCleanUpAfterThemselves(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		r := render(t, s)
		for _, o := range r.objects {
			a := o.GetAnnotations()
			hook := a["helm.sh/hook"]
			if (strings.HasSuffix(o.GetName(), "-secrets") || strings.HasSuffix(o.GetName(), "-selftest")) && hook == "" {
				t.Errorf("%s: %s %s is no hook", s.name, o.GetKind(), o.GetName())
			}
			if hook != "" && a["helm.sh/hook-delete-policy"] != "before-hook-creation,hook-succeeded" {
				t.Errorf("%s: %s %s stays after its hook", s.name, o.GetKind(), o.GetName())
			}
		}
	}
}

// What the hook makes is made once; nothing in the templates may be made anew by the next rendering.
func TestRenderingTwiceGivesTheSame(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			first := render(t, s)
			second, err := tryRender(s)
			if err != nil {
				t.Fatal(err)
			}
			for i, o := range first.objects {
				if o.GetKind() == "Secret" && o.GetAnnotations()["helm.sh/hook"] == "test" {
					continue // a key for one run of the test
				}
				same(t, o.GetKind()+" "+o.GetName(), []string{text(t, second.objects[i])}, text(t, o))
			}
		})
	}
}

func TestAChangedSettingRollsThePodsThatUseItAndNoOthers(t *testing.T) {
	t.Parallel()
	before := render(t, scenario{})
	for _, c := range []struct {
		values string
		rolled []string
	}{
		{`dispatcher: {settings: {senders: 10}}`, []string{"postrider-dispatcher"}},
		{`ingest: {settings: {maxInFlight: 10}}`, []string{"postrider-ingest"}},
		{`limits: {timeout: 20s}`, []string{"postrider-controller", "postrider-dispatcher"}},
		// What may change while the pods run rolls none.
		{`{defaults: {timeout: 5s}, limits: {maxAttempts: 20}}`, nil},
		{`destination: {allowHTTP: true, allowedCIDRs: [10.1.0.0/16], allowedPorts: [443]}`, nil},
		{`retention: {events: 100h}`, nil},
		{`networkPolicy: {enabled: false}`, nil},
	} {
		after := render(t, scenario{values: c.values})
		var rolled []string
		for _, p := range before.pods(t) {
			if then := after.pod(t, p.name); !cmp.Equal(p.metadata, then.metadata) || !cmp.Equal(p.spec, then.spec) {
				rolled = append(rolled, p.name)
			}
		}
		same(t, c.values, rolled, c.rolled...)
	}
}

func TestImagesByTagOrDigest(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("0a", 32)
	for values, want := range map[string]string{
		``:                            "ghcr.io/postrider/postrider:0.1.0",
		`image: {tag: v9}`:            "ghcr.io/postrider/postrider:v9",
		`image: {repository: r.io/p}`: "r.io/p:0.1.0",
		`image: {tag: v9, digest: "` + digest + `"}`: "ghcr.io/postrider/postrider@" + digest,
	} {
		for _, p := range render(t, scenario{values: values + "\ntests: {enabled: true, clusterIP: 10.96.0.77}"}).pods(t) {
			for _, c := range p.containers() {
				if c.Name != "postgres" && c.Image != want {
					t.Errorf("%s: container %s of %s has image %s, want %s", values, c.Name, p.name, c.Image, want)
				}
			}
		}
	}
}

func TestValuesThatContradictThemselvesAreRefusedWithTheRemedy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ values, want string }{
		{`{database: {existingSecret: pg, cloudnativePG: {enabled: true}}}`, "leave one out"},
		{`{postgres: {embedded: {enabled: false}}}`, "there is no database"},
		{`{tests: {enabled: true}}`, "tests.clusterIP"},
		{`{tests: {enabled: true, clusterIP: 10.96.0.77}, watchNamespaces: [billing]}`, "add \"postrider-system\" to watchNamespaces"},
		{`{dispatcher: {autoscaling: {mode: KEDA}}}`, "serverAddress: is missing"},
		{`{ingest: {tls: {certManager: {enabled: true}}}}`, "issuerRef"},
		{`{dispatcher: {replica: 3}}`, "replica"},
		{`{dispatcher: {settings: {sender: 3}}}`, "sender"},
		{`{dispatcher: {settings: {lease: 1d}}}`, "lease"},
		{`{destination: {allowedCIDRs: [10.0.0.1]}}`, "allowedCIDRs"},
		{`{image: {digest: abc}}`, "digest"},
		{`{monitoring: {podMonitor: {enabled: sometimes}}}`, "podMonitor"},
	} {
		if _, err := tryRender(scenario{values: c.values}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want an error with %q", c.values, err, c.want)
		}
	}
}

func same(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("%s: got %q, want %q", what, got, want)
	}
}

// A misspelt field of a manifest is dropped in silence by the API server.
func TestEveryFieldOfEveryObjectIsKnown(t *testing.T) {
	t.Parallel()
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			known := 0
			for _, o := range render(t, s).objects {
				if o.GetName() == "" {
					t.Errorf("a %s has no name", o.GetKind())
				}
				typed, err := scheme.Scheme.New(o.GroupVersionKind())
				if err != nil {
					continue // of an operator
				}
				known++
				if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o.Object, typed, true); err != nil {
					t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
				}
			}
			if known < 20 {
				t.Errorf("only %d objects are of kinds that are known here", known)
			}
		})
	}
}

// After a restore whoever sends must know that it is to start paused, and nobody else needs to. With the text the pods change:
// they are to start again.
func TestARestoredInstallationStartsPaused(t *testing.T) {
	t.Parallel()
	token := func(r release, part string) any {
		data, _, _ := unstructured.NestedStringMap(r.get(t, "ConfigMap", "postrider-"+part).Object, "data")
		return data["POSTRIDER_START_PAUSED"]
	}
	plain := render(t, scenario{})
	for _, values := range []string{`startPaused: "2026-11-29"`, `startPaused: 2026-11-29`} {
		r := render(t, scenario{values: values})
		if got := token(r, "dispatcher"); got != "2026-11-29" {
			t.Errorf("%s: the dispatcher is told %q", values, got)
		}
		if !strings.Contains(r.notes, "exec deployment/postrider-controller -- /postrider resume") {
			t.Errorf("%s: the notes do not say how to go on:\n%s", values, r.notes)
		}
		const checksum = "checksum/config"
		if before, after := plain.pod(t, "postrider-dispatcher"), r.pod(t, "postrider-dispatcher"); before.metadata.Annotations[checksum] == after.metadata.Annotations[checksum] {
			t.Errorf("%s: the dispatchers do not start again", values)
		}
	}
	for _, part := range []string{"controller", "dispatcher", "ingest"} {
		if got := token(plain, part); got != "" {
			t.Errorf("by default %s starts paused: %q", part, got)
		}
	}
	if strings.Contains(plain.notes, "postrider resume") {
		t.Error("the notes tell of a pause that there is not")
	}
}

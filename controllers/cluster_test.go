package controllers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

// TestAWholeCluster is what needs all namespaces of an API server to itself.
func TestAWholeCluster(t *testing.T) {
	t.Parallel()
	kube := localstack.StartKubeAPI(t, localstack.KubeAPIOptions{})
	everywhere := func(c *Config) { c.WatchNamespaces = nil }

	// Case K7: a namespace that is deleted and made again is another tenant's.
	t.Run("a namespace made again sees nothing of the old one", func(t *testing.T) {
		w := newWorldOn(t, kube.Config(), "tenant", localstack.Database(t))
		makeNamespace(t, w)
		r := w.start(everywhere)
		w.signedBy("signing")
		w.create("ledger")
		w.awaitConditions("ledger", ready)
		before := w.mustRow("ledger")
		deliver(t, w, "ledger", 2)

		removeNamespace(t, w)
		w.awaitNoRow("ledger")
		eventually(t, 20*time.Second, func() error { return namespaceIs(t, w, "") })

		uid := makeNamespace(t, w)
		eventually(t, 20*time.Second, func() error { return namespaceIs(t, w, uid) })
		w.signedBy("signing")
		w.create("ledger")
		e := w.awaitConditions("ledger", ready)
		if after := w.mustRow("ledger"); after.ID == before.ID || after.NamespaceUID != uid {
			t.Errorf("row %d in namespace %s, want a new one in %s", after.ID, after.NamespaceUID, uid)
		}
		if *e.Status.PendingCount != 0 {
			t.Errorf("%d pending from the old tenant", *e.Status.PendingCount)
		}
		r.stop()

		// And while nobody watched.
		before = w.mustRow("ledger")
		removeNamespace(t, w)
		uid = makeNamespace(t, w)
		w.signedBy("signing")
		w.create("ledger")
		r = w.start(everywhere)
		eventually(t, 20*time.Second, func() error {
			if row := w.row("ledger"); row == nil || row.ID == before.ID || row.NamespaceUID != uid {
				return fmt.Errorf("row: %+v, want a new one in namespace %s", row, uid)
			}
			return nil
		})
		eventually(t, 20*time.Second, func() error { return namespaceIs(t, w, uid) })
		r.stop()
	})

	t.Run("namespaces without endpoints are known too", func(t *testing.T) {
		w := newWorldOn(t, kube.Config(), "empty", localstack.Database(t))
		uid := makeNamespace(t, w)
		r := w.start(everywhere)
		eventually(t, 20*time.Second, func() error { return namespaceIs(t, w, uid) })
		r.stop()
	})

	// The rights are those of config/rbac, and nothing is forbidden under them.
	t.Run("the rights that are asked for suffice", func(t *testing.T) {
		w := newWorldOn(t, kube.Config(), "postrider-system", localstack.Database(t))
		makeNamespace(t, w)
		bind(t, w, "../config/rbac/role.yaml", "../config/rbac/leader_election_role.yaml")
		var err error
		w.api, err = kube.User("controller")
		w.must(err)
		r := w.start(everywhere, func(c *Config) { c.LeaderElection = true })
		w.create("ledger")
		w.awaitConditions("ledger", "Ready=False/SecretNotFound")
		w.signedBy("signing")
		w.awaitConditions("ledger", ready)
		w.delete("ledger")
		w.awaitNoRow("ledger")
		eventually(t, 20*time.Second, func() error {
			events, err := kubernetes.NewForConfigOrDie(kube.Config()).EventsV1().Events(w.namespace).List(patience(t), metav1.ListOptions{})
			w.must(err)
			if len(events.Items) < 2 {
				return fmt.Errorf("%d Events", len(events.Items))
			}
			return nil
		})
		r.stop()
		for line := range strings.SplitSeq(logs.of(t.Name()), "\n") {
			if strings.Contains(strings.ToLower(line), "forbidden") {
				t.Errorf("logged: %s", line)
			}
		}
	})

	// Design 6: with watchNamespaces there are Roles in those namespaces and nothing cluster-wide.
	t.Run("and Roles in the watched namespaces do", func(t *testing.T) {
		w := newWorldOn(t, kube.Config(), "narrow", localstack.Database(t))
		uid := makeNamespace(t, w)
		bindNarrow(t, w, "../config/rbac/role.yaml")
		var err error
		w.api, err = kube.User("narrow-controller")
		w.must(err)
		r := w.start()
		w.signedBy("signing")
		w.create("ledger")
		w.awaitConditions("ledger", ready)
		w.must(namespaceIs(t, w, uid))
		r.stop()
	})

	t.Run("a right that is missing is told in the status", func(t *testing.T) {
		w := newWorldOn(t, kube.Config(), "lacking", localstack.Database(t))
		makeNamespace(t, w)
		w.must(w.client.Create(patience(t), &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: "namespaces"},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"namespaces"}, Verbs: []string{"get"}}},
		}))
		w.must(w.client.Create(patience(t), &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "namespaces"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "narrow-controller"}},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "namespaces"},
		}))
		bindNarrow(t, w, "../config/rbac/role.yaml", "get")
		var err error
		w.api, err = kube.User("narrow-controller")
		w.must(err)
		r := w.start()
		w.signedBy("signing")
		w.create("ledger")
		eventually(t, 20*time.Second, func() error {
			c := conditionOf(w.get("ledger").Status, v1alpha1.ConditionReconciling)
			if !containsAll(c.Message, "secrets", "forbidden", "platform team") {
				return fmt.Errorf("condition Reconciling: %+v", c)
			}
			return nil
		})
		r.stop()
	})
}

func TestItWaitsForAnAPIServerThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	kube := localstack.StartKubeAPI(t, localstack.KubeAPIOptions{})
	w := newWorldOn(t, kube.Config(), "late", localstack.Database(t))
	makeNamespace(t, w)
	w.signedBy("signing")
	w.create("ledger")
	kube.Stop()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.run(ctx, w.keyring, w.config()) }()
	eventually(t, 20*time.Second, func() error {
		if !strings.Contains(logs.of(t.Name()), "waiting for the API server") {
			return errors.New("it does not say that it waits")
		}
		return nil
	})
	w.must(kube.Start(patience(t)))
	w.awaitConditions("ledger", ready)
	stop()
	w.must(<-ended)
}

// makeNamespace makes the world's namespace and returns its uid.
func makeNamespace(t *testing.T, w *world) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	w.must(w.client.Create(patience(t), ns))
	return string(ns.UID)
}

// removeNamespace does what the controller manager does: it deletes what is in the namespace and then the namespace.
func removeNamespace(t *testing.T, w *world) {
	t.Helper()
	ctx := patience(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}
	w.must(w.client.Delete(ctx, ns))
	w.must(w.client.DeleteAllOf(ctx, &v1alpha1.WebhookEndpoint{}, client.InNamespace(w.namespace)))
	w.must(w.client.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(w.namespace)))
	clients, err := kubernetes.NewForConfig(w.api)
	w.must(err)
	_, err = clients.CoreV1().Namespaces().Finalize(ctx, ns, metav1.UpdateOptions{})
	w.must(err)
	eventually(t, 20*time.Second, func() error {
		if err := w.client.Get(ctx, client.ObjectKeyFromObject(ns), ns); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace is still there: %w", err)
		}
		return nil
	})
}

// namespaceIs checks which namespace the store takes the world's for; "" is none.
func namespaceIs(t *testing.T, w *world, uid string) error {
	t.Helper()
	matching, err := w.store.Matching(patience(t), w.namespace)
	w.must(err)
	if matching.UID != uid {
		return fmt.Errorf("namespace %s is %q in the store, want %q", w.namespace, matching.UID, uid)
	}
	return nil
}

func bind(t *testing.T, w *world, clusterRole, role string) {
	t.Helper()
	ctx := patience(t)
	subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "controller"}}
	c, r := &rbacv1.ClusterRole{}, &rbacv1.Role{}
	readYAML(t, clusterRole, c)
	readYAML(t, role, r)
	r.Namespace = w.namespace
	w.must(w.client.Create(ctx, c))
	w.must(w.client.Create(ctx, r))
	w.must(w.client.Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: c.Name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: c.Name},
	}))
	w.must(w.client.Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: r.Name, Namespace: w.namespace}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: r.Name},
	}))
}

// bindNarrow gives the rules of the ClusterRole as a Role in the world's namespace alone.
func bindNarrow(t *testing.T, w *world, clusterRole string, without ...string) {
	t.Helper()
	c := &rbacv1.ClusterRole{}
	readYAML(t, clusterRole, c)
	for i := range c.Rules {
		if slices.Contains(c.Rules[i].Resources, "secrets") {
			c.Rules[i].Verbs = slices.DeleteFunc(c.Rules[i].Verbs, func(verb string) bool { return slices.Contains(without, verb) })
		}
	}
	w.must(w.client.Create(patience(t), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "controller", Namespace: w.namespace}, Rules: c.Rules}))
	w.must(w.client.Create(patience(t), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "controller", Namespace: w.namespace},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "narrow-controller"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "controller"},
	}))
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = yaml.UnmarshalStrict(text, into)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestASecondReplicaTakesOverWithinSeconds uses the Lease as it is used in earnest.
func TestASecondReplicaTakesOverWithinSeconds(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	elect := func(c *Config) { c.LeaderElection = true }
	first := w.start(elect)
	holder := func() string {
		lease := &coordinationv1.Lease{}
		if err := w.client.Get(patience(t), w.key("postrider-controller"), lease); err != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	eventually(t, 20*time.Second, func() error {
		if holder() == "" {
			return errors.New("nobody leads")
		}
		return nil
	})
	second := w.start(elect)
	w.create("ledger")
	w.awaitConditions("ledger", ready)
	if got := second.count("postrider_reconciles_total"); got != 0 {
		t.Errorf("the second replica reconciled %v times beside the first", got)
	}
	led := holder()
	first.stop()
	start := time.Now()
	w.create("next")
	w.awaitConditions("next", ready)
	took := time.Since(start)
	t.Logf("the second replica had done its first work after %s", took.Round(10*time.Millisecond))
	if took > 10*time.Second {
		t.Errorf("it took over after %s; without a release it would be 15 s and more", took)
	}
	if holder() == led {
		t.Error("the Lease is still the first one's")
	}
	second.stop()
}

// TestASecondInstallationIsRefused is case K7.
func TestASecondInstallationIsRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start(func(c *Config) { c.Release = "first" })
	eventually(t, 20*time.Second, func() error { return namespaceRecorded(t, w) })
	c := w.config()
	c.Release = "second"
	err := w.run(patience(t), w.keyring, c)
	if !errors.Is(err, store.ErrOwned) || !containsAll(err.Error(), "first", w.namespace, "--take-over") {
		t.Errorf("got %v, want ErrOwned with the owner's name and the way out", err)
	}
}

func namespaceRecorded(t *testing.T, w *world) error {
	t.Helper()
	matching, err := w.store.Matching(patience(t), w.namespace)
	w.must(err)
	if matching.UID == "" {
		return errors.New("the namespace is not recorded")
	}
	return nil
}

func TestRunRefusesAKeyringThatLacksAKey(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.signedBy("signing")
	w.create("ledger")
	w.direct().status("ledger", ready)
	err := w.run(patience(t), testKeyring(t, "second"), w.config())
	if !errors.Is(err, ErrKeyMissing) {
		t.Errorf("got %v, want ErrKeyMissing", err)
	}
}

func TestNewRefusesABadConfiguration(t *testing.T) {
	t.Parallel()
	_, err := New(nil, nil, nil, nil, Config{
		WatchNamespaces: []string{"UPPER"}, StatusInterval: time.Millisecond, Workers: 1000, Defaults: StandardDefaults(),
		Limits: Limits{Timeout: 5 * time.Second, MaxAttempts: -1},
	})
	if err == nil || !containsAll(err.Error(), "namespace: is empty", "watchNamespaces[0]", "statusInterval", "workers", "limits.maxAttempts", "defaults.timeout", "above limits.timeout") {
		t.Errorf("got %v, want all problems at once", err)
	}
	if err := (Config{Namespace: "n"}).Validate(); err == nil || !containsAll(err.Error(), "defaults.timeout", "defaults.maxCooldown") {
		t.Errorf("without defaults: %v", err)
	}
	if err := (Config{Namespace: "n", Defaults: StandardDefaults()}).Validate(); err != nil {
		t.Errorf("the least there is: %v", err)
	}
}

// TestItWaitsForADatabaseThatIsNotThereYet and says so.
func TestItWaitsForADatabaseThatIsNotThereYet(t *testing.T) {
	t.Parallel()
	pg := localstack.StartPostgres(t, localstack.PostgresOptions{})
	api := localstack.KubeAPI(t)
	w := newWorldOn(t, api, localstack.Namespace(t, api), migrated(t, pg))
	w.signedBy("signing")
	w.create("ledger")
	pg.Stop()
	c, err := New(w.api, w.store, w.keyring, w.policy, w.config())
	w.must(err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	w.awaitConditions("ledger", "Ready=Unknown/StoreUnavailable Reconciling=True/Progressing")
	if err := c.Ready(); !errors.Is(err, errStoreAwaited) {
		t.Errorf("without a database: got %v, want errStoreAwaited", err)
	}
	w.must(pg.Start(patience(t)))
	eventually(t, 20*time.Second, c.Ready)
	w.awaitConditions("ledger", ready)
	pg.Stop()
	w.must(c.Ready()) // once started, it stays ready
	cancel()
	w.must(<-ended)
}

// run makes controllers and runs them to their end.
func (w *world) run(ctx context.Context, ring *keyring.Keyring, c Config) error {
	w.t.Helper()
	controllers, err := New(w.api, w.store, ring, w.policy, c)
	w.must(err)
	return controllers.Run(ctx)
}

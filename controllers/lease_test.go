package controllers

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/test/localstack"
)

// TestTheLeaseGoesWithTheServiceAccount has the controllers run as a ServiceAccount with the rights of config/rbac. That
// the Lease is then removed with the account is Kubernetes' doing, and seen on a cluster (test/e2e).
func TestTheLeaseGoesWithTheServiceAccount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	config, account := serviceAccount(t, w)
	all := w.api
	w.api = config
	r := w.start(func(c *Config) { c.LeaderElection = true })
	eventually(t, 20*time.Second, func() error { return ownedBy(t, w, account.UID) })

	r.stop()
	owner := leaseOwner{
		client: kubernetes.NewForConfigOrDie(config), namespace: w.namespace, name: "postrider-controller", poll: time.Minute, log: slog.New(slog.DiscardHandler),
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: owner.name}}
	w.must(w.client.Delete(patience(t), lease))
	if err := owner.own(patience(t)); err != nil {
		t.Errorf("there is no Lease: got %v, want that it waits for one", err)
	}
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "other", UID: "1f0a9c2e-0000-4000-8000-000000000001"}
	lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: owner.name, OwnerReferences: []metav1.OwnerReference{other}}}
	w.must(w.client.Create(patience(t), lease))
	w.must(owner.own(patience(t)))
	w.must(ownedBy(t, w, account.UID))
	w.must(ownedBy(t, w, other.UID))
	version := readLease(t, w).ResourceVersion
	w.must(owner.own(patience(t)))
	if now := readLease(t, w).ResourceVersion; now != version {
		t.Error("a Lease that has its owner was written again")
	}

	// Somebody who is no ServiceAccount of the namespace owns nothing.
	w.must(w.client.Delete(patience(t), lease))
	lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: owner.name}}
	w.must(w.client.Create(patience(t), lease))
	owner.client = kubernetes.NewForConfigOrDie(all)
	w.must(owner.own(patience(t)))
	if owners := readLease(t, w).OwnerReferences; len(owners) > 0 {
		t.Errorf("a user's Lease is owned by %v", owners)
	}
}

// serviceAccount makes one with the rights of the controller, and returns what it connects with.
func serviceAccount(t *testing.T, w *world) (*rest.Config, *corev1.ServiceAccount) {
	t.Helper()
	ctx := patience(t)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "controller"}}
	w.must(w.client.Create(ctx, account))
	for i, path := range []string{"../config/rbac/role.yaml", "../config/rbac/leader_election_role.yaml"} {
		var rules struct {
			metav1.TypeMeta   `json:",inline"`
			metav1.ObjectMeta `json:"metadata"`
			Rules             []rbacv1.PolicyRule `json:"rules"`
		}
		readYAML(t, path, &rules)
		name := fmt.Sprintf("%s-%d", w.namespace, i)
		w.must(w.client.Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules.Rules}))
		w.must(w.client.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: w.namespace, Name: account.Name}},
		}))
	}
	token, err := localstack.Token(ctx, w.api, w.namespace, account.Name)
	w.must(err)
	return localstack.TokenConfig(w.api, token), account
}

func readLease(t *testing.T, w *world) *coordinationv1.Lease {
	t.Helper()
	lease := &coordinationv1.Lease{}
	w.must(w.client.Get(patience(t), w.key("postrider-controller"), lease))
	return lease
}

func ownedBy(t *testing.T, w *world, uid types.UID) error {
	t.Helper()
	lease := &coordinationv1.Lease{}
	if err := w.client.Get(patience(t), w.key("postrider-controller"), lease); err != nil {
		return err
	}
	for _, o := range lease.OwnerReferences {
		if o.UID == uid {
			return nil
		}
	}
	return errors.New("the Lease has no owner with uid " + string(uid))
}

package v1alpha1_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
)

var userRoles = []string{"postrider-viewer", "postrider-editor", "postrider-producer"}

// The roles are bound in a namespace by its admin; the API server's own authorizer is asked what that allows.
func TestRolesAllowWhatTheySay(t *testing.T) {
	t.Parallel()
	api, namespace := server(t)
	_, elsewhere := server(t)
	for _, name := range userRoles {
		apply(t, api, objects(t, roleFile(name))[0])
		bind(t, api, namespace, name, rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name})
	}
	// Whoever may write Kubernetes' own events may not post ours for it: a subresource is no wildcard's catch.
	writer := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "events-writer"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"*"}, Resources: []string{"events"}, Verbs: []string{"*"}}},
	}
	if err := api.Create(t.Context(), writer); err != nil {
		t.Fatalf("create a role: %v", err)
	}
	bind(t, api, namespace, "events-writer", rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "events-writer"})

	all := []string{"get endpoint", "list endpoint", "create endpoint", "patch endpoint", "delete endpoint", "update status", "create events", "get events"}
	for user, allowed := range map[string][]string{
		"postrider-viewer":   {"get endpoint", "list endpoint"},
		"postrider-editor":   {"get endpoint", "list endpoint", "create endpoint", "patch endpoint", "delete endpoint", "get events"},
		"postrider-producer": {"create events", "get events"},
		"events-writer":      {},
	} {
		if len(allowed) > 0 {
			awaitAllowed(t, api, user, namespace, allowed[0]) // the authorizer watches the bindings, a moment behind
		}
		for _, action := range all {
			if got, want := isAllowed(t, api, user, namespace, action), slices.Contains(allowed, action); got != want {
				t.Errorf("%s, %s: allowed %v, want %v", user, action, got, want)
			}
			if isAllowed(t, api, user, elsewhere, action) {
				t.Errorf("%s, %s: allowed in another namespace", user, action)
			}
		}
	}
}

// Only who holds a right may bind it to others: the admins of a namespace must hold all three roles.
func TestEveryRoleIsAggregatedToAdmin(t *testing.T) {
	t.Parallel()
	for _, name := range userRoles {
		role := objects(t, roleFile(name))[0]
		if role.GetName() != name {
			t.Errorf("%s holds the role %s", roleFile(name), role.GetName())
		}
		if role.GetLabels()["rbac.authorization.k8s.io/aggregate-to-admin"] != "true" {
			t.Errorf("%s is not aggregated to admin", name)
		}
	}
}

func roleFile(role string) string {
	return map[string]string{
		"postrider-viewer":   "../../config/rbac/postrider_viewer_role.yaml",
		"postrider-editor":   "../../config/rbac/postrider_editor_role.yaml",
		"postrider-producer": "../../config/rbac/postrider_producer_role.yaml",
	}[role]
}

func bind(t *testing.T, api client.Client, namespace, user string, role rbacv1.RoleRef) {
	t.Helper()
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: user}, RoleRef: role,
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if err := api.Create(t.Context(), binding); err != nil {
		t.Fatalf("bind %s: %v", user, err)
	}
}

func awaitAllowed(t *testing.T, api client.Client, user, namespace, action string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !isAllowed(t, api, user, namespace, action) {
		select {
		case <-deadline:
			t.Fatalf("%s, %s: still not allowed after 30 s", user, action)
		case <-tick.C:
		}
	}
}

func isAllowed(t *testing.T, api client.Client, user, namespace, action string) bool {
	t.Helper()
	verb, what, _ := strings.Cut(action, " ")
	attributes := authorizationv1.ResourceAttributes{
		Namespace: namespace, Verb: verb, Group: v1alpha1.GroupVersion.Group, Resource: "webhookendpoints", Name: "ledger",
	}
	if what != "endpoint" {
		attributes.Subresource = what
	}
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &attributes}}
	if err := api.Create(t.Context(), review); err != nil {
		t.Fatalf("ask whether %s may %s: %v", user, action, err)
	}
	return review.Status.Allowed
}

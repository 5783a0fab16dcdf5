package installer

import (
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/test/localstack"
)

func TestSecretsAreMadeOnceAndNeverChanged(t *testing.T) {
	t.Parallel()
	config := localstack.KubeAPI(t)
	namespace := localstack.Namespace(t, config)
	secrets := clientset(t, asInstaller(t, config, namespace, "ring", "password")).CoreV1().Secrets(namespace)
	wanted := []Wanted{
		{Name: "ring", Entry: "keyring", Make: func() (string, error) { return "first", nil }},
		{Name: "password", Entry: "password", Make: func() (string, error) { return "second", nil }},
	}
	outcomes, err := EnsureSecrets(t.Context(), secrets, wanted)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Outcome{{"ring", true}, {"password", true}}; !cmp.Equal(outcomes, want) {
		t.Errorf("first run: got %v, want %v", outcomes, want)
	}

	for i := range wanted {
		wanted[i].Make = func() (string, error) { t.Error("a value was made for a Secret that exists"); return "other", nil }
	}
	outcomes, err = EnsureSecrets(t.Context(), secrets, wanted)
	if err != nil {
		t.Fatal(err)
	}
	if want := []Outcome{{"ring", false}, {"password", false}}; !cmp.Equal(outcomes, want) {
		t.Errorf("second run: got %v, want %v", outcomes, want)
	}
	got, err := secrets.Get(t.Context(), "ring", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text := string(got.Data["keyring"]); text != "first" {
		t.Errorf("the Secret was changed: got %q, want %q", text, "first")
	}
	// A tool that prunes what it did not apply finds its objects by this label.
	if _, labelled := got.Labels["app.kubernetes.io/instance"]; labelled {
		t.Error("the Secret has the label of the release; it would be pruned")
	}
}

func TestASecretOfSomebodyElseIsReportedAndLeftAlone(t *testing.T) {
	t.Parallel()
	config := localstack.KubeAPI(t)
	namespace := localstack.Namespace(t, config)
	secrets := clientset(t, config).CoreV1().Secrets(namespace)
	theirs := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "ring"}, StringData: map[string]string{"key": "theirs"}}
	if _, err := secrets.Create(t.Context(), theirs, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := EnsureSecrets(t.Context(), secrets, []Wanted{{Name: "ring", Entry: "keyring", Make: func() (string, error) { return "ours", nil }}})
	if !errors.Is(err, ErrEntryMissing) || !strings.Contains(err.Error(), `secret ring`) || !strings.Contains(err.Error(), `"keyring"`) {
		t.Errorf("got %v, want an ErrEntryMissing that names Secret and entry", err)
	}
	got, err := secrets.Get(t.Context(), "ring", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string][]byte{"key": []byte("theirs")}; !cmp.Equal(got.Data, want) {
		t.Errorf("the Secret was changed: got entries %v", got.Data)
	}
}

func TestOfManyAtOnceOneMakesTheSecret(t *testing.T) {
	t.Parallel()
	config := localstack.KubeAPI(t)
	namespace := localstack.Namespace(t, config)
	secrets := clientset(t, config).CoreV1().Secrets(namespace)
	const runs = 8
	created := make([]bool, runs)
	var group sync.WaitGroup
	for i := range runs {
		group.Go(func() {
			outcomes, err := EnsureSecrets(t.Context(), secrets, []Wanted{{Name: "ring", Entry: "keyring", Make: func() (string, error) { return "one", nil }}})
			if err != nil {
				t.Error(err)
				return
			}
			created[i] = outcomes[0].Created
		})
	}
	group.Wait()
	makers := 0
	for _, c := range created {
		if c {
			makers++
		}
	}
	if makers != 1 {
		t.Errorf("%d runs say that they made the Secret, want 1", makers)
	}
}

func TestWhatCannotBeReadIsNotCreated(t *testing.T) {
	t.Parallel()
	config := localstack.KubeAPI(t)
	namespace := localstack.Namespace(t, config)
	secrets := clientset(t, asInstaller(t, config, namespace, "ring")).CoreV1().Secrets(namespace)
	_, err := EnsureSecrets(t.Context(), secrets, []Wanted{{Name: "another", Entry: "keyring", Make: func() (string, error) {
		t.Error("a value was made")
		return "", nil
	}}})
	if !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want what the API server said", err)
	}
}

// asInstaller has the rights of the chart's hook and no others: create Secrets, and get those of these names.
func asInstaller(t *testing.T, config *rest.Config, namespace string, names ...string) *rest.Config {
	t.Helper()
	token := localstack.ServiceAccountToken(t, config, namespace, "installer")
	rbac := clientset(t, config).RbacV1()
	meta := metav1.ObjectMeta{Name: "installer"}
	_, err := rbac.Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"create"}},
		{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get"}, ResourceNames: names},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = rbac.RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "installer"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "installer", Namespace: namespace}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return localstack.TokenConfig(config, token)
}

func clientset(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

package localstack

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func TestTokensAreAcceptedForTheirAudienceUntilTheyExpire(t *testing.T) {
	t.Parallel()
	config := KubeAPI(t)
	namespace := Namespace(t, config)
	good := ServiceAccountToken(t, config, namespace, "producer", "postrider")
	for name, c := range map[string]struct {
		token, audience string
		accepted        bool
	}{
		"as asked for":       {good, "postrider", true},
		"for another":        {good, "somebody-else", false},
		"default audience":   {ServiceAccountToken(t, config, namespace, "producer"), "postrider", false},
		"to the API server":  {ServiceAccountToken(t, config, namespace, "producer"), "", true},
		"expired":            {ExpiredServiceAccountToken(t, config, namespace, "producer", "postrider"), "postrider", false},
		"with one bit wrong": {good[:len(good)-10] + "AAAAAAAAAA", "postrider", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status := review(t, config, c.token, c.audience)
			if status.Authenticated != c.accepted {
				t.Errorf("authenticated: got %v (%s), want %v", status.Authenticated, status.Error, c.accepted)
			}
			if want := "system:serviceaccount:" + namespace + ":producer"; c.accepted && status.User.Username != want {
				t.Errorf("user: got %s, want %s", status.User.Username, want)
			}
			if name == "expired" && !strings.Contains(status.Error, "expired") {
				t.Errorf("why it was refused: got %q, want that it has expired: it would prove nothing if it were wrong otherwise", status.Error)
			}
		})
	}
}

func TestATokenHasOnlyTheRightsOfItsServiceAccount(t *testing.T) {
	t.Parallel()
	config := KubeAPI(t)
	namespace := Namespace(t, config)
	client := clientset(t, TokenConfig(config, ServiceAccountToken(t, config, namespace, "nobody-special")))
	_, err := client.CoreV1().Secrets(namespace).List(t.Context(), metav1.ListOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("list Secrets without a role: got %v, want forbidden", err)
	}
}

func TestTheCRDIsServed(t *testing.T) {
	t.Parallel()
	resources, err := clientset(t, KubeAPI(t)).Discovery().ServerResourcesForGroupVersion("webhooks.postrider.dev/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range resources.APIResources {
		if r.Name == "webhookendpoints" {
			return
		}
	}
	t.Errorf("resources: got %v, want webhookendpoints among them", resources.APIResources)
}

func TestTheVersionIsOneThatClientsCanParse(t *testing.T) {
	t.Parallel()
	version, err := clientset(t, KubeAPI(t)).Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.Major != "1" || !strings.HasPrefix(version.GitVersion, "v1.") {
		t.Errorf("version: got %s, major %s, want v1.something", version.GitVersion, version.Major)
	}
}

func TestAnAPIServerKeepsAddressAndDataOverAStop(t *testing.T) {
	t.Parallel()
	server := StartKubeAPI(t, KubeAPIOptions{})
	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	client := clientset(t, config)
	namespace := Namespace(t, config)
	token := ServiceAccountToken(t, config, namespace, "producer", "postrider")
	for name, down := range map[string]func(){"stopped": server.Stop, "killed": server.Kill} {
		down()
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); err == nil {
			t.Fatalf("%s, and it still answers", name)
		}
		if err := server.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{}); err != nil {
			t.Errorf("the namespace after it was %s: %v", name, err)
		}
		if status := review(t, config, token, "postrider"); !status.Authenticated {
			t.Errorf("a token issued before it was %s: %s", name, status.Error)
		}
	}
}

func TestTheUsersClusterAndDatabaseAreOutOfReach(t *testing.T) {
	t.Parallel()
	for rules, leadsSomewhere := range map[*clientcmd.ClientConfigLoadingRules]bool{
		clientcmd.NewDefaultClientConfigLoadingRules(): false,
		{ExplicitPath: foreignKubeconfig}:              true, // or this test would prove nothing
	} {
		config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
		if leadsSomewhere != (err == nil) {
			t.Errorf("kubeconfig %q: got %v and %v, want it to lead somewhere: %v", rules.ExplicitPath, config, err, leadsSomewhere)
		}
	}
	for name := range foreign {
		if value, ok := os.LookupEnv(name); ok {
			t.Errorf("%s is set to %q in a test, want it unset", name, value)
		}
	}
}

func review(t *testing.T, config *rest.Config, token, audience string) authenticationv1.TokenReviewStatus {
	t.Helper()
	spec := authenticationv1.TokenReviewSpec{Token: token}
	if audience != "" {
		spec.Audiences = []string{audience}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	answer, err := clientset(t, config).AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status
}

func clientset(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

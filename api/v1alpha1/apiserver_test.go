package v1alpha1_test

import (
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/localstack"
)

func TestMain(m *testing.M) { localstack.Main(m) }

// server gives a client for a real API server, and a namespace of the test's own on it.
func server(t *testing.T) (client.Client, string) {
	t.Helper()
	config := localstack.KubeAPI(t)
	config.QPS = -1 // hundreds of small requests; the API server can take them
	return clientOf(t, config), localstack.Namespace(t, config)
}

func clientOf(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, rbacv1.AddToScheme, authorizationv1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatalf("register types: %v", err)
		}
	}
	api, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatalf("make a client: %v", err)
	}
	return api
}

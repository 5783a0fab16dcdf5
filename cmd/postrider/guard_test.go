package main

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/postrider/postrider/test/localstack"
)

// With --metrics-auth the Kubernetes API says who may read metrics and profiles; probes stay open, as the kubelet has no
// token. Plain HTTP is not answered.
func TestMetricsAreForThoseAloneWhomTheKubernetesAPIAllows(t *testing.T) {
	t.Parallel()
	api := localstack.StartKubeAPI(t, localstack.KubeAPIOptions{})
	client, err := kubernetes.NewForConfig(api.Config())
	if err != nil {
		t.Fatal(err)
	}
	allowed := localstack.ServiceAccountToken(t, api.Config(), "default", "prometheus")
	unmeant := localstack.ServiceAccountToken(t, api.Config(), "default", "prometheus", "postrider")
	other := localstack.ServiceAccountToken(t, api.Config(), "default", "other")
	if _, err := client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics-reader"},
		Rules:      []rbacv1.PolicyRule{{NonResourceURLs: []string{"/metrics"}, Verbs: []string{"get"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics-reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "metrics-reader"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "prometheus"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	address := serveGuarded(t, api)
	https := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // its certificate is of its own making
	t.Cleanup(https.CloseIdleConnections)
	get := func(path, token string) int {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := https.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		return response.StatusCode
	}
	for _, c := range []struct {
		path, token, who string
		want             int
	}{
		{"/metrics", allowed, "who may read metrics", 200},
		{"/metrics", other, "another account", 403},
		{"/metrics", "garbage", "a bad token", 401},
		{"/metrics", unmeant, "a token for another audience", 401},
		{"/metrics", "", "nobody", 401},
		{"/debug/pprof/", allowed, "who may read metrics alone", 403},
		{"/debug/pprof/", "", "nobody", 401},
		{"/livez", "", "nobody", 200},
		{"/readyz", "", "nobody", 200},
	} {
		if got := get(c.path, c.token); got != c.want {
			t.Errorf("%s for %s: got %d, want %d", c.path, c.who, got, c.want)
		}
	}
	plain, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	if response, err := http.DefaultClient.Do(plain); err == nil {
		_ = response.Body.Close()
		if response.StatusCode == http.StatusOK {
			t.Error("metrics are served over plain HTTP")
		}
	}
}

// serveGuarded serves probes, metrics and profiles and returns their address.
func serveGuarded(t *testing.T, api *localstack.KubeAPIServer) string {
	t.Helper()
	k := cluster{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig"), metricsAuth: true}
	if err := localstack.WriteKubeconfig(k.kubeconfig, api.Config()); err != nil {
		t.Fatal(err)
	}
	by, err := k.guard(slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	said := &noted{}
	o := observing{address: "127.0.0.1:0", profiling: true}
	ctx, stop := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := o.serve(ctx, slog.New(slog.NewTextHandler(said, nil)), newRegistry(), by, func() error { return nil }); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
	})
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, log := said.so(); strings.Contains(log, "address=") {
			_, address, _ := strings.Cut(log, "address=")
			return strings.TrimSpace(address)
		}
	}
	t.Fatal("it does not say where it serves")
	return ""
}

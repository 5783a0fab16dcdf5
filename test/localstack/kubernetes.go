package localstack

import (
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	issuer          = "https://kubernetes.default.svc.cluster.local"
	signingKeyName  = "service-account.key"
	requestPatience = 30 * time.Second
)

// KubeAPI returns a client configuration with every right on the API server that all tests of this process share. The
// CRDs of config/crd/bases are installed. Tests work in namespaces of their own, and a controller under test watches
// its own only: others run at the same time.
func KubeAPI(t testing.TB) *rest.Config {
	t.Helper()
	shared.require(t)
	server, err := shared.kube.get(openKube)
	if err != nil {
		t.Fatalf("localstack: start the API server: %v", err)
	}
	return rest.CopyConfig(server.config)
}

// Namespace makes a namespace with a fresh name. When the test ends, its WebhookEndpoints are deleted, so that no
// other test meets them, and the namespace is left Terminating: there is no controller manager.
func Namespace(t testing.TB, config *rest.Config) string {
	t.Helper()
	client, ctx := clientFor(t, config)
	name := "test-" + strings.ToLower(rand.Text()[:12])
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		t.Fatalf("localstack: make a namespace: %v", err)
	}
	t.Cleanup(func() {
		client, ctx := clientFor(t, config)
		endpoints := "/apis/webhooks.postrider.dev/v1alpha1/namespaces/" + name + "/webhookendpoints"
		err := client.Discovery().RESTClient().Delete().AbsPath(endpoints).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			err = nil // no such kind yet
		}
		err = errors.Join(err, client.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}))
		if err != nil && !unreachable(ctx, client) {
			t.Errorf("localstack: delete namespace %s: %v", name, err)
		}
	})
	return name
}

// ServiceAccountToken returns a token that the API server issued for a ServiceAccount, which is made if need be. It
// holds for an hour. Without audiences it is for the API server itself.
func ServiceAccountToken(t testing.TB, config *rest.Config, namespace, name string, audiences ...string) string {
	t.Helper()
	client, ctx := clientFor(t, config)
	serviceAccount(t, ctx, client, namespace, name)
	hour := int64(time.Hour / time.Second)
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: &hour}}
	answer, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("localstack: request a token of ServiceAccount %s/%s: %v", namespace, name, err)
	}
	return answer.Status.Token
}

// ExpiredServiceAccountToken returns a token that the API server could have issued: right in all but that it expired a
// minute ago. (The API server itself issues none that expire within ten minutes.)
func ExpiredServiceAccountToken(t testing.TB, config *rest.Config, namespace, name string, audiences ...string) string {
	t.Helper()
	client, ctx := clientFor(t, config)
	account := serviceAccount(t, ctx, client, namespace, name)
	value, _ := signingKeys.Load(config.Host)
	path, ok := value.(string)
	if !ok {
		t.Fatalf("localstack: the key that signs the tokens of %s is not known", config.Host)
	}
	if len(audiences) == 0 {
		audiences = []string{issuer}
	}
	expired := time.Now().Add(-time.Minute)
	token, err := sign(path, map[string]any{
		"iss": issuer, "aud": audiences, "sub": "system:serviceaccount:" + namespace + ":" + name,
		"iat": expired.Add(-time.Hour).Unix(), "nbf": expired.Add(-time.Hour).Unix(), "exp": expired.Unix(),
		"kubernetes.io": map[string]any{
			"namespace": namespace, "serviceaccount": map[string]any{"name": name, "uid": account.UID},
		},
	})
	if err != nil {
		t.Fatalf("localstack: sign a token: %v", err)
	}
	return token
}

// TokenConfig returns a client configuration for the same API server that authenticates with a bearer token.
func TokenConfig(config *rest.Config, token string) *rest.Config {
	c := rest.AnonymousClientConfig(config)
	c.BearerToken, c.QPS = token, -1
	return c
}

// WriteKubeconfig writes a kubeconfig for what config authenticates with, readable for this user only.
func WriteKubeconfig(path string, config *rest.Config) error {
	return clientcmd.WriteToFile(*kubeconfigOf(config), path)
}

// sharedKube is the API server that all tests of this process use: an own one, or the one of EnvKubeconfig.
type sharedKube struct {
	own         *KubeAPIServer // nil if somebody else started it
	config      *rest.Config
	connections connections
}

func openKube() (*sharedKube, error) {
	if path := os.Getenv(EnvKubeconfig); path != "" {
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			return nil, fmt.Errorf("read the kubeconfig that %s names: %w", EnvKubeconfig, err)
		}
		config.QPS = -1
		signingKeys.Store(config.Host, filepath.Join(filepath.Dir(path), signingKeyName))
		held, err := holdConnections(config)
		return &sharedKube{config: config, connections: held}, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), buildPatience)
	defer cancel()
	own, err := NewKubeAPI(ctx, KubeAPIOptions{})
	if err != nil {
		return nil, err
	}
	return &sharedKube{own: own, config: own.config}, nil
}

func (s *sharedKube) close() error {
	if s == nil {
		return nil
	}
	s.connections.close()
	return s.own.Close()
}

// connections holds on to the connections that client-go keeps for all clients of a configuration, with its client
// certificate or with tokens. client-go itself forgets them as soon as no client is left, and then nobody can close
// them: their goroutines would wait until the server ends.
type connections []http.RoundTripper

func holdConnections(config *rest.Config) (connections, error) {
	var held connections
	for _, c := range []*rest.Config{config, rest.AnonymousClientConfig(config)} {
		transport, err := rest.TransportFor(c)
		if err != nil {
			return nil, fmt.Errorf("make a transport: %w", err)
		}
		held = append(held, transport)
	}
	return held, nil
}

// close closes those that are idle, which all are when no test runs.
func (c connections) close() {
	for _, transport := range c {
		utilnet.CloseIdleConnectionsFor(transport)
	}
}

func clientFor(t testing.TB, config *rest.Config) (*kubernetes.Clientset, context.Context) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatalf("localstack: make a client: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), requestPatience)
	t.Cleanup(cancel)
	return client, ctx
}

// unreachable tells that the API server is gone, stopped by the test itself.
func unreachable(ctx context.Context, client *kubernetes.Clientset) bool {
	return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() != nil
}

func serviceAccount(t testing.TB, ctx context.Context, client *kubernetes.Clientset, namespace, name string) *corev1.ServiceAccount {
	t.Helper()
	accounts := client.CoreV1().ServiceAccounts(namespace)
	account, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		account, err = accounts.Get(ctx, name, metav1.GetOptions{})
	}
	if err != nil {
		t.Fatalf("localstack: make ServiceAccount %s/%s: %v", namespace, name, err)
	}
	return account
}

// signingKeys maps the address of an API server to the file with the key that it signs ServiceAccount tokens with.
var signingKeys sync.Map

// sign makes a JWT (RFC 7519) with ES256 (RFC 7518, 3.4).
func sign(keyFile string, claims map[string]any) (string, error) {
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return "", err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return "", errors.New(keyFile + " is not PEM")
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		return "", err
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	encoding := base64.RawURLEncoding
	signed := encoding.EncodeToString([]byte(`{"alg":"ES256"}`)) + "." + encoding.EncodeToString(payload)
	digest := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, digest[:])
	if err != nil {
		return "", err
	}
	signature := append(fill(r), fill(s)...)
	return signed + "." + encoding.EncodeToString(signature), nil
}

func fill(n *big.Int) []byte { return n.FillBytes(make([]byte, 32)) }

package localstack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// KubeAPIOptions says what kind of API server NewKubeAPI starts. The zero value suits tests.
type KubeAPIOptions struct {
	// Flags are added to the command line of kube-apiserver, and win over ours.
	Flags []string
	// Durable makes etcd sync its writes to disk. False is faster and still survives the kill of any process.
	Durable bool
	// Progress receives lines for whoever waits while programs are built. Nil means os.Stderr.
	Progress io.Writer
}

// KubeAPIServer is an etcd and a kube-apiserver of our own, with the CRDs of config/crd/bases installed. There is no
// controller manager: nobody makes default ServiceAccounts, collects garbage or finishes the deletion of a namespace.
// Its methods are not safe for concurrent use, except Config.
type KubeAPIServer struct {
	options     KubeAPIOptions
	folder      *folder
	ca          *authority
	config      *rest.Config
	connections connections
	programs    struct{ etcd, apiServer string }
	etcdPort    int
	peerPort    int
	port        int
	etcd        *process
	server      *process
}

const (
	kubePatience = 2 * time.Minute
	// The API server ignores TERM for long when it cannot reach its store.
	kubeGrace = 3 * time.Second
)

// NewKubeAPI starts etcd and an API server, after building them if need be (see BuildKubeAPI). The caller calls Close.
//
// envtest could do this, but its processes outlive a test that is killed, and its Stop gives up on those that do not
// end by themselves. Of envtest we use the installation of CRDs.
func NewKubeAPI(ctx context.Context, o KubeAPIOptions) (*KubeAPIServer, error) {
	k := &KubeAPIServer{options: o}
	var err error
	if k.programs.etcd, err = etcd.Path(ctx, o.Progress); err != nil {
		return nil, err
	}
	if k.programs.apiServer, err = kubeAPIServer.Path(ctx, o.Progress); err != nil {
		return nil, err
	}
	if k.folder, err = newFolder(false); err != nil {
		return nil, err
	}
	if err := k.setUp(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// StartKubeAPI is NewKubeAPI for a test that stops and starts its API server; it is closed with the test.
func StartKubeAPI(t testing.TB, o KubeAPIOptions) *KubeAPIServer {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildPatience)
	defer cancel()
	k, err := NewKubeAPI(ctx, o)
	if err != nil {
		t.Fatalf("localstack: start an API server for this test: %v", err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Errorf("localstack: close the API server of this test: %v", err)
		}
	})
	return k
}

// Config returns a client configuration with every right, without client-side rate limit.
func (k *KubeAPIServer) Config() *rest.Config { return rest.CopyConfig(k.config) }

// User returns a client configuration for a user with a certificate; RBAC decides on its rights.
func (k *KubeAPIServer) User(name string, groups ...string) (*rest.Config, error) {
	pair, err := k.ca.client(name, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            "https://" + loopback(k.port),
		TLSClientConfig: rest.TLSClientConfig{CAData: k.ca.certPEM, CertData: pair.cert, KeyData: pair.key},
		QPS:             -1,
	}, nil
}

// Kubeconfig returns the path of a kubeconfig with every right, which exists until Close.
func (k *KubeAPIServer) Kubeconfig() string { return k.file(kubeconfigName) }

// Start starts the API server again after Stop or Kill, on the same port and the same data.
func (k *KubeAPIServer) Start(ctx context.Context) error {
	if k.server.running() {
		return nil
	}
	server, err := start(command{
		path: k.programs.apiServer,
		args: append([]string{
			"--etcd-servers=http://" + loopback(k.etcdPort),
			"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(k.port),
			// A loopback address cannot be the endpoint of Service kubernetes, which nobody here uses.
			"--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none",
			"--tls-cert-file=" + k.file("server.crt"), "--tls-private-key-file=" + k.file("server.key"),
			"--client-ca-file=" + k.file("ca.crt"),
			"--service-account-issuer=" + issuer,
			"--service-account-key-file=" + k.file(signingKeyName),
			"--service-account-signing-key-file=" + k.file(signingKeyName),
			"--service-cluster-ip-range=10.0.0.0/24",
			"--authorization-mode=RBAC",
			// It wants default ServiceAccounts, which the controller manager makes.
			"--disable-admission-plugins=ServiceAccount",
			"--allow-privileged=true",
		}, k.options.Flags...),
		dir:      k.folder.path,
		env:      serverEnvironment(),
		log:      k.file("kube-apiserver.log"),
		orphaned: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	k.server = server
	return server.await(ctx, kubePatience, k.ready)
}

// Stop ends the API server. etcd keeps running and keeps the data.
func (k *KubeAPIServer) Stop() { k.server.stop(syscall.SIGTERM, kubeGrace) }

// Kill ends the API server as a crash does.
func (k *KubeAPIServer) Kill() { k.server.kill() }

// Close stops both servers and deletes their data. It may be called twice.
func (k *KubeAPIServer) Close() error {
	if k == nil || k.folder == nil {
		return nil
	}
	k.Stop()
	k.etcd.stop(syscall.SIGTERM, kubeGrace)
	if k.config != nil {
		k.connections.close()
		signingKeys.Delete(k.config.Host)
	}
	err := k.folder.remove()
	k.folder = nil
	return err
}

const kubeconfigName = "kubeconfig"

func (k *KubeAPIServer) file(name string) string { return filepath.Join(k.folder.path, "kube", name) }

func (k *KubeAPIServer) setUp(ctx context.Context) error {
	if err := os.Mkdir(filepath.Join(k.folder.path, "kube"), 0o700); err != nil {
		return fmt.Errorf("make the folder of the API server: %w", err)
	}
	for _, port := range []*int{&k.etcdPort, &k.peerPort, &k.port} {
		var err error
		if *port, err = freePort(ctx); err != nil {
			return err
		}
	}
	if err := k.writeCertificates(); err != nil {
		return err
	}
	if err := k.startEtcd(ctx); err != nil {
		return err
	}
	if err := k.Start(ctx); err != nil {
		return err
	}
	return installCRDs(k.config)
}

func (k *KubeAPIServer) startEtcd(ctx context.Context) error {
	client, peer := "http://"+loopback(k.etcdPort), "http://"+loopback(k.peerPort)
	var err error
	k.etcd, err = start(command{
		path: k.programs.etcd,
		args: []string{
			"--name=etcd", "--data-dir=" + k.file("etcd"),
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=etcd=" + peer,
			"--unsafe-no-fsync=" + strconv.FormatBool(!k.options.Durable), "--log-level=warn",
		},
		dir:      k.folder.path,
		env:      serverEnvironment(),
		log:      k.file("etcd.log"),
		orphaned: syscall.SIGKILL,
	})
	if err != nil {
		return err
	}
	probe := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 2 * time.Second}
	return k.etcd.await(ctx, kubePatience, func(ctx context.Context) error { return healthy(ctx, probe, client+"/health") })
}

// writeCertificates prepares all that the API server and its administrator prove themselves with.
func (k *KubeAPIServer) writeCertificates() error {
	var err error
	if k.ca, err = newAuthority(); err != nil {
		return err
	}
	server, err := k.ca.server()
	if err != nil {
		return err
	}
	_, signingKey, err := newKey()
	if err != nil {
		return err
	}
	if k.config, err = k.User("admin", "system:masters"); err != nil {
		return err
	}
	if k.connections, err = holdConnections(k.config); err != nil {
		return err
	}
	signingKeys.Store(k.config.Host, k.file(signingKeyName))
	kubeconfig, err := clientcmd.Write(*kubeconfigOf(k.config))
	if err != nil {
		return fmt.Errorf("encode the kubeconfig: %w", err)
	}
	for name, content := range map[string][]byte{
		"ca.crt": k.ca.certPEM, "server.crt": server.cert, "server.key": server.key,
		signingKeyName: signingKey, kubeconfigName: kubeconfig,
	} {
		if err := os.WriteFile(k.file(name), content, 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return nil
}

// ready asks for more than /readyz: the namespace default is made a moment later.
func (k *KubeAPIServer) ready(ctx context.Context) error {
	client, err := rest.HTTPClientFor(k.config)
	if err != nil {
		return err
	}
	for _, path := range []string{"/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"} {
		if err := healthy(ctx, client, k.config.Host+path); err != nil {
			return err
		}
	}
	return nil
}

func healthy(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 4096))
	if err := errors.Join(err, response.Body.Close()); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", url, response.Status, body)
	}
	return nil
}

// installCRDs installs the checkout's, and waits until they are served.
func installCRDs(config *rest.Config) error {
	top, err := root()
	if err != nil {
		return err
	}
	crds := filepath.Join(top, "config/crd/bases")
	if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: []string{crds}, MaxTime: 30 * time.Second}); err != nil {
		return fmt.Errorf("install the CRDs of %s: %w", crds, err)
	}
	return nil
}

func kubeconfigOf(config *rest.Config) *clientcmdapi.Config {
	const name = "postrider-test"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Token: config.BearerToken}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	return c
}

// serverEnvironment keeps the user's variables from steering the servers: ETCD_*, proxies, KUBE*.
func serverEnvironment() []string {
	kept := []string{}
	for _, name := range []string{"PATH", "HOME", "TMPDIR"} {
		if value, ok := os.LookupEnv(name); ok {
			kept = append(kept, name+"="+value)
		}
	}
	return kept
}

// isolate keeps whoever runs in this process from the user's clusters and databases. Libraries read these variables.
func isolate() error {
	var errs []error
	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")
		if foreignPostgres(name) || strings.HasPrefix(name, "KUBERNETES_SERVICE_") || name == "USE_EXISTING_CLUSTER" {
			errs = append(errs, os.Unsetenv(name))
		}
	}
	// Without the variable, libraries would take ~/.kube/config.
	errs = append(errs, os.Setenv("KUBECONFIG", os.DevNull))
	return errors.Join(errs...)
}

// foreignPostgres tells that libpq and pgx read the variable, but for those with which a user may complete the
// credentials of EnvDatabaseURL.
func foreignPostgres(name string) bool {
	return strings.HasPrefix(name, "PG") && !strings.HasPrefix(name, "PGPASS") && !strings.HasPrefix(name, "PGSSL")
}

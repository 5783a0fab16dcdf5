package changes

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/localstack"
)

const (
	namespace = "acme"
	role      = "app"
)

func TestMain(m *testing.M) { localstack.Main(m) }

// installation is Postrider with a database that it reaches by files, and a receiver.
type installation struct {
	t        *testing.T
	postgres *localstack.Postgres
	owner    *pgx.Conn
	secret   *mount // the database's
	settings *mount
	kube     *localstack.KubeAPIServer
	client   client.Client
	parts    map[string]*localstack.Part
	receiver *httptest.Server
	received atomic.Int64
}

func install(t *testing.T) *installation {
	t.Helper()
	in := &installation{
		t: t, secret: newMount(t), settings: newMount(t), parts: map[string]*localstack.Part{},
		postgres: localstack.StartPostgres(t, localstack.PostgresOptions{TLS: true}), kube: localstack.StartKubeAPI(t, localstack.KubeAPIOptions{}),
	}
	in.connect()
	in.receiver = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		in.received.Add(1)
	}))
	t.Cleanup(in.receiver.Close)
	postrider, err := localstack.NewPostrider(t.Context(), localstack.PostriderOptions{
		KubeAPI: in.kube, Progress: t.Output(),
		Environment: []string{
			"POSTRIDER_DATABASE_URL_FILE=" + in.secret.file("url"), "PGSSLMODE=verify-full", "PGSSLROOTCERT=" + in.secret.file("ca.crt"),
			"POSTRIDER_DRAIN_DELAY=0s",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := postrider.Close(); err != nil {
			t.Error(err)
		}
	})
	in.publish(usual, usual)
	for part, flags := range map[string][]string{"controller": nil, "dispatcher": nil, "ingest": {"--insecure-no-auth"}} {
		started, err := postrider.Start(t.Context(), part, append(flags, "--settings-file", in.settings.file(part+".yaml"))...)
		if err != nil {
			t.Fatal(err)
		}
		in.parts[part] = started
	}
	return in
}

// connect makes the role of the parts and its database, and a connection that looks after them.
func (in *installation) connect() {
	in.t.Helper()
	var err error
	if in.owner, err = pgx.Connect(in.t.Context(), in.postgres.DSN("postgres")); err != nil {
		in.t.Fatal(err)
	}
	in.t.Cleanup(func() { _ = in.owner.Close(context.Background()) })
	in.exec(`CREATE ROLE ` + role + ` LOGIN PASSWORD 'first-password'`)
	in.exec(`CREATE DATABASE postrider OWNER ` + role)
	in.putPassword("first-password")

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			in.t.Fatal(err)
		}
	}
	if in.client, err = client.New(in.kube.Config(), client.Options{Scheme: scheme}); err != nil {
		in.t.Fatal(err)
	}
}

func (in *installation) exec(statement string, args ...any) {
	in.t.Helper()
	if _, err := in.owner.Exec(in.t.Context(), statement, args...); err != nil {
		in.t.Fatal(err)
	}
}

// putPassword changes the Secret that the parts have mounted.
func (in *installation) putPassword(password string) {
	in.t.Helper()
	at, err := url.Parse(in.postgres.DSN("postrider"))
	if err != nil {
		in.t.Fatal(err)
	}
	at.User, at.RawQuery = url.UserPassword(role, password), ""
	in.secret.put(map[string]string{"url": at.String() + "\n", "ca.crt": string(in.postgres.Certificate())})
}

// usual lets webhooks go where the receiver is.
const usual = `
destination-allowed-cidrs: [127.0.0.0/8]
destination-allow-http: true
`

// publish changes the ConfigMap that the parts have mounted.
func (in *installation) publish(controller, dispatcher string) {
	in.t.Helper()
	in.settings.put(map[string]string{"controller.yaml": controller, "dispatcher.yaml": dispatcher, "ingest.yaml": "log-level: debug\n"})
}

func (in *installation) create(o client.Object) {
	in.t.Helper()
	if err := in.client.Create(in.t.Context(), o); err != nil {
		in.t.Fatal(err)
	}
}

// endpoint makes an endpoint at the receiver, and its namespace and Secret if they are not there.
func (in *installation) endpoint(name string, change func(*v1alpha1.WebhookEndpointSpec)) {
	in.t.Helper()
	key := make([]byte, 32)
	_, _ = rand.Read(key)
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "signing", Namespace: namespace},
			StringData: map[string]string{"key": "whsec_" + base64.StdEncoding.EncodeToString(key)},
		},
	} {
		if err := in.client.Create(in.t.Context(), o); client.IgnoreAlreadyExists(err) != nil {
			in.t.Fatal(err)
		}
	}
	e := &v1alpha1.WebhookEndpoint{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       v1alpha1.WebhookEndpointSpec{URL: in.receiver.URL + "/" + name, EventTypes: []v1alpha1.EventTypePattern{"invoice.*"}},
	}
	e.Spec.Signing.SecretRef.Name, e.Spec.Signing.SecretRef.Key = "signing", "key"
	change(&e.Spec)
	in.create(e)
}

// awaitCondition waits for a reason of a condition of an endpoint.
func (in *installation) awaitCondition(name, condition, reason string) {
	in.t.Helper()
	in.await(name+": "+condition+" "+reason, func(ctx context.Context) error {
		var e v1alpha1.WebhookEndpoint
		if err := in.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &e); err != nil {
			return err
		}
		for _, c := range e.Status.Conditions {
			if c.Type == condition && c.Reason == reason && e.Status.ObservedGeneration == e.Generation {
				return nil
			}
		}
		return fmt.Errorf("conditions: %+v", e.Status.Conditions)
	})
}

func (in *installation) await(what string, condition func(context.Context) error) {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			in.t.Fatalf("not within a minute: %s; the last look: %v", what, err)
		case <-tick.C:
		}
	}
}

// post posts an event, again while ingest says that it cannot take it now.
func (in *installation) post(event string) {
	in.t.Helper()
	in.await("an event is accepted", func(ctx context.Context) error { return in.postOnce(ctx, event) })
}

func (in *installation) postOnce(ctx context.Context, event string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, in.parts["ingest"].URL+"/api/v1/events?namespace="+namespace, strings.NewReader(event))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusAccepted {
		return fmt.Errorf("answered %s", response.Status)
	}
	return nil
}

// metric reads one metric without labels from a part.
func (in *installation) metric(part, name string) string {
	in.t.Helper()
	request, err := http.NewRequestWithContext(in.t.Context(), http.MethodGet, in.parts[part].Probes+"/metrics", nil)
	if err != nil {
		in.t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		in.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		in.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, name+" "); found {
			return strings.TrimSpace(value)
		}
	}
	return "absent"
}

// logged returns what a part has logged so far.
func (in *installation) logged(part string) string {
	in.t.Helper()
	text, err := os.ReadFile(in.parts[part].Log())
	if err != nil {
		in.t.Fatal(err)
	}
	return string(text)
}

// mount is a folder that changes as the kubelet changes those of Secrets and ConfigMaps: files are links into a folder of
// the present state, and the link to that folder is swapped.
type mount struct {
	t      *testing.T
	folder string
	states int
}

func newMount(t *testing.T) *mount {
	t.Helper()
	return &mount{t: t, folder: t.TempDir()}
}

func (m *mount) file(name string) string { return filepath.Join(m.folder, name) }

func (m *mount) put(files map[string]string) {
	m.t.Helper()
	m.states++
	state := fmt.Sprintf("..state-%d", m.states)
	must := func(err error) {
		m.t.Helper()
		if err != nil {
			m.t.Fatal(err)
		}
	}
	must(os.Mkdir(m.file(state), 0o700))
	for name, text := range files {
		must(os.WriteFile(filepath.Join(m.file(state), name), []byte(text), 0o600))
	}
	must(os.Symlink(state, m.file("..data-new")))
	must(os.Rename(m.file("..data-new"), m.file("..data")))
	for name := range files {
		if _, err := os.Lstat(m.file(name)); os.IsNotExist(err) {
			must(os.Symlink("..data/"+name, m.file(name)))
		}
	}
	if m.states > 1 {
		must(os.RemoveAll(m.file(fmt.Sprintf("..state-%d", m.states-1))))
	}
}

package secrecy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/localstack"
)

const (
	namespace = "acme"
	name      = "ledger"
	key       = "signing-key"
)

// installation is Postrider with a database and an API server of its own, and a receiver that behaves as it is told.
type installation struct {
	t        *testing.T
	postgres *localstack.Postgres
	database string
	kube     *localstack.KubeAPIServer
	client   client.Client
	parts    []*localstack.Part
	ingest   *localstack.Part
	token    string
	keyring  string
	receiver *httptest.Server
	status   atomic.Int32 // what the receiver answers
	received atomic.Int32
}

func install(t *testing.T) *installation {
	t.Helper()
	in := &installation{t: t, postgres: localstack.StartPostgres(t, localstack.PostgresOptions{}), kube: localstack.StartKubeAPI(t, localstack.KubeAPIOptions{})}
	var err error
	if in.database, err = in.postgres.CreateDatabase(t.Context(), "postrider"); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	if in.client, err = client.New(in.kube.Config(), client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	in.status.Store(http.StatusOK)
	in.receiver = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		in.received.Add(1)
		w.WriteHeader(int(in.status.Load()))
	}))
	t.Cleanup(in.receiver.Close)

	postrider, err := localstack.NewPostrider(t.Context(), localstack.PostriderOptions{
		KubeAPI: in.kube, DatabaseURL: in.database, Progress: t.Output(),
		Environment: []string{"POSTRIDER_DESTINATION_ALLOWED_CIDRS=127.0.0.0/8", "POSTRIDER_DESTINATION_ALLOW_HTTP=true", "POSTRIDER_LOG_LEVEL=debug", "POSTRIDER_DRAIN_DELAY=0s"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := postrider.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, part := range []string{"controller", "dispatcher", "ingest"} {
		started, err := postrider.Start(t.Context(), part)
		if err != nil {
			t.Fatal(err)
		}
		in.parts = append(in.parts, started)
		if part == "ingest" {
			in.ingest = started
		}
	}
	if in.keyring, err = postrider.Keyring(); err != nil {
		t.Fatal(err)
	}
	return in
}

// producer makes the namespace and a ServiceAccount that may post.
func (in *installation) producer() {
	in.t.Helper()
	in.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	in.create(&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: namespace}})
	if err := in.client.Create(in.t.Context(), producerBinding()); err != nil {
		in.t.Fatal(err)
	}
	token, err := localstack.Token(in.t.Context(), in.kube.Config(), namespace, "app", "postrider")
	if err != nil {
		in.t.Fatal(err)
	}
	in.token = token
}

func (in *installation) create(o client.Object) {
	in.t.Helper()
	if err := in.client.Create(in.t.Context(), o); err != nil {
		in.t.Fatal(err)
	}
}

// setSecret writes the Secret as `kubectl apply` of its stringData does: the value stands in an annotation too.
func (in *installation) setSecret(value string) {
	in.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	err := in.client.Get(in.t.Context(), client.ObjectKeyFromObject(secret), secret)
	secret.StringData = map[string]string{key: value}
	secret.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: fmt.Sprintf(`{"stringData":{%q:%q}}`, key, value)}
	if client.IgnoreNotFound(err) != nil {
		in.t.Fatal(err)
	}
	if err != nil {
		in.create(secret)
		return
	}
	if err := in.client.Update(in.t.Context(), secret); err != nil {
		in.t.Fatal(err)
	}
}

// awaitReady waits for a reason of the condition Ready that was given for the present Secret.
func (in *installation) awaitReady(what string, enough func(v1alpha1.WebhookEndpoint) bool) {
	in.t.Helper()
	in.await(what, func(ctx context.Context) bool {
		var e v1alpha1.WebhookEndpoint
		return in.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &e) == nil && enough(e)
	})
}

func (in *installation) await(what string, condition func(context.Context) bool) {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !condition(ctx) {
		select {
		case <-ctx.Done():
			in.t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}

// post returns the status of the answer, 0 for none, and its text.
func (in *installation) post(token, body string) (int, string) {
	in.t.Helper()
	ctx, cancel := context.WithTimeout(in.t.Context(), 20*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, in.ingest.URL+"/api/v1/events", strings.NewReader(body))
	if err != nil {
		in.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, ""
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return 0, ""
	}
	return response.StatusCode, string(text)
}

// everything returns all that the installation wrote, by where it stands.
func (in *installation) everything() (logs, shown, rows map[string]string) {
	in.t.Helper()
	logs, shown, rows = map[string]string{}, map[string]string{}, map[string]string{}
	for _, part := range in.parts {
		text, err := os.ReadFile(part.Log())
		if err != nil {
			in.t.Fatal(err)
		}
		logs["log of the "+part.Name] = string(text)
		logs["metrics of the "+part.Name] = in.fetch(part.Probes + "/metrics")
	}
	text, err := os.ReadFile(in.postgres.Log())
	if err != nil {
		in.t.Fatal(err)
	}
	logs["log of Postgres"] = string(text)

	var endpoints v1alpha1.WebhookEndpointList
	var events eventsv1.EventList
	if err := in.client.List(in.t.Context(), &endpoints); err != nil {
		in.t.Fatal(err)
	}
	if err := in.client.List(in.t.Context(), &events); err != nil {
		in.t.Fatal(err)
	}
	for _, e := range endpoints.Items {
		shown["status of "+e.Name] = fmt.Sprintf("%+v", e.Status)
	}
	for _, e := range events.Items {
		shown["Event "+e.Name] = e.Reason + " " + e.Note
	}
	in.dump(rows)
	return logs, shown, rows
}

func (in *installation) fetch(url string) string {
	in.t.Helper()
	request, err := http.NewRequestWithContext(in.t.Context(), http.MethodGet, url, nil)
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
	return string(text)
}

// dump reads every row of every table, with bytes as they are and in hex.
func (in *installation) dump(rows map[string]string) {
	in.t.Helper()
	ctx := in.t.Context()
	db, err := pgx.Connect(ctx, in.database)
	if err != nil {
		in.t.Fatal(err)
	}
	defer func() { _ = db.Close(ctx) }()
	names, err := db.Query(ctx, `SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
		WHERE n.nspname = 'postrider' AND c.relkind = 'r'`)
	if err != nil {
		in.t.Fatal(err)
	}
	tables, err := pgx.CollectRows(names, pgx.RowTo[string])
	if err != nil {
		in.t.Fatal(err)
	}
	for _, table := range tables {
		found, err := db.Query(ctx, `SELECT to_jsonb(t)::text FROM `+table+` t`)
		if err != nil {
			in.t.Fatal(err)
		}
		texts, err := pgx.CollectRows(found, pgx.RowTo[string])
		if err != nil {
			in.t.Fatal(err)
		}
		var all bytes.Buffer
		for _, text := range texts {
			all.WriteString(text + "\n")
		}
		rows["table "+table] = all.String()
	}
}

package controllers

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/destination"
	"github.com/postrider/postrider/keyring"
	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

// world is a namespace of a real API server and a real database, of one test alone.
type world struct {
	t         testing.TB
	api       *rest.Config
	client    client.Client
	namespace string
	dsn       string
	store     *store.Store
	keyring   *keyring.Keyring
	policy    *destination.Policy

	mutex   sync.Mutex
	secrets []string // what must be found nowhere
}

func newWorld(t testing.TB) *world {
	t.Helper()
	api := localstack.KubeAPI(t)
	return newWorldOn(t, api, localstack.Namespace(t, api), localstack.Database(t))
}

func newWorldOn(t testing.TB, api *rest.Config, namespace, dsn string) *world {
	t.Helper()
	w := &world{t: t, api: api, namespace: namespace, dsn: dsn, store: openStore(t, dsn), keyring: testKeyring(t, "first")}
	var err error
	if w.client, err = client.New(api, client.Options{Scheme: newScheme()}); err != nil {
		t.Fatal(err)
	}
	if w.policy, err = destination.New(destination.Config{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.searchForSecrets)
	return w
}

func openStore(t testing.TB, dsn string) *store.Store {
	t.Helper()
	s, err := store.Open(context.Background(), store.Options{DSN: dsn, MaxConns: 6})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// keyringLines makes each named key once, so that two keyrings of one process share it.
var keyringLines sync.Map

func testKeyring(t testing.TB, names ...string) *keyring.Keyring {
	t.Helper()
	var file strings.Builder
	for _, name := range names {
		line, err := keyring.Generate(name)
		if err != nil {
			t.Fatal(err)
		}
		kept, _ := keyringLines.LoadOrStore(name, line)
		fmt.Fprintln(&file, kept)
	}
	ring, err := keyring.Parse([]byte(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	return ring
}

// searchForSecrets looks for every secret of the test in all that was logged, in the objects and Events of its
// namespace, and in every table of its database.
func (w *world) searchForSecrets() {
	t, ctx := w.t, patience(w.t)
	places := map[string]string{}
	var endpoints v1alpha1.WebhookEndpointList
	var events eventsv1.EventList
	if err := errors.Join(w.client.List(ctx, &endpoints, client.InNamespace(w.namespace)), w.client.List(ctx, &events, client.InNamespace(w.namespace))); err == nil {
		for name, list := range map[string]any{"endpoints": endpoints, "Events": events} {
			text, err := json.Marshal(list)
			if err != nil {
				t.Fatal(err)
			}
			places[name] = string(text)
		}
	}
	places["database"] = w.dump(ctx)
	for _, secret := range w.secrets {
		if logs.holds(secret) {
			t.Errorf("%q is in the logs", secret)
		}
		for place, text := range places {
			if textHolds(text, secret) {
				t.Errorf("%q is in the %s", secret, place)
			}
		}
	}
}

// dump is the text of all rows of all tables.
func (w *world) dump(ctx context.Context) string {
	conn, err := pgx.Connect(ctx, w.dsn)
	if err != nil {
		return "" // the test took its database away
	}
	defer func() { _ = conn.Close(ctx) }()
	tables := w.column(ctx, conn, `SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'postrider'::regnamespace AND relkind = 'r'`)
	var text strings.Builder
	for _, table := range tables {
		for _, row := range w.column(ctx, conn, `SELECT t::text FROM `+table+` t`) {
			text.WriteString(row + "\n")
		}
	}
	return text.String()
}

func (w *world) column(ctx context.Context, conn *pgx.Conn, query string) []string {
	w.t.Helper()
	rows, err := conn.Query(ctx, query)
	w.must(err)
	values, err := pgx.CollectRows(rows, pgx.RowTo[string])
	w.must(err)
	return values
}

// secretValue makes a signing key that is not found anywhere by chance.
func (w *world) secretValue() string {
	raw := make([]byte, 32)
	_, _ = rand.Read(raw)
	value := "whsec_" + base64.StdEncoding.EncodeToString(raw)
	w.keepSecret(value)
	w.keepSecret(string(raw))
	return value
}

func (w *world) keepSecret(value string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.secrets = append(w.secrets, value)
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// putSecret makes or changes a Secret. It also carries the value as kubectl apply leaves it: in an annotation.
func (w *world) putSecret(name, entry, value string) {
	w.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace}}
	existing := secret.DeepCopy()
	secret.Annotations = map[string]string{corev1.LastAppliedConfigAnnotation: `{"stringData":{"` + entry + `":"` + value + `"}}`}
	secret.Data = map[string][]byte{entry: []byte(value)}
	if err := w.client.Get(patience(w.t), client.ObjectKeyFromObject(existing), existing); err == nil {
		secret.ResourceVersion = existing.ResourceVersion
		w.must(w.client.Update(patience(w.t), secret))
		return
	}
	w.must(w.client.Create(patience(w.t), secret))
}

func (w *world) deleteSecret(name string) {
	w.t.Helper()
	w.must(w.client.Delete(patience(w.t), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace}}))
}

// signedBy makes a Secret "name" with a fresh key and returns the key's value.
func (w *world) signedBy(name string) string {
	w.t.Helper()
	value := w.secretValue()
	w.putSecret(name, v1alpha1.DefaultSigningSecretKey, value)
	return value
}

// create makes an endpoint that is signed by Secret "signing".
func (w *world) create(name string, alter ...func(*v1alpha1.WebhookEndpointSpec)) *v1alpha1.WebhookEndpoint {
	w.t.Helper()
	e := &v1alpha1.WebhookEndpoint{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace}, Spec: plainSpec()}
	for _, a := range alter {
		a(&e.Spec)
	}
	w.must(w.client.Create(patience(w.t), e))
	return e
}

func (w *world) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: w.namespace, Name: name}
}

func (w *world) get(name string) *v1alpha1.WebhookEndpoint {
	w.t.Helper()
	e := &v1alpha1.WebhookEndpoint{}
	w.must(w.client.Get(patience(w.t), w.key(name), e))
	return e
}

// change updates the spec, whatever else happens to the object meanwhile.
func (w *world) change(name string, alter func(*v1alpha1.WebhookEndpointSpec)) *v1alpha1.WebhookEndpoint {
	w.t.Helper()
	e := w.get(name)
	base := e.DeepCopy()
	alter(&e.Spec)
	w.must(w.client.Patch(patience(w.t), e, client.MergeFrom(base)))
	return e
}

func (w *world) delete(name string) {
	w.t.Helper()
	w.must(w.client.Delete(patience(w.t), &v1alpha1.WebhookEndpoint{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace}}))
}

// row is the live row of a name, nil if there is none.
func (w *world) row(name string) *store.Endpoint {
	w.t.Helper()
	e, err := w.store.Endpoint(patience(w.t), w.namespace, name)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	w.must(err)
	return &e
}

// mustRow is the live row of a name that must be there.
func (w *world) mustRow(name string) store.Endpoint {
	w.t.Helper()
	row := w.row(name)
	if row == nil {
		w.t.Fatalf("endpoint %s has no live row", name)
	}
	return *row
}

// rowKeys opens the keys of a row, as the dispatcher does.
func (w *world) rowKeys(name string) []signature.Key {
	w.t.Helper()
	row := w.mustRow(name)
	held, corrupt, err := sealerOf(w.keyring, row.PublicID).openKeys(row.Keys)
	if err != nil || corrupt > 0 {
		w.t.Fatalf("keys of %s: %d corrupt, %v", name, corrupt, err)
	}
	var keys []signature.Key
	for _, k := range held {
		keys = append(keys, k.key)
	}
	return keys
}

func parseKey(t testing.TB, value string) signature.Key {
	t.Helper()
	key, err := signature.ParseKey([]byte(value))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// awaitConditions waits until the conditions of the object's present generation read so: "Ready=True/Synced …". Those
// that are not mentioned do not matter, but Stalled and Reconciling must be mentioned where they are.
func (w *world) awaitConditions(name, want string) *v1alpha1.WebhookEndpoint {
	w.t.Helper()
	var e *v1alpha1.WebhookEndpoint
	eventually(w.t, 30*time.Second, func() error {
		e = w.get(name)
		return conditionsAre(e, want)
	})
	return e
}

func conditionsAre(e *v1alpha1.WebhookEndpoint, want string) error {
	if e.Status.ObservedGeneration != e.Generation {
		return fmt.Errorf("status is of generation %d, the object of %d", e.Status.ObservedGeneration, e.Generation)
	}
	got := " " + conditionsText(e.Status) + " "
	for word := range strings.FieldsSeq(want) {
		if !strings.Contains(got, " "+word+" ") {
			return fmt.Errorf("conditions of %s: got%swant %s", e.Name, got, want)
		}
	}
	for _, c := range e.Status.Conditions {
		if c.ObservedGeneration != e.Generation && !strings.Contains(want, v1alpha1.ConditionReconciling) {
			return fmt.Errorf("condition %s is of generation %d, the object of %d", c.Type, c.ObservedGeneration, e.Generation)
		}
		if (c.Type == v1alpha1.ConditionStalled || c.Type == v1alpha1.ConditionReconciling) && !strings.Contains(want, c.Type) {
			return fmt.Errorf("conditions of %s: got%swant %s and no %s", e.Name, got, want, c.Type)
		}
	}
	return nil
}

const ready = "Ready=True/Synced"

// config is one that serves the world's namespace alone.
func (w *world) config() Config {
	return Config{
		Namespace:       w.namespace,
		WatchNamespaces: []string{w.namespace},
		Defaults:        StandardDefaults(),
		Logger:          testLogger(w.t),
		registerer:      prometheus.NewRegistry(),
		budgets:         budgets{tick: 200 * time.Millisecond},
	}
}

// running is a controller that was started by a test.
type running struct {
	t      testing.TB
	part   *part
	mgr    ctrl.Manager
	cancel context.CancelFunc
	ended  chan struct{}
	err    error
}

// start runs the controllers until the test ends, or stop. It waits for nothing.
func (w *world) start(alter ...func(*Config)) *running {
	w.t.Helper()
	return w.startWith(w.store, alter...)
}

func (w *world) startWith(s Store, alter ...func(*Config)) *running {
	w.t.Helper()
	c := w.config()
	for _, a := range alter {
		a(&c)
	}
	w.must(c.Validate())
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{t: w.t, part: newPart(s, w.keyring, w.policy, c), cancel: cancel, ended: make(chan struct{})}
	var err error
	r.mgr, err = r.part.manager(ctx, w.api)
	w.must(err)
	go func() {
		defer close(r.ended)
		r.err = r.mgr.Start(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-r.ended
	})
	return r
}

// stop ends the controllers and fails the test if they did not end well.
func (r *running) stop() {
	r.t.Helper()
	r.cancel()
	select {
	case <-r.ended:
	case <-time.After(30 * time.Second):
		r.t.Fatal("the controllers do not stop")
	}
	if r.err != nil {
		r.t.Fatalf("the controllers stopped with: %v", r.err)
	}
}

// count sums up a counter or gauge over those of its labels that are given.
func (r *running) count(name string, labels ...string) float64 {
	r.t.Helper()
	families, err := r.part.config.registerer.(prometheus.Gatherer).Gather() //nolint:errcheck,forcetypeassert // a registry of the test
	if err != nil {
		r.t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
		for _, metric := range family.GetMetric() {
			matches := len(labels) == 0
			for _, label := range metric.GetLabel() {
				for _, l := range labels {
					matches = matches || label.GetValue() == l
				}
			}
			if matches {
				sum += metric.GetCounter().GetValue() + metric.GetGauge().GetValue()
			}
		}
	}
	return sum
}

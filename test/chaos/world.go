package chaos

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/signature"
	"github.com/postrider/postrider/test/check"
	"github.com/postrider/postrider/test/localstack"
)

const (
	namespace  = "chaos"
	secretName = "signing"
	producer   = "producer"
	clock      = "15:04:05.000"

	// A killed dispatcher costs its deliveries the lease; a silence of the wire is longer than one.
	timeoutLimit = 2 * time.Second
	recordTime   = 2 * time.Second
	lease        = 5 * time.Second
)

// world is an installation, its producers and receivers, and what is between them.
type world struct {
	scenario Scenario
	out      io.Writer
	folder   string // of the journals

	postgres  *localstack.Postgres
	kube      *localstack.KubeAPIServer
	postrider *localstack.Postrider
	client    client.Client
	replicas  []*replica
	service   *wire // from the producers to ingest
	receiver  *check.Receiver
	server    *http.Server
	url       string // of the receiver
	token     string // file

	disruptions, arrivals, posts *check.Journal

	mutex     sync.Mutex
	endpoints map[string]*state
	logs      map[string][]string
	problems  []string
	exits     int
	keepers   sync.WaitGroup
	stop      context.CancelFunc
}

// newWorld starts everything and returns when events can be posted.
func newWorld(ctx context.Context, s Scenario, folder string, out io.Writer) (w *world, err error) {
	w = &world{scenario: s, out: out, folder: folder, endpoints: map[string]*state{}, logs: map[string][]string{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	if err := w.openJournals(); err != nil {
		return w, err
	}
	if w.postgres, err = localstack.NewPostgres(ctx, localstack.PostgresOptions{Durable: s.Durable, Progress: out}); err != nil {
		return w, err
	}
	if _, err = w.postgres.CreateDatabase(ctx, "postrider"); err != nil {
		return w, err
	}
	if w.kube, err = localstack.NewKubeAPI(ctx, localstack.KubeAPIOptions{Progress: out}); err != nil {
		return w, err
	}
	w.postrider, err = localstack.NewPostrider(ctx, localstack.PostriderOptions{
		KubeAPI: w.kube, DatabaseURL: w.postgres.DSN("postrider"), Progress: out, Environment: environment(),
	})
	if err != nil {
		return w, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return w, err
	}
	if w.client, err = client.New(w.kube.Config(), client.Options{Scheme: scheme}); err != nil {
		return w, err
	}
	if err := w.tenant(ctx); err != nil {
		return w, err
	}
	if err := w.startParts(ctx); err != nil {
		return w, err
	}
	for _, e := range s.Endpoints {
		if err := w.declare(ctx, e); err != nil {
			return w, err
		}
	}
	return w, nil
}

func environment() []string {
	return []string{
		// The receivers are on loopback.
		"POSTRIDER_DESTINATION_ALLOWED_CIDRS=127.0.0.0/8",
		"POSTRIDER_DESTINATION_ALLOW_HTTP=true",
		"POSTRIDER_LIMIT_TIMEOUT=" + timeoutLimit.String(),
		"POSTRIDER_DEFAULT_TIMEOUT=" + timeoutLimit.String(),
		"POSTRIDER_RECORD_TIME=" + recordTime.String(),
		"POSTRIDER_LEASE=" + lease.String(),
		"POSTRIDER_GRACE=4s",
		"POSTRIDER_DRAIN_DELAY=200ms",
		"POSTRIDER_STATUS_INTERVAL=2s",
		"POSTRIDER_LOG_LEVEL=info",
	}
}

func (w *world) openJournals() error {
	if err := errors.Join(os.RemoveAll(w.folder), os.MkdirAll(w.folder, 0o755)); err != nil {
		return fmt.Errorf("make the folder of the journals: %w", err)
	}
	for name, journal := range map[string]**check.Journal{"disruptions": &w.disruptions, "arrivals": &w.arrivals, "posts": &w.posts} {
		var err error
		if *journal, err = check.OpenJournal(w.journal(name)); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) journal(name string) string { return filepath.Join(w.folder, name+".jsonl") }

// databaseURL leads through a wire.
func (w *world) databaseURL(address string) string {
	u, err := url.Parse(w.postgres.DSN("postrider"))
	if err != nil {
		panic(err) // it is localstack's own
	}
	u.Host = address
	return u.String()
}

func (w *world) databaseAddress() string {
	u, err := url.Parse(w.postgres.DSN("postrider"))
	if err != nil {
		panic(err)
	}
	return u.Host
}

// tenant makes the namespace, what the endpoints sign with, who posts, and who receives.
func (w *world) tenant(ctx context.Context) error {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails
	secret := "whsec_" + base64.StdEncoding.EncodeToString(random)
	key, err := signature.ParseKey([]byte(secret))
	if err != nil {
		return err
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: secretName}, StringData: map[string]string{v1alpha1.DefaultSigningSecretKey: secret}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: producer}},
		&rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: producer},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "postrider-producer"},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: producer}},
		},
	} {
		if err := w.client.Create(ctx, o); err != nil {
			return fmt.Errorf("make %s %s: %w", o.GetObjectKind().GroupVersionKind().Kind, o.GetName(), err)
		}
	}
	token, err := localstack.Token(ctx, w.kube.Config(), namespace, producer, "postrider")
	if err != nil {
		return err
	}
	w.token = filepath.Join(w.folder, "token")
	if err := os.WriteFile(w.token, []byte(token), 0o600); err != nil {
		return fmt.Errorf("keep the producer's token: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for webhooks: %w", err)
	}
	w.url = "http://" + listener.Addr().String()
	w.receiver = check.NewReceiver(check.ReceiverOptions{Journal: w.arrivals, Keys: map[string][]signature.Key{"": {key}}})
	w.server = &http.Server{Handler: w.receiver, ReadHeaderTimeout: 10 * time.Second}
	w.keepers.Go(func() { _ = w.server.Serve(listener) })
	return nil
}

// startParts starts all processes, each behind a wire of its own, and waits until they are ready.
func (w *world) startParts(ctx context.Context) error {
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	w.stop = stop
	shifted := ""
	if w.scenario.Shifted != 0 {
		var err error
		if shifted, err = shiftedProgram(ctx, w.out); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		name string
		n    int
	}{{"controller", 1}, {"dispatcher", w.scenario.Dispatchers}, {"ingest", w.scenario.Ingests}} {
		for i := range part.n {
			wire, err := newWire(ctx, func() []string { return []string{w.databaseAddress()} })
			if err != nil {
				return err
			}
			r := &replica{name: fmt.Sprintf("%s-%d", part.name, i), part: part.name, world: w, wire: wire}
			if part.name == "dispatcher" && i == part.n-1 && shifted != "" {
				r.options = localstack.PartOptions{Program: shifted, Environment: []string{shiftVariable + "=" + w.scenario.Shifted.String()}}
			}
			w.replicas = append(w.replicas, r)
			w.keepers.Go(func() {
				if err := r.keep(keeping); err != nil {
					w.wrong("%v", err)
				}
			})
		}
	}
	for _, r := range w.replicas {
		if err := r.ready(ctx); err != nil {
			return err
		}
	}
	var err error
	w.service, err = newWire(ctx, w.ingests)
	return err
}

// ingests are the addresses at which events are accepted now.
func (w *world) ingests() []string {
	var addresses []string
	for _, r := range w.replicas {
		if part := r.running(); r.part == "ingest" && part != nil {
			addresses = append(addresses, strings.TrimPrefix(part.URL, "http://"))
		}
	}
	return addresses
}

func (w *world) replica(name string) *replica {
	for _, r := range w.replicas {
		if r.name == name {
			return r
		}
	}
	return nil
}

// happened notes a disruption.
func (w *world) happened(f check.Fact) error {
	f.Kind = check.Disrupted
	if f.Until.IsZero() {
		f.Until = f.At
	}
	return w.disruptions.Write(f)
}

// wrong notes something that must not be.
func (w *world) wrong(format string, args ...any) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.problems = append(w.problems, fmt.Sprintf(format, args...))
}

// exited notes that a process ended by itself. Only a controller may: it gives up when it has lost its Lease.
func (w *world) exited(r *replica, part *localstack.Part) {
	w.mutex.Lock()
	w.exits++
	w.mutex.Unlock()
	if r.part != "controller" {
		w.wrong("%s ended by itself at %s: %v; see %s", r.name, time.Now().Format(clock), part.Err(), filepath.Base(part.Log()))
	}
}

func (w *world) addLog(name, path string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.logs[name] = append(w.logs[name], path)
}

// keepLogs copies the logs of all processes to the folder of the journals.
func (w *world) keepLogs() error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	var errs []error
	for name, paths := range w.logs {
		var all []byte
		for _, path := range paths {
			text, err := os.ReadFile(path)
			errs = append(errs, err)
			all = append(all, text...)
		}
		errs = append(errs, os.WriteFile(filepath.Join(w.folder, name+".log"), all, 0o644))
	}
	if w.postgres != nil {
		text, err := os.ReadFile(w.postgres.Log())
		errs = append(errs, err, os.WriteFile(filepath.Join(w.folder, "postgres.log"), text, 0o644))
	}
	return errors.Join(errs...)
}

// close ends everything.
func (w *world) close() error {
	if w.stop != nil {
		w.stop()
	}
	if w.server != nil {
		_ = w.server.Close()
	}
	w.keepers.Wait()
	var errs []error
	if w.postrider != nil {
		for _, r := range w.replicas {
			if part := r.running(); part != nil {
				part.Kill() // what it would finish is of no interest any more
			}
		}
		errs = append(errs, w.postrider.Close())
	}
	for _, r := range w.replicas {
		r.wire.close()
	}
	if w.service != nil {
		w.service.close()
	}
	if w.kube != nil {
		errs = append(errs, w.kube.Close())
	}
	if w.postgres != nil {
		errs = append(errs, w.postgres.Close())
	}
	for _, journal := range []*check.Journal{w.disruptions, w.arrivals, w.posts} {
		if journal != nil {
			errs = append(errs, journal.Close())
		}
	}
	http.DefaultClient.CloseIdleConnections() // of the questions whether the parts are ready
	return errors.Join(errs...)
}

func (w *world) say(format string, args ...any) {
	_, _ = fmt.Fprintf(w.out, "chaos: "+format+"\n", args...)
}

// sleep reports false if the context ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// until polls a condition: nil ends the wait, any other error is the reason it goes on.
func until(ctx context.Context, patience time.Duration, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: not within %s: %w", what, patience, err)
		case <-tick.C:
		}
	}
}

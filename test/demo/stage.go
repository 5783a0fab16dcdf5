package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/localstack"
)

const (
	samples = "postrider-samples" // the namespace of config/samples

	// receiverHost is where the samples send to; here it is replaced by the receiver's address on loopback.
	receiverHost = "http://receiver.postrider-samples.svc:8080"

	// Shorter than what an installation uses, so that a killed dispatcher's work is taken over while one watches.
	lease        = "8s"
	timeoutLimit = "3s"
)

// stage is the stack with everybody on it.
type stage struct {
	postgres  *localstack.Postgres
	kube      *localstack.KubeAPIServer
	postrider *localstack.Postrider
	database  string

	client     client.Client
	ingest     *localstack.Part
	dispatcher *localstack.Part
	parts      []*localstack.Part
	receiver   *receiver
	token      string

	mu     sync.Mutex
	passed int
}

// newStage starts the servers and the parts. What it builds is cached.
func newStage(ctx context.Context) (s *stage, err error) {
	s = &stage{}
	defer func() {
		if err != nil {
			s.showLogs()
			err = errors.Join(err, s.close())
		}
	}()
	fmt.Println("Starting Postgres, etcd and kube-apiserver (seconds when cached; about ten minutes the first time)")
	if err := localstack.BuildKubeAPI(ctx, os.Stdout); err != nil {
		return s, err
	}
	if s.postgres, err = localstack.NewPostgres(ctx, localstack.PostgresOptions{Durable: true, Progress: os.Stdout}); err != nil {
		return s, err
	}
	if s.database, err = s.postgres.CreateDatabase(ctx, "postrider"); err != nil {
		return s, err
	}
	if s.kube, err = localstack.NewKubeAPI(ctx, localstack.KubeAPIOptions{Progress: os.Stdout}); err != nil {
		return s, err
	}
	s.postrider, err = localstack.NewPostrider(ctx, localstack.PostriderOptions{
		KubeAPI: s.kube, DatabaseURL: s.database, Progress: os.Stdout,
		Environment: []string{
			// Only here, where the receivers are on loopback, may webhooks be sent there.
			"POSTRIDER_DESTINATION_ALLOWED_CIDRS=127.0.0.0/8",
			"POSTRIDER_DESTINATION_ALLOW_HTTP=true",
			"POSTRIDER_DEFAULT_TIMEOUT=" + timeoutLimit,
			"POSTRIDER_LIMIT_TIMEOUT=" + timeoutLimit,
			"POSTRIDER_LEASE=" + lease,
			"POSTRIDER_STATUS_INTERVAL=2s", // so that the table at the end shows the end
		},
	})
	if err != nil {
		return s, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return s, err
	}
	if s.client, err = client.New(s.kube.Config(), client.Options{Scheme: scheme}); err != nil {
		return s, err
	}
	if s.receiver, err = newReceiver(ctx); err != nil {
		return s, err
	}
	for _, part := range []struct {
		name string
		kept **localstack.Part
	}{{"controller", nil}, {"ingest", &s.ingest}, {"dispatcher", &s.dispatcher}} {
		started, err := s.start(ctx, part.name)
		if err != nil {
			return s, err
		}
		if part.kept != nil {
			*part.kept = started
		}
	}
	return s, nil
}

func (s *stage) start(ctx context.Context, name string) (*localstack.Part, error) {
	part, err := s.postrider.Start(ctx, name)
	if part != nil {
		s.parts = append(s.parts, part)
	}
	return part, err
}

// applySamples applies config/samples, with the receiver's address put in, and returns what came of each object.
func (s *stage) applySamples(ctx context.Context, receiverURL string) ([]*unstructured.Unstructured, error) {
	folder, err := sampleFolder()
	if err != nil {
		return nil, err
	}
	objects, err := localstack.ReadManifests(func(text []byte) []byte {
		return bytes.ReplaceAll(text, []byte(receiverHost), []byte(receiverURL))
	}, folder)
	if err != nil {
		return nil, err
	}
	return localstack.Apply(ctx, s.kube.Config(), "demo", objects...)
}

func sampleFolder() (string, error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output() //nolint:noctx // asks for the checkout's folder
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "config/samples"), nil
}

// check says what was seen and counts it.
func (s *stage) check(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.passed++
	fmt.Printf("  ok  "+format+"\n", args...)
}

// until polls a condition: nil ends the wait, any other error is the reason it goes on.
func until(ctx context.Context, patience time.Duration, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
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

// showLogs prints the last lines of each part, for whoever has to find out what went wrong.
func (s *stage) showLogs() {
	for _, part := range s.parts {
		text, err := os.ReadFile(part.Log())
		if err != nil {
			continue
		}
		lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		fmt.Fprintf(os.Stderr, "--- last lines of the %s\n%s\n", part.Name, strings.Join(lines[max(0, len(lines)-25):], "\n"))
	}
}

func (s *stage) close() error {
	var errs []error
	if s.postrider != nil {
		errs = append(errs, s.postrider.Close())
	}
	if s.receiver != nil {
		s.receiver.close()
	}
	if s.kube != nil {
		errs = append(errs, s.kube.Close())
	}
	if s.postgres != nil {
		errs = append(errs, s.postgres.Close())
	}
	return errors.Join(errs...)
}

package installer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/postrider/postrider/signature"
)

// SelfTest posts an event to ingest and is its receiver too: it ends without error once a request for this very event
// has come, signed with the endpoint's key, and ingest says that the delivery is done.
//
// An endpoint for EventType must exist whose URL leads here; that it may not be ready yet is part of what is waited for.
type SelfTest struct {
	// IngestURL is where events are posted, without a path.
	IngestURL string
	// TokenFile holds a credential of a producer, for the namespace that it belongs to.
	TokenFile string
	// KeyFile holds the endpoint's signing key, as its Secret does.
	KeyFile string
	// Address to receive on, host:port.
	Address string
	// EventType of the event that is posted.
	EventType string
	// Timeout of it all.
	Timeout time.Duration
	// Client posts; nil: http.DefaultClient.
	Client *http.Client
	// Logger receives one line a fact.
	Logger *slog.Logger
}

const (
	selfTestPause     = 500 * time.Millisecond
	selfTestPatience  = 10 * time.Second
	selfTestBodyLimit = 1 << 20
)

var errNobody = errors.New("no endpoint matches the event yet")

// Run runs the test. Its error says how far the event came.
func (s SelfTest) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	text, err := os.ReadFile(s.KeyFile)
	if err != nil {
		return fmt.Errorf("the signing key: %w", err)
	}
	key, err := signature.ParseKey(text)
	if err != nil {
		return fmt.Errorf("the signing key: %w", err)
	}
	received := make(chan string, 16)
	stop, err := s.receive(ctx, &signature.Verifier{Keys: []signature.Key{key}}, received)
	if err != nil {
		return err
	}
	defer stop()

	var id string
	err = repeat(ctx, "post an event", func(ctx context.Context) error {
		id, err = s.post(ctx)
		return err
	})
	if err != nil {
		return err
	}
	s.Logger.Info("the event is accepted", "event", id)
	for got := ""; got != id; {
		select {
		case got = <-received:
		case <-ctx.Done():
			return fmt.Errorf("event %s was accepted and did not arrive within %s; see the status of the endpoint, and whether destination.allowedCIDRs has this pod's address", id, s.Timeout)
		}
	}
	s.Logger.Info("the event arrived, and its signature is right", "event", id)
	err = repeat(ctx, "read what became of the event", func(ctx context.Context) error { return s.delivered(ctx, id) })
	if err != nil {
		return err
	}
	s.Logger.Info("the delivery is recorded", "event", id)
	return nil
}

// receive answers webhooks until stop is called, and passes on the ids of those that verify.
func (s SelfTest) receive(ctx context.Context, verifier *signature.Verifier, received chan<- string) (stop func(), err error) {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", s.Address)
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	server := &http.Server{ReadTimeout: selfTestPatience, ReadHeaderTimeout: selfTestPatience, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, selfTestBodyLimit))
		if err != nil {
			http.Error(w, "cannot read the body", http.StatusBadRequest)
			return
		}
		if err := verifier.Verify(r.Header, body); err != nil {
			s.Logger.Warn("a request came that does not verify", "reason", err.Error())
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		select {
		case received <- r.Header.Get(signature.HeaderID):
		default: // many tries were posted; the one that is waited for comes again until it is answered
			http.Error(w, "too many at once", http.StatusTooManyRequests)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = server.Serve(listener)
	}()
	return func() {
		_ = server.Close()
		<-ended
	}, nil
}

func (s SelfTest) post(ctx context.Context) (id string, err error) {
	body, err := json.Marshal(map[string]any{"type": s.EventType, "payload": map[string]any{"posted": time.Now().UTC()}})
	if err != nil {
		return "", err
	}
	var answer struct {
		ID      string `json:"id"`
		Matched int    `json:"matched"`
	}
	if err := s.call(ctx, http.MethodPost, "/api/v1/events", body, http.StatusAccepted, &answer); err != nil {
		return "", err
	}
	if answer.Matched == 0 {
		return "", errNobody
	}
	return answer.ID, nil
}

func (s SelfTest) delivered(ctx context.Context, id string) error {
	var answer struct {
		Deliveries []struct {
			State string `json:"state"`
		} `json:"deliveries"`
	}
	if err := s.call(ctx, http.MethodGet, "/api/v1/events/"+id, nil, http.StatusOK, &answer); err != nil {
		return err
	}
	for _, d := range answer.Deliveries {
		if d.State == "delivered" {
			return nil
		}
	}
	return fmt.Errorf("event %s is not recorded as delivered yet", id)
}

func (s SelfTest) call(ctx context.Context, method, path string, body []byte, want int, into any) error {
	ctx, cancel := context.WithTimeout(ctx, selfTestPatience)
	defer cancel()
	token, err := os.ReadFile(s.TokenFile)
	if err != nil {
		return fmt.Errorf("the producer's token: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, method, strings.TrimSuffix(s.IngestURL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("the address of ingest: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	client := s.Client
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, selfTestBodyLimit))
	if err != nil {
		return fmt.Errorf("read the answer of ingest: %w", err)
	}
	if response.StatusCode != want {
		return fmt.Errorf("ingest answered %s: %.300s", response.Status, text)
	}
	return json.Unmarshal(text, into)
}

// repeat does something until it succeeds or the context ends, and then says why it last failed.
func repeat(ctx context.Context, what string, try func(context.Context) error) error {
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, err)
		case <-time.After(selfTestPause):
		}
	}
}

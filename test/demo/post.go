package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// post is a body of POST /api/v1/events. The payload is sent as it stands: byte for byte is what is promised.
type post struct {
	Type           string
	Payload        string
	OrderingKey    string
	IdempotencyKey string
}

func (p post) body() []byte {
	text := fmt.Sprintf(`{"type": %q, "payload": %s`, p.Type, p.Payload)
	if p.OrderingKey != "" {
		text += fmt.Sprintf(`, "ordering_key": %q`, p.OrderingKey)
	}
	if p.IdempotencyKey != "" {
		text += fmt.Sprintf(`, "idempotency_key": %q`, p.IdempotencyKey)
	}
	return []byte(text + "}")
}

// accepted is its answer.
type accepted struct {
	ID         string `json:"id"`
	Matched    int    `json:"matched"`
	Duplicate  bool   `json:"duplicate"`
	Deliveries []struct {
		Endpoint string `json:"endpoint"`
	} `json:"deliveries"`
}

// eventDetail is the answer of GET /api/v1/events/{id}.
type eventDetail struct {
	Deliveries []struct {
		Endpoint string `json:"endpoint"`
		State    string `json:"state"`
		Reason   string `json:"reason"`
		Attempts []struct {
			Number int    `json:"number"`
			Status int    `json:"status_code"`
			Reason string `json:"reason"`
		} `json:"attempts"`
	} `json:"deliveries"`
}

// post posts an event with the producer's token, as an application would.
func (s *stage) post(ctx context.Context, p post) (accepted, error) {
	var a accepted
	return a, s.call(ctx, http.MethodPost, "/api/v1/events", p.body(), http.StatusAccepted, &a)
}

func (s *stage) event(ctx context.Context, id string) (eventDetail, error) {
	var d eventDetail
	return d, s.call(ctx, http.MethodGet, "/api/v1/events/"+id, nil, http.StatusOK, &d)
}

func (s *stage) call(ctx context.Context, method, path string, body []byte, want int, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, s.ingest.URL+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+s.token)
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	if response.StatusCode != want {
		return fmt.Errorf("%s %s: %s, want %d: %s", method, path, response.Status, want, text)
	}
	return json.Unmarshal(text, into)
}

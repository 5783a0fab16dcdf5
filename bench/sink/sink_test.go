package sink

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// started runs a sink until the test ends.
func started(t *testing.T) (Addresses, *Client) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, write) }()
	line, err := bufio.NewReader(read).ReadBytes('\n')
	if err != nil {
		t.Fatal(err)
	}
	var at Addresses
	if err := json.Unmarshal(line, &at); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		http.DefaultClient.CloseIdleConnections()
	})
	return at, NewClient(at.Control)
}

func post(t *testing.T, at Addresses, path string, event uuid.UUID, attempt string, intended int64) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+at.Webhooks+path, bytes.NewReader(Body(1024, intended)))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("webhook-id", event.String())
	request.Header.Set("postrider-attempt", attempt)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode
}

func TestADeliveryCountsOnceWhateverItsRepeats(t *testing.T) {
	t.Parallel()
	at, client := started(t)
	one, two := uuid.New(), uuid.New()
	for _, request := range []struct {
		path  string
		event uuid.UUID
	}{{"/ok/1", one}, {"/ok/2", one}, {"/ok/1", two}, {"/ok/1", one}} {
		if got := post(t, at, request.path, request.event, "1", 0); got != 200 {
			t.Fatalf("%s: got %d", request.path, got)
		}
	}
	got, err := client.Stats(t.Context(), OK)
	if err != nil {
		t.Fatal(err)
	}
	if got.Requests != 4 || got.Delivered != 3 || got.Duplicates != 1 || got.First == 0 || got.Last < got.First {
		t.Errorf("got %+v, want 4 requests, 3 deliveries, 1 duplicate", got)
	}
	if err := client.Reset(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := client.Stats(t.Context(), OK); err != nil || got != (Stats{}) {
		t.Errorf("after a reset: got %+v, %v", got, err)
	}
}

func TestLatencyCountsFromTheIntendedTime(t *testing.T) {
	t.Parallel()
	at, client := started(t)
	post(t, at, "/ok/1", uuid.New(), "1", time.Now().Add(-time.Second).UnixNano())
	post(t, at, "/ok/1", uuid.New(), "1", 0) // carries none
	got, err := client.Latency(t.Context(), OK)
	if err != nil {
		t.Fatal(err)
	}
	if got.Count != 1 || got.P50 < 1 || got.P50 > 20 {
		t.Errorf("got %+v, want one of a second and a little", got)
	}
}

func TestWhatFailsIsNotDelivered(t *testing.T) {
	t.Parallel()
	at, client := started(t)
	if got := post(t, at, "/down/1", uuid.New(), "1", 0); got != 503 {
		t.Errorf("down: got %d, want 503", got)
	}
	failed := 0
	for range 200 {
		if post(t, at, "/flaky/1", uuid.New(), "1", 0) == 503 {
			failed++
		}
	}
	if failed < 30 || failed > 90 {
		t.Errorf("flaky: %d of 200 failed, want about %d", failed, 2*FlakyPercent)
	}
	if got, err := client.Stats(t.Context(), Flaky); err != nil || got.Delivered != int64(200-failed) {
		t.Errorf("flaky: got %+v, %v, want %d deliveries", got, err, 200-failed)
	}
}

func TestHeldRequestsWaitForTheRelease(t *testing.T) {
	t.Parallel()
	at, client := started(t)
	if err := client.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	answered := make(chan int, 1)
	go func() { answered <- post(t, at, "/hold/1", uuid.New(), "1", 0) }()
	deadline := time.Now().Add(10 * time.Second)
	for {
		got, err := client.Stats(t.Context(), Hold)
		if err != nil {
			t.Fatal(err)
		}
		if got.InFlight == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the request never came")
		}
	}
	select {
	case <-answered:
		t.Fatal("it was answered while held")
	default:
	}
	if err := client.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := <-answered; got != 200 {
		t.Errorf("got %d, want 200", got)
	}
}

func TestABodyHasItsSizeAndItsTime(t *testing.T) {
	t.Parallel()
	body := Body(1024, 1764457640123456789)
	if len(body) != 1024 || !json.Valid(body) {
		t.Errorf("got %d bytes, valid: %v", len(body), json.Valid(body))
	}
	if got, err := readBody(bytes.NewReader(body)); err != nil || got != 1764457640123456789 {
		t.Errorf("got %d, %v", got, err)
	}
	if got, err := readBody(bytes.NewReader([]byte(`{}`))); err != nil || got != 0 {
		t.Errorf("somebody else's body: got %d, %v, want 0", got, err)
	}
}

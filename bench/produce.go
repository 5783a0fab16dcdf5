package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/bench/sink"
)

// producer posts events through ingest's HTTP, as applications do.
type producer struct {
	client   *http.Client
	url      string
	typeOf   func(n int64) string
	next     atomic.Int64
	accepted atomic.Int64
}

// producers of the closed loop: each posts its next event when the last one is accepted.
const producers = 32

func newProducer(p *part, typeOf func(int64) string) *producer {
	const most = 256
	return &producer{
		client: &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{MaxIdleConns: most, MaxIdleConnsPerHost: most}},
		url:    "http://" + p.events + "/api/v1/events?namespace=" + namespace, typeOf: typeOf,
	}
}

// eachIn gives the types of the first n endpoints in turn.
func eachIn(n int) func(int64) string {
	types := make([]string, n)
	for i := range types {
		types[i] = typeOf(i)
	}
	return func(i int64) string { return types[i%int64(n)] }
}

func (p *producer) close() { p.client.CloseIdleConnections() }

// post posts one event; anything but 202 is an error.
func (p *producer) post(ctx context.Context, intended time.Time) error {
	body := fmt.Appendf(nil, `{"type":%q,"payload":%s}`, p.typeOf(p.next.Add(1)-1), sink.Body(bodyBytes, intended.UnixNano()))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := p.client.Do(request)
	if err != nil {
		return fmt.Errorf("post an event: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("post an event: read the answer: %w", err)
	}
	if response.StatusCode != http.StatusAccepted {
		return fmt.Errorf("post an event: %s: %.200s", response.Status, text)
	}
	p.accepted.Add(1)
	return nil
}

// closedLoop posts for a while, each producer one event after another.
func (p *producer) closedLoop(ctx context.Context, d time.Duration) error {
	began := time.Now()
	group, ctx := errgroup.WithContext(ctx)
	for range producers {
		group.Go(func() error {
			for now := began; now.Sub(began) < d; now = time.Now() {
				if err := p.post(ctx, now); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// fixedRate posts at the times of a timetable, whatever becomes of the posts before. Latency counts from these times, so
// that a stall is charged for all the posts that it holds up and not for one alone (coordinated omission).
func (p *producer) fixedRate(ctx context.Context, perSecond float64, d time.Duration) error {
	const posters = 128
	n := int64(perSecond * d.Seconds())
	began := time.Now().Add(10 * time.Millisecond)
	var taken atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	for range posters {
		group.Go(func() error {
			for i := taken.Add(1) - 1; i < n; i = taken.Add(1) - 1 {
				at := began.Add(time.Duration(float64(i) / perSecond * float64(time.Second)))
				if err := untilExactly(ctx, at); err != nil {
					return err
				}
				if err := p.post(ctx, at); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

package store

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// D14: the database moves to another address behind the same name, and the old one goes away with all its connections.
// Everything resumes by itself, what listens too.
func TestADatabaseThatMovesBehindItsNameIsFound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a")
	f.post("", 2, e)
	at, err := url.Parse(f.dsn)
	if err != nil {
		t.Fatal(err)
	}
	first := forward(t, "127.0.0.2:0", at.Host)
	_, port, err := net.SplitHostPort(first.address)
	if err != nil {
		t.Fatal(err)
	}
	second := forward(t, net.JoinHostPort("127.0.0.3", port), at.Host)

	var moved atomic.Bool
	named := *at
	named.Host = net.JoinHostPort("db.example", port)
	s, err := Open(t.Context(), Options{DSN: named.String(), MaxConns: 4, lookUp: func(context.Context, string) ([]string, error) {
		if moved.Load() {
			return []string{"127.0.0.3"}, nil
		}
		return []string{"127.0.0.2"}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	woken := make(chan struct{}, 16)
	listen := func(ctx context.Context) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- s.Listen(ctx, func() { woken <- struct{}{} }) }()
		select {
		case <-woken:
		case err := <-ended:
			t.Fatalf("listening did not begin: %v", err)
		}
		return ended
	}
	lost := listen(t.Context())
	if err := s.Touch(t.Context(), []Touched{{LaneID: e.LaneID}}); err != nil {
		t.Fatal(err)
	}
	claims, err := s.Claim(t.Context(), ClaimRequest{Budget: 1, Lanes: 1, PerLane: 1, Lease: time.Minute})
	if err != nil || len(claims.Claims) != 1 {
		t.Fatalf("claimed %d, %v", len(claims.Claims), err)
	}

	moved.Store(true)
	first.close()
	if err := <-lost; err == nil {
		t.Error("listening did not end with its connection")
	}
	again, stop := context.WithCancel(t.Context())
	ended := listen(again)
	f.until("the outcome is recorded where the database is now", func() bool {
		recorded, err := s.Complete(t.Context(), []Result{{Claim: claims.Claims[0], Version: e.Version, Verdict: Delivered, Status: 200}})
		if err != nil && !IsUnavailable(err) {
			t.Fatalf("got %v, want a database that is away for a moment", err)
		}
		return err == nil && !recorded[0].Fenced
	})
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the listening that was stopped ended with %v", err)
	}
	if second.served.Load() == 0 {
		t.Error("the new address served nothing")
	}
}

// forwarder passes connections on to another address, until it is closed with all of them.
type forwarder struct {
	address string
	served  atomic.Int64

	listener net.Listener
	mutex    sync.Mutex
	open     []net.Conn
	group    sync.WaitGroup
}

func forward(t *testing.T, from, to string) *forwarder {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{address: listener.Addr().String(), listener: listener}
	f.group.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to)
			if err != nil {
				_ = in.Close()
				continue
			}
			f.served.Add(1)
			f.mutex.Lock()
			f.open = append(f.open, in, out)
			f.mutex.Unlock()
			f.group.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			f.group.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
		}
	})
	t.Cleanup(f.close)
	return f
}

func (f *forwarder) close() {
	_ = f.listener.Close()
	f.mutex.Lock()
	for _, c := range f.open {
		_ = c.Close()
	}
	f.mutex.Unlock()
	f.group.Wait()
}

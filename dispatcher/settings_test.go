package dispatcher

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/store"
)

// A new destination policy holds from the next claim on: an endpoint that is remembered, and a connection that is open, do
// not get around it; and what it opens is delivered to.
func TestAChangedPolicyHoldsWhileTheDispatcherRuns(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("inside", func(s *store.EndpointSpec) {
		s.BackoffBase, s.BackoffFactor, s.MaxAttempts, s.FailureThreshold = 100*time.Millisecond, 1, 100, 1000
	})
	d := f.dispatch(quickConfig(4))
	f.waitFor(store.StateDelivered, f.post(1, "", e)...)

	if err := d.Change(quickConfig(4), strict(t)); err != nil {
		t.Fatal(err)
	}
	refused := f.post(1, "", e)
	attempts := func() []store.Attempt { return f.delivery(refused[0]).Attempts }
	waitFor(t, "an attempt that is refused", func() bool { return len(attempts()) > 0 })
	for _, a := range attempts() {
		if a.Reason != string(DestinationNotAllowed) {
			t.Errorf("got %s, want %s", a.Reason, DestinationNotAllowed)
		}
	}
	if n := len(f.receiver.of("inside")); n != 1 {
		t.Errorf("requests: got %d, want the one before the change", n)
	}

	if err := d.Change(quickConfig(4), loopback(t)); err != nil {
		t.Fatal(err)
	}
	f.waitFor(store.StateDelivered, refused...)
}

// An idle connection would be used again without being dialled and judged.
func TestConnectionsThatAPolicyForbidsAreClosed(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	address := listen(t, func(conn net.Conn) {
		buffer := make([]byte, 4096)
		if _, err := conn.Read(buffer); err != nil {
			ended <- err
			return
		}
		if _, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"); err != nil {
			ended <- err
			return
		}
		_, err := conn.Read(buffer) // the next request, or the end
		ended <- err
	})
	connections := newNetwork(loopback(t), time.Second, nil)
	t.Cleanup(connections.close)
	client := &http.Client{Transport: newTransport(connections, 1, time.Second, nil, &databaseClock{})}
	post := func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		return response.Body.Close()
	}
	if err := post(); err != nil {
		t.Fatal(err)
	}
	connections.govern(strict(t))
	select {
	case err := <-ended:
		if err == nil {
			t.Error("there was a second request")
		}
	case <-time.After(10 * time.Second):
		t.Error("the idle connection is still open")
	}
	if err := post(); err == nil {
		t.Error("a forbidden address was connected")
	}
}

func TestChangedRetentionCountsFromTheNextTurn(t *testing.T) {
	t.Parallel()
	s := &purges{memory: newMemory()}
	d, err := New(Config{}, testDependencies(t, s))
	if err != nil {
		t.Fatal(err)
	}
	turn := func() {
		for _, c := range d.chores {
			if c.name == "purge_dead_letters" || c.name == "drop_days" || c.name == "purge_endpoints" {
				if _, err := c.turn(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	turn()
	if want := (purged{3 * day, 3 * day, 7 * day, 30 * day}); s.purged != want {
		t.Errorf("got %v, want the defaults %v", s.purged, want)
	}
	if err := d.Change(Config{EventRetention: time.Minute}, loopback(t)); err == nil {
		t.Error("a retention of a minute was taken")
	}
	turn()
	if s.purged.events != 3*day {
		t.Errorf("a refused configuration changed the retention to %v", s.purged.events)
	}
	changed := Config{EventRetention: 5 * day, AttemptRetention: 2 * day, DeadLetterRetention: day, EndpointRetention: 9 * day}
	if err := d.Change(changed, loopback(t)); err != nil {
		t.Fatal(err)
	}
	turn()
	if want := (purged{5 * day, 2 * day, day, 9 * day}); s.purged != want {
		t.Errorf("got %v, want %v", s.purged, want)
	}
}

type purged struct{ events, attempts, deadLetters, endpoints time.Duration }

// purges remembers what the chores were told last.
type purges struct {
	*memory
	purged purged
}

func (p *purges) DropDays(_ context.Context, events, attempts time.Duration) (int, error) {
	p.purged.events, p.purged.attempts = events, attempts
	return 0, nil
}

func (p *purges) PurgeDeadLetters(_ context.Context, older time.Duration, _ int) (int, error) {
	p.purged.deadLetters = older
	return 0, nil
}

func (p *purges) PurgeEndpoints(_ context.Context, older time.Duration, _ int) (int, error) {
	p.purged.endpoints = older
	return 0, nil
}

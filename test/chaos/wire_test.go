package chaos

import (
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"
)

// echo answers each byte with itself, until the test ends.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			}()
		}
	}()
	t.Cleanup(func() { _ = listener.Close(); <-done })
	return listener.Addr().String()
}

func lay(t *testing.T, targets ...string) *wire {
	t.Helper()
	w, err := newWire(t.Context(), func() []string { return targets })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.close)
	return w
}

func dial(t *testing.T, w *wire) net.Conn {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "tcp", w.address())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// say sends a byte; hear returns the one that comes back within a time.
func say(t *testing.T, c net.Conn, b byte) {
	t.Helper()
	if _, err := c.Write([]byte{b}); err != nil {
		t.Fatal(err)
	}
}

func hear(t *testing.T, c net.Conn, within time.Duration) (byte, error) {
	t.Helper()
	if err := c.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	_, err := io.ReadFull(c, one)
	return one[0], err
}

const (
	soon  = 5 * time.Second
	never = 100 * time.Millisecond
)

func TestAWireLeadsToATargetThatIsThere(t *testing.T) {
	t.Parallel()
	w := lay(t, "127.0.0.1:1", echo(t))
	for range 3 {
		c := dial(t, w)
		say(t, c, 'x')
		if got, err := hear(t, c, soon); got != 'x' || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

func TestAWireThatIsCutResetsConnections(t *testing.T) {
	t.Parallel()
	w := lay(t, echo(t))
	c := dial(t, w)
	say(t, c, 'x')
	if _, err := hear(t, c, soon); err != nil {
		t.Fatal(err)
	}
	w.cut()
	if _, err := hear(t, c, soon); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	again := dial(t, w)
	say(t, again, 'y')
	if got, err := hear(t, again, soon); got != 'y' || err != nil {
		t.Errorf("a new connection: got %q, %v", got, err)
	}
}

func TestAWireThatHoldsBackDeliversLate(t *testing.T) {
	t.Parallel()
	w := lay(t, echo(t))
	c := dial(t, w)
	say(t, c, 'x')
	if _, err := hear(t, c, soon); err != nil {
		t.Fatal(err)
	}
	w.hush(false)
	late := dial(t, w)
	for _, c := range []net.Conn{c, late} {
		say(t, c, 'y')
		if got, err := hear(t, c, never); err == nil {
			t.Errorf("heard %q in the silence", got)
		}
	}
	w.speak()
	for _, c := range []net.Conn{c, late} {
		if got, err := hear(t, c, soon); got != 'y' || err != nil {
			t.Errorf("after the silence: got %q, %v", got, err)
		}
	}
}

func TestAWireThatSwallowsResetsAfterwards(t *testing.T) {
	t.Parallel()
	w := lay(t, echo(t))
	c := dial(t, w)
	say(t, c, 'x')
	if _, err := hear(t, c, soon); err != nil {
		t.Fatal(err)
	}
	w.hush(true)
	say(t, c, 'y')
	if got, err := hear(t, c, never); err == nil {
		t.Errorf("heard %q in the silence", got)
	}
	w.speak()
	if _, err := hear(t, c, soon); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("afterwards: got %v, want a reset", err)
	}
}

func TestAWireCanBeClosedInASilence(t *testing.T) {
	t.Parallel()
	w, err := newWire(t.Context(), func() []string { return []string{"127.0.0.1:1"} })
	if err != nil {
		t.Fatal(err)
	}
	w.hush(false)
	_ = dial(t, w)
	w.close() // the test hangs if this waits for the silence to end
}

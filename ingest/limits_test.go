package ingest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// bodyOf makes a valid event of exactly that many bytes.
func bodyOf(size int) string {
	const head, tail = `{"type":"a","payload":"`, `"}`
	return head + strings.Repeat("x", size-len(head)-len(tail)) + tail
}

// Case A5.
func TestBodiesAtTheLimit(t *testing.T) {
	t.Parallel()
	n := newTenant(t, "billing")
	r := startOpen(t, n.store)
	limit := int(DefaultConfig().BodyLimit)
	chunked := func(body string) request {
		return request{path: n.path(), reader: struct{ io.Reader }{strings.NewReader(body)}}
	}
	r.do(t, request{path: n.path(), body: bodyOf(limit)}).accepted(t)
	r.do(t, chunked(bodyOf(limit))).accepted(t)
	r.do(t, request{path: n.path(), body: bodyOf(limit + 1)}).want(t, 413)
	r.do(t, chunked(bodyOf(limit+1))).want(t, 413)
	var bomb bytes.Buffer
	packer := gzip.NewWriter(&bomb)
	if _, err := io.CopyN(packer, zeros{}, 10<<20); err != nil {
		t.Fatal(err)
	}
	if err := packer.Close(); err != nil {
		t.Fatal(err)
	}
	r.do(t, request{path: n.path(), body: bomb.String(), header: map[string]string{"Content-Encoding": "gzip"}}).want(t, 415)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = '0'
	}
	return len(p), nil
}

// counted counts what the server took of an endless body.
type counted struct {
	io.Reader

	taken int
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.taken += n
	return n, err
}

// Acceptance: a 40 MB body → 413, memory does not climb. Not parallel: it looks at the memory of the whole process.
func TestAFortyMegabyteBodyIsRefusedWithoutBeingRead(t *testing.T) { //nolint:paralleltest // measures memory
	r := startOpen(t, &double{})
	const size = 40 << 20
	allocated := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.TotalAlloc
	}
	for name, announced := range map[string]int64{"announced": size, "chunked": -1} {
		before := allocated()
		taken := 0
		for range 5 {
			body := &counted{Reader: io.LimitReader(zeros{}, size)}
			response := r.raw(t, body, announced)
			if !strings.HasPrefix(response, "HTTP/1.1 413 ") {
				t.Fatalf("%s: got %.80q", name, response)
			}
			taken = max(taken, body.taken)
		}
		// All that was ever allocated, by five requests of 40 MB and this client: less than one of them.
		if used := allocated() - before; used > size/2 {
			t.Errorf("%s: %d bytes were allocated", name, used)
		}
		// The rest is what the kernel's buffers hold.
		if taken > size/2 {
			t.Errorf("%s: %d bytes were taken", name, taken)
		}
	}
}

// A client that asks first is told before it sends anything.
func TestAnAnnouncedBodyOverTheLimitIsNotAskedFor(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	for length, want := range map[int]string{40 << 20: "HTTP/1.1 413 ", len(simple): "HTTP/1.1 100 "} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(conn, "POST /api/v1/events?namespace=a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"+
			"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", length); err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		status, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil || !strings.HasPrefix(status, want) {
			t.Errorf("%d bytes: got %q, %v, want %s", length, status, err, want)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}

// raw sends a request by hand, so that the client's own reading does not depend on what it may write, and returns the answer.
func (r *rig) raw(t *testing.T, body io.Reader, length int64) string {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // a second time where it was closed
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	const head = "POST /api/v1/events?namespace=a HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
	var sending sync.WaitGroup
	sending.Go(func() { // ends when the server closes the connection
		if length >= 0 {
			_, _ = fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n", head, length)
			_, _ = io.CopyBuffer(struct{ io.Writer }{conn}, body, make([]byte, 32<<10))
			return
		}
		_, _ = io.WriteString(conn, head+"Transfer-Encoding: chunked\r\n\r\n")
		chunk := make([]byte, 32<<10)
		for {
			n, err := body.Read(chunk)
			if err != nil {
				return
			}
			if _, err := fmt.Fprintf(conn, "%x\r\n%s\r\n", n, chunk[:n]); err != nil {
				return
			}
		}
	})
	status, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		t.Fatalf("read the answer: %v", err)
	}
	_ = conn.Close() // ends the sending
	sending.Wait()
	return status
}

func TestASlowBodyEndsAtItsTimeAndHarmsNobody(t *testing.T) {
	t.Parallel()
	r := start(t, options{store: &double{}, config: func(c *Config) { c.BodyTimeout = time.Second }})
	slow, drip := io.Pipe()
	var dripping sync.WaitGroup
	dripping.Go(func() {
		for {
			if _, err := io.WriteString(drip, " "); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond) // the client's pace, not a wait
		}
	})
	began := time.Now()
	got := make(chan answer, 1)
	dripping.Go(func() {
		a, err := r.try(t.Context(), request{path: "/api/v1/events?namespace=a", reader: slow})
		if err != nil {
			t.Error(err)
		}
		got <- a
	})
	r.do(t, request{path: "/api/v1/events?namespace=a", body: simple}).accepted(t)
	a := <-got
	if a.status != http.StatusRequestTimeout || time.Since(began) > 10*time.Second {
		t.Errorf("status %d after %v, want 408 after a second", a.status, time.Since(began))
	}
	_ = slow.Close()
	dripping.Wait()
}

func TestAHeaderThatNeverEndsIsCutOff(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", r.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // a second time where it was closed
	if _, err := io.WriteString(conn, "POST /api/v1/events HTTP/1.1\r\nHost: x\r\nX-Slow: "); err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(conn); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the connection is open after 20 s")
	}
}

package chaos

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"
)

const dialPatience = 5 * time.Second

// wire is a TCP connection's way to one of some targets, which can be cut, and silenced.
type wire struct {
	listener net.Listener
	targets  func() []string // tried one after the other
	life     context.Context // ends when the wire is closed
	end      context.CancelFunc
	all      sync.WaitGroup

	mutex  sync.Mutex
	pairs  map[*pair]struct{}
	turn   int
	silent *silence // nil: bytes flow
}

// silence holds bytes back until it is over, or swallows them.
type silence struct {
	swallow bool
	over    chan struct{}
}

// pair is a client's connection and the one to the target.
type pair struct{ client, target net.Conn }

func newWire(ctx context.Context, targets func() []string) (*wire, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("lay a wire: %w", err)
	}
	w := &wire{listener: listener, targets: targets, pairs: map[*pair]struct{}{}}
	w.life, w.end = context.WithCancel(context.WithoutCancel(ctx))
	w.all.Go(w.accept)
	return w, nil
}

func (w *wire) address() string { return w.listener.Addr().String() }

func (w *wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) && w.life.Err() == nil {
				continue // too many open files, and the like
			}
			return
		}
		w.all.Go(func() { w.serve(client) })
	}
}

// serve connects a client through. While there is silence it is accepted, and hears nothing.
func (w *wire) serve(client net.Conn) {
	p := &pair{client: client}
	if !w.add(p) {
		reset(client)
		return
	}
	defer w.drop(p)
	for s := w.silence(); s != nil; s = w.silence() {
		select {
		case <-s.over:
		case <-w.life.Done():
			return
		}
	}
	target, err := w.dial()
	if err != nil {
		return
	}
	w.mutex.Lock()
	_, there := w.pairs[p]
	if there {
		p.target = target
	}
	w.mutex.Unlock()
	if !there { // cut meanwhile
		reset(target)
		return
	}
	var back sync.WaitGroup
	back.Go(func() { w.pump(client, target); w.drop(p) })
	w.pump(target, client)
	w.drop(p)
	back.Wait()
}

// dial tries the targets in turn, each time another one first.
func (w *wire) dial() (net.Conn, error) {
	targets := slices.Clone(w.targets())
	w.mutex.Lock()
	w.turn++
	turn := w.turn
	w.mutex.Unlock()
	err := errors.New("there is no target")
	for i := range targets {
		var target net.Conn
		dialer := net.Dialer{Timeout: dialPatience}
		if target, err = dialer.DialContext(w.life, "tcp", targets[(turn+i)%len(targets)]); err == nil {
			return target, nil
		}
	}
	return nil, err
}

// pump moves bytes one way until either side ends.
func (w *wire) pump(to, from net.Conn) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 && w.flows() {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// flows waits for the end of a silence, and tells whether what was read is to be passed on.
func (w *wire) flows() bool {
	s := w.silence()
	if s == nil {
		return true
	}
	if s.swallow {
		return false
	}
	select {
	case <-s.over:
		return true
	case <-w.life.Done():
		return false
	}
}

func (w *wire) silence() *silence {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.silent
}

// hush begins a silence. Connections stay, and new ones are accepted. It may be called again to make it longer.
func (w *wire) hush(swallow bool) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.silent == nil {
		w.silent = &silence{swallow: swallow, over: make(chan struct{})}
	}
}

// speak ends the silence: what was held back arrives late; where bytes are missing, connections are reset.
func (w *wire) speak() {
	w.mutex.Lock()
	s := w.silent
	w.silent = nil
	w.mutex.Unlock()
	if s == nil {
		return
	}
	if s.swallow {
		w.cut()
	}
	close(s.over)
}

// cut resets all connections.
func (w *wire) cut() {
	w.mutex.Lock()
	pairs := w.pairs
	w.pairs = map[*pair]struct{}{}
	w.mutex.Unlock()
	for p := range pairs {
		p.reset()
	}
}

func (w *wire) add(p *pair) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.life.Err() != nil {
		return false
	}
	w.pairs[p] = struct{}{}
	return true
}

// drop ends a pair as its ends do.
func (w *wire) drop(p *pair) {
	w.mutex.Lock()
	_, there := w.pairs[p]
	delete(w.pairs, p)
	target := p.target
	w.mutex.Unlock()
	if there {
		_ = p.client.Close()
		if target != nil {
			_ = target.Close()
		}
	}
}

func (p *pair) reset() {
	reset(p.client)
	if p.target != nil {
		reset(p.target)
	}
}

// reset closes a connection so that its peer gets an error and not an end.
func reset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// close ends the wire and waits for all that it does.
func (w *wire) close() {
	w.mutex.Lock()
	w.end()
	w.mutex.Unlock()
	_ = w.listener.Close()
	w.cut()
	w.all.Wait()
}

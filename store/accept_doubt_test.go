package store

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// loss is what happens to a marked statement on its way through a lossy connection.
type loss int

const (
	answerDropped loss = iota // it is committed, and the connection breaks before the answer comes through
	sentAndCut                // the connection breaks while the statement runs
	sentLate                  // the connection breaks, and what was sent arrives after that
	silence                   // nothing is heard of it again
)

// marked is in the body of the statement that a lossy connection is to lose.
const marked = "lose what comes of this"

// lossy passes connections on to a database, but for the first marked statement.
type lossy struct {
	dsn     string
	kind    loss
	release chan struct{} // lets a late statement arrive
	arrived chan struct{} // it has been answered

	listener net.Listener
	once     sync.Once
	group    sync.WaitGroup
	mutex    sync.Mutex
	open     []net.Conn
}

func newLossy(t *testing.T, dsn string, kind loss) *lossy {
	t.Helper()
	at, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &lossy{kind: kind, release: make(chan struct{}), arrived: make(chan struct{}), listener: listener}
	to := at.Host
	at.Host = listener.Addr().String()
	l.dsn = at.String()
	l.group.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to)
			if err != nil {
				_ = client.Close()
				continue
			}
			l.mutex.Lock()
			l.open = append(l.open, client, server)
			l.mutex.Unlock()
			l.group.Go(func() { l.pass(client, server) })
		}
	})
	t.Cleanup(l.close)
	return l
}

func (l *lossy) close() {
	_ = l.listener.Close()
	l.mutex.Lock()
	for _, c := range l.open {
		_ = c.Close()
	}
	l.mutex.Unlock()
	l.group.Wait()
}

// pass copies both ways. Once it has seen the mark, what the server says stays here.
func (l *lossy) pass(client, server net.Conn) {
	lost := make(chan struct{})
	l.group.Go(func() {
		var held []byte
		_ = copyBytes(server, func(some []byte) error {
			select {
			case <-lost:
				held = append(held, some...)
				if bytes.HasSuffix(held, []byte("Z\x00\x00\x00\x05I")) { // ready for the next query
					if l.kind == answerDropped {
						_ = client.Close()
					}
					close(l.arrived)
				}
				return nil
			default:
				_, err := client.Write(some)
				return err
			}
		})
		_ = client.Close()
	})
	var statement []byte
	_ = copyBytes(client, func(some []byte) error {
		if bytes.HasPrefix(some, []byte("\x00\x00\x00\x10\x04\xd2\x16\x2e")) {
			return net.ErrClosed // a request to cancel: there is no way to the server for it either
		}
		if bytes.Contains(some, []byte(marked)) {
			l.once.Do(func() { close(lost) })
		}
		select {
		case <-lost:
		default:
			_, err := server.Write(some)
			return err
		}
		if statement = append(statement, some...); !bytes.HasSuffix(statement, []byte("S\x00\x00\x00\x04")) { // sync
			return nil
		}
		switch l.kind {
		case sentLate:
			_ = client.Close()
			<-l.release
		case silence:
			<-l.release
			return nil
		case sentAndCut:
			defer func() { _ = client.Close() }()
		case answerDropped:
		}
		_, err := server.Write(statement)
		return err
	})
	select {
	case <-lost: // the server goes on with what it has got
	default:
		_ = server.Close()
	}
}

func copyBytes(from net.Conn, to func([]byte) error) error {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if err := to(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
	}
}

// mixed is a group of several callers: an event without a key, one with, another one with that key, one of a key that is
// taken, one that was matched by an old table.
func (f *fixture) mixed(taken string) []NewEvent {
	f.t.Helper()
	events := f.keyed("", "k", "k", taken, "")
	events[0].Body = []byte(marked)
	events[4].Version--
	return events
}

func (f *fixture) checkMixed(got []Acceptance, taken uuid.UUID) {
	f.t.Helper()
	if got[0].Original != nil || got[0].Stale || got[0].Err != nil || got[0].EventID == uuid.Nil {
		f.t.Errorf("the event without a key: %+v", got[0])
	}
	if got[1].Original != nil || got[1].Stale || got[1].Err != nil || got[1].EventID == uuid.Nil {
		f.t.Errorf("the event with a key: %+v", got[1])
	}
	if got[2].Original == nil || got[2].EventID != got[1].EventID {
		f.t.Errorf("the other one with this key: %+v, want the original %v", got[2], got[1].EventID)
	}
	if got[3].Original == nil || got[3].EventID != taken {
		f.t.Errorf("the one whose key is taken: %+v, want the original %v", got[3], taken)
	}
	if !got[4].Stale {
		f.t.Errorf("the one of an old table: %+v, want it stale", got[4])
	}
	f.checkRows(3)
	if n := ask[int](f, `SELECT count(*) FROM postrider.event WHERE id = ANY($1)`, []uuid.UUID{got[0].EventID, got[1].EventID, taken}); n != 3 {
		f.t.Errorf("%d of the answered events are there, want 3", n)
	}
}

// checkRows demands so many events, each with its one delivery.
func (f *fixture) checkRows(events int) {
	f.t.Helper()
	if n := ask[int](f, `SELECT count(*) FROM postrider.event`); n != events {
		f.t.Errorf("%d events, want %d", n, events)
	}
	if n := f.waiting(); n != events {
		f.t.Errorf("%d deliveries, want %d", n, events)
	}
}

func TestACommitWhoseAnswerWasLostIsNotRepeated(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]loss{"answer dropped": answerDropped, "cut while it runs": sentAndCut, "arrives late": sentLate} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.endpoint("a")
			taken := f.accept(f.keyed("taken"))[0].EventID
			g := f.gated("loser", "INSERT", "event") // whatever runs, runs until the gate is open
			if kind != sentAndCut {
				g.open()
			}
			through := newLossy(t, f.dsn, kind)
			s, err := Open(t.Context(), Options{DSN: through.dsn, MaxConns: 4, Application: "loser"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(s.Close)
			events := f.mixed("taken")
			accepting := begin(t, func(ctx context.Context) ([]Acceptance, error) { return s.Accept(ctx, events, time.Hour) })
			if kind == sentAndCut {
				f.until("the repeated statement waits for the first one", func() bool {
					return ask[int](f, `SELECT count(*) FROM pg_stat_activity
						WHERE datname = current_database() AND application_name = 'loser' AND wait_event_type = 'Lock'`) == 2
				})
				g.open()
			}
			got := accepting.result()
			close(through.release)
			<-through.arrived
			f.checkMixed(got, taken)
			if !got[0].Recovered || !got[1].Recovered || got[2].Recovered || got[3].Recovered {
				t.Errorf("what was recovered is said of the wrong ones: %+v", got)
			}
			f.until("no statement is under way", func() bool {
				return ask[int](f, `SELECT count(*) FROM pg_stat_activity
					WHERE datname = current_database() AND application_name = 'loser' AND state = 'active'`) == 0
			})
			f.checkRows(3)
		})
	}
}

// All of a group have keys, so that nothing refuses the second statement: its events find their keys taken, by themselves.
func TestARepeatedStatementKnowsItsOwnKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	g := f.gated("loser", "INSERT", "event")
	through := newLossy(t, f.dsn, sentAndCut)
	s, err := Open(t.Context(), Options{DSN: through.dsn, MaxConns: 4, Application: "loser"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	events := f.keyed("k", "l")
	events[0].Body = []byte(marked)
	accepting := begin(t, func(ctx context.Context) ([]Acceptance, error) { return s.Accept(ctx, events, time.Hour) })
	f.until("the repeated statement waits for the first one", func() bool {
		return ask[int](f, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND application_name = 'loser' AND wait_event_type = 'Lock'`) == 2
	})
	g.open()
	for i, a := range accepting.result() {
		if a.Original != nil || a.EventID == uuid.Nil || !a.Recovered {
			t.Errorf("event %d: %+v, want it accepted once", i, a)
		}
	}
	f.checkRows(2)
}

// The database falls silent. What is told is that nothing is known, in time.
func TestACommitThatIsNeverHeardOfEndsInTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	through := newLossy(t, f.dsn, silence)
	s := openWith(t, through.dsn, 1)
	if err := s.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	through.shut(t)
	events := f.keyed("")
	events[0].Body = []byte(marked)
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	began := time.Now()
	_, err := s.Accept(ctx, events, time.Hour)
	if !IsUnavailable(err) || time.Since(began) > 10*time.Second {
		t.Errorf("got %v after %v, want it unavailable at its deadline", err, time.Since(began))
	}
	close(through.release)
	through.close() // or closing the pool would wait for its connections to end in peace
}

// shut lets no further connection in.
func (l *lossy) shut(t *testing.T) {
	t.Helper()
	if err := l.listener.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestValuesThatTheDatabaseRefusesHarmTheirEventAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	noise := make([]byte, 6000)
	_, _ = rand.Read(noise)
	long := strings.Map(func(r rune) rune { return 'a' + r%26 }, string([]rune(strings.ToValidUTF8(string(noise), "x"))))
	events := f.keyed("", "k", "", "", "k", "", "", "", "", "")
	bad := map[int]string{}
	spoil := func(i int, why string, change func(*NewEvent)) { bad[i] = why; change(&events[i]) }
	spoil(0, "NUL in the type", func(e *NewEvent) { e.Type = "a\x00b" })
	spoil(2, "no UTF-8", func(e *NewEvent) { e.OrderingKey = "\xff" })
	spoil(3, "a key too long for its index", func(e *NewEvent) { e.IdempotencyKey = long })
	spoil(6, "NUL in a header", func(e *NewEvent) { e.Headers = map[string]string{"x": "\x00"} })
	spoil(9, "no lane", func(e *NewEvent) { e.Targets = []Target{{}}; e.Type = "\x00" })
	got := f.accept(events)
	for i, a := range got {
		switch why, refused := bad[i]; {
		case refused && !errors.Is(a.Err, ErrRefused):
			t.Errorf("event %d (%s): %+v, want it refused", i, why, a)
		case !refused && (a.Err != nil || a.EventID == uuid.Nil):
			t.Errorf("event %d: %+v, want it accepted", i, a)
		}
	}
	if got[4].Original == nil || got[4].EventID != got[1].EventID {
		t.Errorf("the second one with a key: %+v, want the original %v", got[4], got[1].EventID)
	}
	f.checkRows(4)
}

func TestIdsCarryTheDatabasesTime(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.endpoint("a")
	for name, off := range map[string]time.Duration{"right": 0, "behind": -48 * time.Hour, "ahead": 30 * 24 * time.Hour, "a little behind": -2 * time.Second} {
		f.accept(f.keyed(""))
		f.clock.ahead += off.Milliseconds()
		before := ask[time.Time](f, `SELECT clock_timestamp()`)
		got := f.accept(f.keyed(""))[0]
		after := ask[time.Time](f, `SELECT clock_timestamp()`)
		if got.EventID.Version() != 7 || got.AcceptedAt.Before(before.Add(-clockTolerance)) || got.AcceptedAt.After(after.Add(clockTolerance)) {
			t.Errorf("%s: id %v of %v, accepted between %v and %v", name, got.EventID, got.AcceptedAt, before, after)
		}
	}
	f.checkRows(8)
}

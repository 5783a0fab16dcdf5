package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	// ErrNotFound means that there is no such row, or it is another tenant's.
	ErrNotFound = errors.New("not found")
	// ErrConflict means that the row has changed since it was read. Read it and decide again.
	ErrConflict = errors.New("the row was changed meanwhile")
	// ErrStale means that the row holds a newer generation of the same object.
	ErrStale = errors.New("the row holds a newer generation")
	// ErrRefused means that the database refuses a value of the row, and would again.
	ErrRefused = errors.New("the database refuses a value")
	// ErrOwned means that the database belongs to another installation.
	ErrOwned = errors.New("the database belongs to another installation")
)

// Options of a Store.
type Options struct {
	// DSN of the database, as a URL or in key=value form. Required, unless Reread is given.
	DSN string
	// DirectDSN reaches Postgres itself where DSN goes through a pooler: for listening and for what holds a session
	// lock. Empty: DSN.
	DirectDSN string
	// Reread, if not nil, is asked in place of DSN and DirectDSN before each new connection: a password that was rotated
	// is used without a restart. It must be safe for concurrent use, and its errors must hold no password.
	Reread func() (Access, error)
	// MaxConns bounds the pool. 0: 10.
	MaxConns int32
	// Refused, if not nil, is told each time that the database refuses a new connection for who asks: a wrong password, a
	// role or a database that is not there. It is called by any goroutine and must not take long.
	Refused func(reason string)
	// Application is the application_name in pg_stat_activity. Empty: "postrider".
	Application string

	lookUp pgconn.LookupFunc // resolves the database's host, in a test. Nil: the machine's resolver
}

// Access says how the database is reached; see the fields of the same name in Options.
type Access struct {
	DSN, DirectDSN string
}

// Store runs the statements on a pool of connections. It is safe for concurrent use.
type Store struct {
	pool    *pgxpool.Pool
	options Options

	clock       *databaseClock
	ready       readyCursor
	leasesEnded atomic.Bool  // a claim has seen some that the next one frees
	notes       atomic.Int32 // whether the role may write them: see commitBriefly

	keysMu sync.Mutex
	keys   map[int64]string // sweep: the ordering key after which to go on, by lane

	placesMu sync.Mutex
	places   map[chore]place // burials: where the search goes on

	overlooked overlooked
}

// Close waits for borrowed connections and closes all.
func (s *Store) Close() { s.pool.Close() }

// Ping asks the database for a sign of life.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	return nil
}

// PoolStats tells of the pool, for metrics.
func (s *Store) PoolStats() *pgxpool.Stat { return s.pool.Stat() }

// IsUnavailable tells that the database is away, restarting, read-only, full, or that no connection came free in time: waiting
// may help. It is false for a fault of ours, such as a statement that the database refused.
func IsUnavailable(err error) bool {
	if err == nil {
		return false
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch {
		case strings.HasPrefix(pg.Code, "08"), // connection exception
			strings.HasPrefix(pg.Code, "53"),       // insufficient resources
			strings.HasPrefix(pg.Code, "57P"),      // shutdown, crash, cannot connect now
			strings.HasPrefix(pg.Code, "58"),       // system error
			pg.Code == "57014",                     // query cancelled, by a timeout
			pg.Code == "25006",                     // read-only: a standby, during a failover
			pg.Code == "40001", pg.Code == "40P01", // serialisation failure, deadlock: tried again, it goes
			pg.Code == "25P03", // idle in transaction timeout
			notWelcome(pg):     // somebody may be about to mend that
			return true
		}
		return missingPartition(pg) // until a chore has made it
	}
	var connect *pgconn.ConnectError
	var access *accessError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &access) || errors.As(err, &network) || errors.Is(err, context.DeadlineExceeded) ||
		errors.Is(err, net.ErrClosed) || pgconn.Timeout(err) || pgconn.SafeToRetry(err) || brokenConnection(err)
}

// notWelcome tells that the database lets nobody in with this role and password, or is not there.
func notWelcome(pg *pgconn.PgError) bool {
	return pg.Code == "28P01" || pg.Code == "28000" || pg.Code == "3D000"
}

// brokenConnection recognises a connection that broke under a statement: pgx reports it as an unexpected end.
func brokenConnection(err error) bool {
	text := err.Error()
	return strings.Contains(text, "unexpected EOF") || strings.Contains(text, "conn closed") ||
		strings.Contains(text, "connection reset") || strings.Contains(text, "broken pipe") || strings.Contains(text, "closed pool")
}

// badRow tells that the database refused a value: data exceptions, integrity violations and what is too long for an
// index; but not that a partition is missing, which Postgres reports as a violated check without a name.
func badRow(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (strings.HasPrefix(pg.Code, "22") || strings.HasPrefix(pg.Code, "23") || pg.Code == "54000") &&
		!missingPartition(pg)
}

func missingPartition(pg *pgconn.PgError) bool { return pg.Code == "23514" && pg.ConstraintName == "" }

// isUnique tells that a unique index refused a row.
func isUnique(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505"
}

// finish ends a transaction that was begun by a queued statement: after an error it is rolled back, on a context of
// its own since the caller's may be what ended it.
func finish(ctx context.Context, conn *pgxpool.Conn, err *error) {
	if *err != nil && !conn.Conn().IsClosed() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if _, failed := conn.Exec(ctx, "rollback"); failed != nil {
			_ = conn.Conn().Close(ctx)
		}
	}
	conn.Release()
}

// inTx runs f in a transaction.
func (s *Store) inTx(ctx context.Context, f func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, s.pool, f)
}

// batcher is a connection, a pool or a transaction.
type batcher interface {
	SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults
}

// send runs a batch whose results nobody reads, in one implicit transaction.
func send(ctx context.Context, conn batcher, b *pgx.Batch) error {
	if b.Len() == 0 {
		return nil
	}
	return conn.SendBatch(ctx, b).Close()
}

package store

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// How claims and completions commit: in two steps. Postgres keeps the locks of a transaction until its commit is on disk,
// so everybody who wants one of its lanes would wait for the disk with it, one after the other. Therefore the first commit
// does not wait, and lets the locks go; the second one, of a mere note in the log, waits until all before it in the log is
// on disk, and on those standbys that synchronous_commit asks for.
//
// The caller hears of neither before both are done, so nobody acts on what could still be lost. Whoever sees the changes
// earlier cannot outlive them: what it commits comes later in the log.

// beginBriefly queues the beginning of a transaction whose locks are not kept until its commit is on disk.
func beginBriefly(b *pgx.Batch) {
	b.Queue("begin")
	b.Queue("SET LOCAL synchronous_commit = off")
}

// commitBriefly queues the end of a transaction that was begun by beginBriefly, where the caller must not be told before it
// is safe. A transaction that writes nothing to the log would not wait for it, hence the note. A role that may not write one
// waits for the disk with its locks.
func (s *Store) commitBriefly(b *pgx.Batch) {
	if s.noNotes.Load() {
		b.Queue("SET LOCAL synchronous_commit TO DEFAULT")
		b.Queue("commit")
		return
	}
	b.Queue("commit")
	b.Queue("SELECT pg_logical_emit_message(true, 'postrider', '')")
}

// heed remembers from the error of such a transaction that the role may not write notes. The one that met it is committed
// and not waited for: a claim of it is lost until its lease ends, results are recorded once more.
func (s *Store) heed(err error) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		s.noNotes.Store(true)
	}
}

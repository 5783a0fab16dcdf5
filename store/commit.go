package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// How claims and completions commit: in two steps. Postgres keeps the locks of a transaction until its commit is on disk,
// so everybody who wants one of its lanes would wait for the disk with it, one after the other. Therefore the first commit
// does not wait, and lets the locks go; the second one, of a mere note in the log, waits until all before it in the log is
// on disk, and on those standbys that synchronous_commit asks for.
//
// The caller hears of neither before both are done, so nothing is sent for a claim that could still be lost. Whoever sees the
// changes earlier cannot outlive them: what it commits comes later in the log. Who only reads may have told of what a crash
// then takes back, and will tell of it once more.

// beginBriefly queues the beginning of a transaction whose locks are not kept until its commit is on disk. That of a claim is
// openClaim, which sets the same.
func beginBriefly(b *pgx.Batch) {
	b.Queue("begin")
	b.Queue("SET LOCAL synchronous_commit = off")
}

// commitBriefly queues the end of such a transaction, where the caller must not be told before it is safe; condition, a WHERE
// clause, may say that there is nothing to tell. A transaction that writes nothing to the log would not wait for it, hence the
// note. A role that may not write one waits for the disk with its locks.
func (s *Store) commitBriefly(b *pgx.Batch, condition string) {
	if s.notes.Load() == notesForbidden {
		b.Queue("SET LOCAL synchronous_commit TO DEFAULT")
		b.Queue("commit")
		return
	}
	b.Queue("commit")
	b.Queue("SELECT pg_logical_emit_message(true, 'postrider', '')" + condition)
}

// What is known of the right to write notes.
const (
	notesUnknown int32 = iota
	notesAllowed
	notesForbidden
)

const mayWriteNotes = `
SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM pg_catalog.pg_proc
WHERE proname = 'pg_logical_emit_message' AND pronamespace = 'pg_catalog'::regnamespace`

// learnNotes asks once whether the role may write notes, before the first transaction that would end with one.
func (s *Store) learnNotes(ctx context.Context, conn *pgxpool.Conn) error {
	if s.notes.Load() != notesUnknown {
		return nil
	}
	var may bool
	if err := conn.QueryRow(ctx, mayWriteNotes).Scan(&may); err != nil {
		return fmt.Errorf("look at the role's rights: %w", err)
	}
	if may {
		s.notes.Store(notesAllowed)
	} else {
		s.notes.Store(notesForbidden)
	}
	return nil
}

// heed has it asked again after an error that tells of a right which was taken away.
func (s *Store) heed(err error) {
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.Code == "42501" {
		s.notes.Store(notesUnknown)
	}
}

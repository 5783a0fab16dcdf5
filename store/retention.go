package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Partitions of yesterday (for what is under way at midnight) to three days ahead.
const makeDays = `SELECT postrider.make_days((now() AT TIME ZONE 'UTC')::date - 1, 5)`

// MakeDays makes the partitions of the days ahead, those that are not there yet. It is apart from dropping old ones, so
// that one cannot hold up the other.
func (s *Store) MakeDays(ctx context.Context) (made int, err error) {
	err = s.asChore(ctx, chorePartitions, func(tx pgx.Tx) error { return tx.QueryRow(ctx, makeDays).Scan(&made) })
	if err != nil {
		return 0, fmt.Errorf("make the partitions of the days ahead: %w", err)
	}
	return made, nil
}

// All partitions that were ever made of a table ($1) and not dropped yet, oldest first.
const listDays = `
SELECT c.relname, i.inhrelid IS NOT NULL, coalesce(i.inhdetachpending, false), to_date(right(c.relname, 8), 'YYYYMMDD') < $2::date
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'postrider'
LEFT JOIN pg_inherits i ON i.inhrelid = c.oid
WHERE c.relkind = 'r' AND c.relname ~ ('^' || $1 || '_[0-9]{8}$')
ORDER BY c.relname`

type day struct {
	name                   string
	attached, pending, old bool
}

// DropDays drops the partitions whose every row is older than the retention. Bodies that are still needed are pinned
// first; no tenant's backlog keeps another's day. It uses a connection of its own, since detaching concurrently is no
// matter for a transaction, and a session lock on it.
func (s *Store) DropDays(ctx context.Context, events, attempts time.Duration) (dropped int, err error) {
	conn, err := s.connect(ctx)
	if err != nil {
		return 0, fmt.Errorf("drop old partitions: connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var ours bool
	if err := conn.QueryRow(ctx, `SELECT pg_try_advisory_lock($1)`, int64(choreDrop)).Scan(&ours); err != nil {
		return 0, fmt.Errorf("drop old partitions: %w", err)
	}
	if !ours {
		return 0, nil
	}
	// Postgres notices a closed connection a little later: who comes next must not find the lock taken by nobody.
	defer func() {
		_, _ = conn.Exec(context.WithoutCancel(ctx), `SELECT pg_advisory_unlock($1)`, int64(choreDrop))
	}()
	if _, err := conn.Exec(ctx, `SET lock_timeout = '3s'`); err != nil {
		return 0, fmt.Errorf("drop old partitions: %w", err)
	}
	// Each table on its own: one that cannot be dropped now must not keep the other.
	n, failed := dropOld(ctx, conn, "event", events)
	m, alsoFailed := dropOld(ctx, conn, "attempt", attempts)
	return n + m, errors.Join(failed, alsoFailed)
}

func dropOld(ctx context.Context, conn *pgx.Conn, table string, retention time.Duration) (dropped int, err error) {
	var now time.Time
	if err := conn.QueryRow(ctx, `SELECT now()`).Scan(&now); err != nil {
		return 0, fmt.Errorf("drop old partitions of %s: %w", table, err)
	}
	rows, err := conn.Query(ctx, listDays, table, now.Add(-retention).UTC().Format(time.DateOnly))
	if err != nil {
		return 0, fmt.Errorf("drop old partitions of %s: %w", table, err)
	}
	days, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (d day, err error) {
		err = row.Scan(&d.name, &d.attached, &d.pending, &d.old)
		return d, err
	})
	if err != nil {
		return 0, fmt.Errorf("drop old partitions of %s: %w", table, err)
	}
	for _, d := range days {
		if !d.old {
			continue
		}
		if err := dropDay(ctx, conn, table, d); err != nil {
			return dropped, fmt.Errorf("drop %s: %w", d.name, err)
		}
		dropped++
	}
	return dropped, nil
}

func dropDay(ctx context.Context, conn *pgx.Conn, table string, d day) error {
	partition := pgx.Identifier{"postrider", d.name}.Sanitize()
	parent := pgx.Identifier{"postrider", table}.Sanitize()
	if d.attached && table == "event" {
		if err := pinLive(ctx, conn, partition); err != nil {
			return fmt.Errorf("pin what is still needed: %w", err)
		}
	}
	switch {
	case d.pending:
		// An earlier try was interrupted between its two transactions.
		if _, err := conn.Exec(ctx, `ALTER TABLE `+parent+` DETACH PARTITION `+partition+` FINALIZE`); err != nil {
			return err
		}
	case d.attached:
		_, err := conn.Exec(ctx, `ALTER TABLE `+parent+` DETACH PARTITION `+partition+` CONCURRENTLY`)
		var pg *pgconn.PgError
		if errors.As(err, &pg) && pg.Code == "55000" && strings.Contains(pg.Message, "pending detach") {
			_, err = conn.Exec(ctx, `ALTER TABLE `+parent+` DETACH PARTITION `+partition+` FINALIZE`)
		}
		if err != nil {
			return err
		}
	}
	_, err := conn.Exec(ctx, `DROP TABLE `+partition)
	return err
}

// pinLive pins the events of a partition that a live delivery still needs, in chunks. Bodies of dead letters were pinned
// when these were written. The queue has no index by event: it is read through, once, into a cursor that outlives its
// transaction. No delivery of a day that is over can come meanwhile.
func pinLive(ctx context.Context, conn *pgx.Conn, partition string) error {
	if _, err := conn.Exec(ctx, `SET LOCAL enable_seqscan = on;
		DECLARE needed CURSOR WITH HOLD FOR SELECT DISTINCT event_id FROM postrider.delivery
			WHERE event_id BETWEEN (SELECT id FROM `+partition+` ORDER BY id LIMIT 1) AND (SELECT id FROM `+partition+` ORDER BY id DESC LIMIT 1)
			ORDER BY event_id`, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	defer func() { _, _ = conn.Exec(ctx, `CLOSE needed`) }()
	for {
		rows, err := conn.Query(ctx, `FETCH 1000 FROM needed`, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil || len(ids) == 0 {
			return err
		}
		if _, err := conn.Exec(ctx, `INSERT INTO postrider.pinned_event SELECT * FROM `+partition+`
			WHERE id = ANY($1::uuid[]) ORDER BY id ON CONFLICT (id) DO NOTHING`, ids); err != nil {
			return err
		}
	}
}

// The purges delete n rows at most in one short transaction and return how many: call again while it is n.
const (
	purgeDeadLetters = `DELETE FROM postrider.dead_letter WHERE id = ANY(ARRAY(
    SELECT id FROM postrider.dead_letter WHERE died_at < now() - $2::interval ORDER BY died_at LIMIT $1 FOR UPDATE SKIP LOCKED))`

	purgeIdempotency = `DELETE FROM postrider.idempotency k USING (
    SELECT key, namespace, namespace_uid FROM postrider.idempotency WHERE expires_at < now() ORDER BY expires_at LIMIT $1) old
WHERE k.key = old.key AND k.namespace = old.namespace AND k.namespace_uid = old.namespace_uid AND k.expires_at < now()`

	// The delivery and the dead letter of an event are exchanged in one transaction, so a snapshot has one of them.
	purgePinned = `DELETE FROM postrider.pinned_event WHERE id = ANY(ARRAY(
    SELECT p.id FROM postrider.pinned_event p
    WHERE NOT EXISTS (SELECT FROM postrider.dead_letter l WHERE l.event_id = p.id)
      AND NOT EXISTS (SELECT FROM postrider.delivery d WHERE d.event_id = p.id)
    LIMIT $1))`

	purgeEndpoints = `WITH gone AS (
    DELETE FROM postrider.endpoint WHERE endpoint_id = ANY(ARRAY(
        SELECT endpoint_id FROM postrider.endpoint p
        WHERE tombstoned_at < now() - $2::interval
          AND NOT EXISTS (SELECT FROM postrider.lane l WHERE l.endpoint_id = p.endpoint_id AND l.cancelled_at IS NOT NULL)
          AND NOT EXISTS (SELECT FROM postrider.dead_letter d WHERE d.endpoint_id = p.endpoint_id)
        LIMIT $1))
    RETURNING endpoint_id)
DELETE FROM postrider.endpoint_status WHERE endpoint_id IN (SELECT endpoint_id FROM gone)`
)

// PurgeDeadLetters deletes those older than a time.
func (s *Store) PurgeDeadLetters(ctx context.Context, older time.Duration, n int) (int, error) {
	return s.purge(ctx, "dead letters", purgeDeadLetters, n, older)
}

// PurgeIdempotency deletes keys that are no longer kept.
func (s *Store) PurgeIdempotency(ctx context.Context, n int) (int, error) {
	return s.purge(ctx, "idempotency keys", purgeIdempotency, n)
}

// PurgePinned deletes pinned bodies that neither a dead letter nor a live delivery needs. It reads the queue through: once
// an hour will do.
func (s *Store) PurgePinned(ctx context.Context, n int) (int, error) {
	return s.purge(ctx, "pinned events", purgePinned, n)
}

// PurgeEndpoints deletes rows tombstoned before a time that nothing refers to any more.
func (s *Store) PurgeEndpoints(ctx context.Context, older time.Duration, n int) (int, error) {
	return s.purge(ctx, "tombstoned endpoints", purgeEndpoints, n, older)
}

func (s *Store) purge(ctx context.Context, what, statement string, n int, args ...any) (deleted int, err error) {
	err = s.asChore(ctx, chorePurge, func(tx pgx.Tx) error {
		// These read whole tables, unlike the queue's statements.
		if _, err := tx.Exec(ctx, `SET LOCAL enable_seqscan = on`); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, statement, append([]any{n}, args...)...)
		deleted = int(tag.RowsAffected())
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("purge %s: %w", what, err)
	}
	return deleted, nil
}

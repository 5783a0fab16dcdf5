package store

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// fitLock lets one process at a time change the role's settings: two would meet in the catalogue, and one fail.
const fitLock = 0x706f737466697400

// FitRole gives the role that the pool uses the settings that its sessions need, as its defaults in this database, where a
// pooler in between keeps them from being set on each connection. Without DirectDSN it does nothing. The role of DirectDSN
// must be the same one, or may change it.
//
// stale is true where the pooler still has sessions from before: they keep what they have until it closes them.
func (s *Store) FitRole(ctx context.Context) (stale bool, err error) {
	access, err := s.options.access()
	if err != nil || access.DirectDSN == "" {
		return false, err
	}
	var role string
	if err := s.pool.QueryRow(ctx, `SELECT current_user::text`).Scan(&role); err != nil {
		return false, fmt.Errorf("fit the role to its work: %w", err)
	}
	conn, err := s.connect(ctx)
	if err != nil {
		return false, fmt.Errorf("fit the role to its work: connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return fit(ctx, tx, role) }); err != nil {
		return false, fmt.Errorf("fit role %s to its work: %w", role, err)
	}
	for name, value := range roleSettings {
		var has string
		if err := s.pool.QueryRow(ctx, `SELECT current_setting($1)`, name).Scan(&has); err != nil {
			return false, fmt.Errorf("look at the settings of role %s: %w", role, err)
		}
		stale = stale || has != value
	}
	return stale, nil
}

// fit changes what is not so yet.
func fit(ctx context.Context, tx pgx.Tx, role string) error {
	if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(fitLock)); err != nil {
		return err
	}
	rows, err := tx.Query(ctx, `SELECT unnest(s.setconfig) FROM pg_db_role_setting s
		JOIN pg_database d ON d.oid = s.setdatabase JOIN pg_roles r ON r.oid = s.setrole
		WHERE d.datname = current_database() AND r.rolname = $1`, role)
	if err != nil {
		return err
	}
	settings, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	has := map[string]bool{}
	for _, setting := range settings {
		has[setting] = true
	}
	var database string
	if err := tx.QueryRow(ctx, `SELECT current_database()::text`).Scan(&database); err != nil {
		return err
	}
	for name, value := range roleSettings {
		if has[name+"="+value] {
			continue
		}
		alter := fmt.Sprintf(`ALTER ROLE %s IN DATABASE %s SET %s = '%s'`, pgx.Identifier{role}.Sanitize(), pgx.Identifier{database}.Sanitize(), name, value)
		if _, err := tx.Exec(ctx, alter); err != nil {
			return err
		}
	}
	return nil
}

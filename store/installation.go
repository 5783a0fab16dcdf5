package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Installation is a release of Postrider in a cluster. It owns its database alone.
type Installation struct {
	Namespace  string
	Release    string
	ClusterUID string // of the kube-system namespace; "" for a part that does not talk to Kubernetes
}

// Own claims the database for an installation, or finds that it has it already. ErrOwned: another one has it; takeOver
// makes it ours, and lets the endpoints be adopted by the objects of the new cluster.
func (s *Store) Own(ctx context.Context, in Installation, takeOver bool) error {
	return s.inTx(ctx, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO postrider.installation (namespace, release, cluster_uid) VALUES ($1, $2, $3)
			ON CONFLICT (one) DO NOTHING`, in.Namespace, in.Release, in.ClusterUID); err != nil {
			return fmt.Errorf("claim the database: %w", err)
		}
		var has Installation
		err := tx.QueryRow(ctx, `SELECT namespace, release, cluster_uid FROM postrider.installation FOR UPDATE`).
			Scan(&has.Namespace, &has.Release, &has.ClusterUID)
		if errors.Is(err, pgx.ErrNoRows) {
			return fmt.Errorf("claim the database: %w", ErrConflict)
		}
		if err != nil {
			return fmt.Errorf("read who owns the database: %w", err)
		}
		otherCluster := in.ClusterUID != "" && has.ClusterUID != "" && in.ClusterUID != has.ClusterUID
		if has.Namespace == in.Namespace && has.Release == in.Release && !otherCluster {
			if has.ClusterUID != "" || in.ClusterUID == "" {
				return nil
			}
			_, err := tx.Exec(ctx, `UPDATE postrider.installation SET cluster_uid = $1`, in.ClusterUID)
			return err
		}
		if !takeOver {
			return fmt.Errorf("%w: release %q in namespace %q of cluster %q; give this one a database of its own, or start it once with --take-over if the other is gone",
				ErrOwned, has.Release, has.Namespace, has.ClusterUID)
		}
		if _, err := tx.Exec(ctx, `UPDATE postrider.installation SET namespace = $1, release = $2, cluster_uid = $3, claimed_at = now()`,
			in.Namespace, in.Release, in.ClusterUID); err != nil {
			return fmt.Errorf("take the database over: %w", err)
		}
		if _, err := tx.Exec(ctx, `UPDATE postrider.endpoint SET adoptable = true WHERE tombstoned_at IS NULL`); err != nil {
			return fmt.Errorf("take the endpoints over: %w", err)
		}
		return nil
	})
}

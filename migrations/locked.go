package migrations

import (
	"errors"

	"github.com/jackc/pgx/v5/pgconn"
)

// IsLocked tells that Up gave up behind a long transaction, such as a backup, rather than have all work wait with it. What
// it had begun is undone. Trying again helps, once that transaction is over.
func IsLocked(err error) bool {
	pg := (*pgconn.PgError)(nil)
	return errors.As(err, &pg) && pg.Code == "55P03"
}

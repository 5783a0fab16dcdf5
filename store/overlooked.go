package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// $1 lane[]. Deliveries that no claim will find: they are due since before the bound of its search, by an accept that took
// long to commit and whose touch was lost, or that the previous release made. Mend: lockLanes, wakeLanes.
const overlookedLanes = `
SELECT l.lane_id, first.available_at
FROM ` + latestLanes + `
CROSS JOIN LATERAL (
    SELECT available_at FROM postrider.delivery d
    WHERE d.lane_id = l.lane_id AND d.available_at < ` + searchFrom + ` AND d.claim_token IS NULL
    ORDER BY available_at, id LIMIT 1) first`

// overlooked paces the search for such deliveries. It walks over all the dead versions that the bound is there to spare the
// claims, a million a minute under a held snapshot, so it has a place of its own to go on from and takes up no more than a
// two-hundredth of the time.
type overlooked struct {
	mu    sync.Mutex
	after int64     // the endpoint
	next  time.Time // when to search again
}

const overlookedPause = 200

// findOverlooked searches the lanes of the next n endpoints, where it is time to.
func (s *Store) findOverlooked(ctx context.Context, tx pgx.Tx, n int) (found []unwokenLane, err error) {
	o := &s.overlooked
	o.mu.Lock()
	defer o.mu.Unlock()
	began := time.Now()
	if began.Before(o.next) {
		return nil, nil
	}
	chunk, err := lanesAfter(ctx, tx, o.after, n)
	if err != nil {
		return nil, fmt.Errorf("list lanes: %w", err)
	}
	if len(chunk.lanes) > 0 {
		rows, err := tx.Query(ctx, overlookedLanes, chunk.lanes)
		if err != nil {
			return nil, err
		}
		if found, err = pgx.CollectRows(rows, scanUnwoken); err != nil {
			return nil, err
		}
	}
	o.after = chunk.next
	if took := time.Since(began); took > slowSearch {
		o.next = time.Now().Add(overlookedPause * took)
	}
	return found, nil
}

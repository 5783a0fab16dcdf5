package store

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// $1 id[], $2 token[], $3 lease. SKIP LOCKED: a row locked now is being completed or reaped, and waiting for several
// rows in no order could deadlock with either. The lane's lease_end stays: it is a lower bound, and the reap that it
// causes finds the longer lease.
const extendLeases = `
UPDATE postrider.delivery SET lease_until = now() + $3::interval
WHERE id = ANY(ARRAY(
    SELECT d.id FROM unnest($1::bigint[], $2::uuid[]) AS r(id, token)
    CROSS JOIN LATERAL (
        SELECT id FROM postrider.delivery WHERE id = r.id AND claim_token = r.token FOR UPDATE SKIP LOCKED) d))
RETURNING id`

// $1 lane[], $2 token[] of extended probes only, after lockLanes: a longer lease must also keep the next probe back.
const extendProbes = `
UPDATE postrider.lane l SET open_until = now() + $3::interval, ` + moved + `
FROM (SELECT DISTINCT l.tid FROM unnest($1::bigint[], $2::uuid[]) AS r(lane_id, token)
      CROSS JOIN LATERAL (
          SELECT probe_token, ctid AS tid FROM postrider.lane WHERE lane_id = r.lane_id ORDER BY moved_at DESC LIMIT 1) l
      WHERE l.probe_token = r.token) probed
WHERE l.ctid = probed.tid`

// Extend asks for longer leases, counted from at. A delivery that is not among extended is lost to its claim: abandon
// the request.
func (s *Store) Extend(ctx context.Context, leases []Lease, lease time.Duration) (extended map[int64]bool, at time.Time, err error) {
	extended = map[int64]bool{}
	if len(leases) == 0 {
		return extended, time.Time{}, nil
	}
	var ids []int64
	var tokens []uuid.UUID
	for _, l := range leases {
		ids, tokens = append(ids, l.DeliveryID), append(tokens, l.Token)
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return nil, time.Time{}, fmt.Errorf("extend leases: %w", err)
	}
	defer finish(ctx, conn, &err)
	b := &pgx.Batch{}
	b.Queue("begin")
	b.Queue("SELECT now()").QueryRow(func(row pgx.Row) error { return row.Scan(&at) })
	b.Queue(extendLeases, ids, tokens, lease).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id int64
			if err := rows.Scan(&id); err != nil {
				return err
			}
			extended[id] = true
		}
		return rows.Err()
	})
	// Committed before any lane is waited for: a row that changed hands meanwhile is locked too, and whoever has its lane
	// would wait for it.
	b.Queue("commit")
	if err = send(ctx, conn, b); err != nil {
		return nil, time.Time{}, fmt.Errorf("extend leases: %w", err)
	}
	if lanes, tokens := extendedProbes(leases, extended); len(lanes) > 0 {
		b = &pgx.Batch{}
		b.Queue("begin")
		b.Queue(lockLanes, lanes)
		b.Queue(extendProbes, lanes, tokens, lease)
		b.Queue("commit")
		if err = send(ctx, conn, b); err != nil {
			return nil, time.Time{}, fmt.Errorf("extend the leases of probes: %w", err)
		}
	}
	return extended, at, nil
}

// extendedProbes leaves out the probes that are lost: their lanes must not be kept from the next one.
func extendedProbes(leases []Lease, extended map[int64]bool) (lanes []int64, tokens []uuid.UUID) {
	for _, l := range leases {
		if l.Probe && extended[l.DeliveryID] {
			lanes, tokens = append(lanes, l.LaneID), append(tokens, l.Token)
		}
	}
	return lanes, tokens
}

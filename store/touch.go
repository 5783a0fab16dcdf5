package store

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// $1 lane[]. Every transaction of several lanes begins its lane work with this, so lanes are always locked in order.
const lockLanes = `
SELECT FROM (SELECT DISTINCT unnest($1::bigint[]) AS lane_id ORDER BY 1) wanted
CROSS JOIN LATERAL (SELECT FROM postrider.lane WHERE lane_id = wanted.lane_id ORDER BY moved_at DESC LIMIT 1 FOR NO KEY UPDATE) l`

// $1 lane[], $2 key[]: keys that may have lost their visible row or got their first. Only under the lanes' locks.
// The first entry by (available_at, id) is the visible row if there is one, else the next to become it.
const promoteKeys = `
UPDATE postrider.delivery SET available_at = now()
WHERE available_at = 'infinity' AND id = ANY(ARRAY(
    SELECT head.id
    FROM (SELECT DISTINCT t.lane_id, t.key, ` + searchFrom + ` AS search_from
          FROM unnest($1::bigint[], $2::text[]) AS t(lane_id, key)
          CROSS JOIN LATERAL (SELECT first_at FROM postrider.lane WHERE lane_id = t.lane_id ORDER BY moved_at DESC LIMIT 1) l) k
    CROSS JOIN LATERAL (
        SELECT id, available_at FROM postrider.delivery d
        WHERE d.lane_id = k.lane_id AND d.ordering_key = k.key AND d.available_at >= k.search_from AND ` + byKey + `
        ORDER BY available_at, id LIMIT 1) head
    WHERE head.available_at = 'infinity'))`

// $1 lane[], $2 how long ago the oldest of the accepts began, or longer: what it made became available then.
const touchLanes = `
UPDATE postrider.lane l SET due_at = least(l.due_at, now()), first_at = least(l.first_at, now() - $2::interval), ` + moved + `
FROM (SELECT l.tid FROM ` + latestLanes + ` WHERE l.due_at > now() OR l.first_at > now() - $2::interval) woken
WHERE l.ctid = woken.tid`

// Touch wakes the lanes that got new deliveries, promotes their keys and notifies the dispatchers; call it after the
// accept's commit, one for many accepts. Losing it costs what the sweep mends, so its commit does not wait for the disk.
//
// NOTIFY takes a lock of the whole server at commit, which whoever else notifies keeps until its own commit is on disk. So it
// has no place in an accepting transaction, comes after the touch has let its lanes go, and a process should touch about 100
// times a second at most.
//
// Why it must lock first: a claim whose snapshot is older than the accept's commit finds the lane empty and parks it.
// Either that claim locked the lane before us: we wait, then see it parked. Or it locks after us: its snapshot, taken
// under the lock, sees the new rows. A plain UPDATE … WHERE due_at > now() would skip the lane without waiting.
func (s *Store) Touch(ctx context.Context, touched []Touched) error {
	if len(touched) == 0 {
		return nil
	}
	lanes := make([]int64, 0, len(touched))
	var keyLanes []int64
	var keys []string
	var began time.Time
	for _, t := range touched {
		lanes = append(lanes, t.LaneID)
		if began.IsZero() || !t.Since.IsZero() && t.Since.Before(began) {
			began = t.Since
		}
		if t.OrderingKey != "" {
			keyLanes, keys = append(keyLanes, t.LaneID), append(keys, t.OrderingKey)
		}
	}
	if err := s.touch(ctx, lanes, keyLanes, keys, began); err != nil {
		return fmt.Errorf("wake %d lanes: %w", len(lanes), err)
	}
	return nil
}

func (s *Store) touch(ctx context.Context, lanes, keyLanes []int64, keys []string, began time.Time) (err error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer finish(ctx, conn, &err)
	var age time.Duration
	if !began.IsZero() {
		age = 2 * time.Since(began) // the touch is under way for a while too, and may take longer to arrive than the accept did
	}
	b := &pgx.Batch{}
	beginBriefly(b)
	b.Queue(lockLanes, lanes)
	if len(keys) > 0 {
		b.Queue(promoteKeys, keyLanes, keys)
	}
	b.Queue(touchLanes, lanes, age)
	b.Queue("commit")
	b.Queue("NOTIFY " + channel)
	return send(ctx, conn, b)
}

// channel is where dispatchers listen. It is the one name for all installations: each has a database of its own.
const channel = "postrider_due"

// Notify tells the listening dispatchers that something is due, where no touch does.
func (s *Store) Notify(ctx context.Context) error {
	if _, err := s.pool.Exec(ctx, "NOTIFY "+channel); err != nil {
		return fmt.Errorf("notify the dispatchers: %w", err)
	}
	return nil
}

// Listen calls wake once listening has begun, since what came before was missed, and at each notification. It holds a
// connection of its own and returns when that is lost or the context ends.
func (s *Store) Listen(ctx context.Context, wake func()) error {
	conn, err := s.connect(ctx)
	if err != nil {
		return fmt.Errorf("listen: connect: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "LISTEN "+channel); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		wake()
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return fmt.Errorf("listen: %w", err)
		}
	}
}

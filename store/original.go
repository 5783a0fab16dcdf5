package store

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// $1 namespace[], $2 uid[], $3 key[]. The event of a key that is still kept; its columns are null where it is gone.
const originalEvents = `
SELECT k.namespace, k.namespace_uid, k.key, k.event_id, e.type, e.content_type, coalesce(e.ordering_key, ''), sha256(e.body),
       ARRAY(SELECT p.name FROM unnest(e.endpoint_ids) WITH ORDINALITY AS u(endpoint_id, ord)
             CROSS JOIN LATERAL (SELECT name FROM postrider.endpoint WHERE endpoint_id = u.endpoint_id LIMIT 1) p ORDER BY ord)
FROM unnest($1::text[], $2::text[], $3::text[]) AS r(namespace, uid, key)
JOIN postrider.idempotency k ON k.key = r.key AND k.namespace = r.namespace AND k.namespace_uid = r.uid
LEFT JOIN LATERAL (
    SELECT type, content_type, ordering_key, body, endpoint_ids FROM postrider.event WHERE id = k.event_id
    UNION ALL
    SELECT type, content_type, ordering_key, body, endpoint_ids FROM postrider.pinned_event WHERE id = k.event_id
    LIMIT 1) e ON true
WHERE k.expires_at >= now()`

// $1 namespace[], $2 uid[], $3 key[], $4 event[]: keys whose event was found gone, for the retention of events may be the
// shorter one. By the event too: a key that somebody took meanwhile is theirs.
const freeKeys = `
DELETE FROM postrider.idempotency k
USING unnest($1::text[], $2::text[], $3::text[], $4::uuid[]) AS r(namespace, uid, key, event_id)
WHERE k.key = r.key AND k.namespace = r.namespace AND k.namespace_uid = r.uid AND k.event_id = r.event_id`

type keyOf struct{ namespace, uid, key string }

// findOriginals fills in the events that hold the keys of the losers, and returns the losers without one.
//
// Where an event has its key itself, it was stored by an earlier try whose answer was lost.
func (g *accepting) findOriginals(ctx context.Context, lost []int) (open []int, err error) {
	namespace, uid, key := make([]string, len(lost)), make([]string, len(lost)), make([]string, len(lost))
	for n, i := range lost {
		namespace[n], uid[n], key[n] = g.events[i].Namespace, g.events[i].NamespaceUID, g.events[i].IdempotencyKey
	}
	rows, err := g.pool.Query(ctx, originalEvents, namespace, uid, key)
	if err != nil {
		return nil, fmt.Errorf("read the original of an idempotency key: %w", err)
	}
	found := map[keyOf]Acceptance{}
	var orphans orphanedKeys
	var k keyOf
	var id uuid.UUID
	var eventType, contentType *string
	var orderingKey string
	var sum []byte
	var endpoints []string
	if _, err := pgx.ForEachRow(rows, []any{&k.namespace, &k.uid, &k.key, &id, &eventType, &contentType, &orderingKey, &sum, &endpoints}, func() error {
		if eventType == nil {
			orphans.add(k, id)
			return nil
		}
		o := Original{Type: *eventType, ContentType: *contentType, OrderingKey: orderingKey, Endpoints: endpoints}
		copy(o.BodySHA256[:], sum)
		found[k] = Acceptance{EventID: id, AcceptedAt: EventTime(id), Original: &o}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("read the original of an idempotency key: %w", err)
	}
	if err := orphans.free(ctx, g.pool); err != nil {
		return nil, err
	}
	for n, i := range lost {
		a, ok := found[keyOf{namespace[n], uid[n], key[n]}]
		switch {
		case !ok:
			open = append(open, i)
		case a.EventID == g.ids[i]:
			g.accepted[i] = Acceptance{EventID: a.EventID, AcceptedAt: a.AcceptedAt, Recovered: true}
		default:
			g.accepted[i] = a
		}
	}
	return open, nil
}

// orphanedKeys are held by events that are gone.
type orphanedKeys struct {
	namespace, uid, key []string
	event               []uuid.UUID
}

func (o *orphanedKeys) add(k keyOf, event uuid.UUID) {
	o.namespace, o.uid, o.key = append(o.namespace, k.namespace), append(o.uid, k.uid), append(o.key, k.key)
	o.event = append(o.event, event)
}

func (o *orphanedKeys) free(ctx context.Context, pool *pgxpool.Pool) error {
	if len(o.key) == 0 {
		return nil
	}
	if _, err := pool.Exec(ctx, freeKeys, o.namespace, o.uid, o.key, o.event); err != nil {
		return fmt.Errorf("free the idempotency keys of events that are gone: %w", err)
	}
	return nil
}

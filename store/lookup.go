package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const lookUpEvent = `
SELECT e.namespace, e.type, e.content_type, coalesce(e.ordering_key, ''), e.endpoint_ids
FROM (SELECT * FROM postrider.event WHERE id = $1
      UNION ALL
      SELECT * FROM postrider.pinned_event WHERE id = $1
      LIMIT 1) e
WHERE e.namespace = $2 AND e.namespace_uid = $3`

const lookUpNames = `SELECT endpoint_id, name FROM postrider.endpoint WHERE endpoint_id = ANY($1::bigint[])`

const lookUpAttempts = `
SELECT endpoint_id, replay_no, number, at, outcome, coalesce(status, 0), coalesce(reason, ''), duration_ms, retry_at,
       coalesce(convert_from(response, 'UTF8'), '')
FROM postrider.attempt WHERE event_id = $1 ORDER BY endpoint_id, replay_no, at, number LIMIT $2`

const lookUpDeadLetters = `SELECT endpoint_id, replay_no, reason FROM postrider.dead_letter WHERE event_id = $1 ORDER BY id LIMIT $2`

// detailLimit bounds the attempts, and the dead letters, of one EventDetail.
const detailLimit = 10_000

// Event looks up an event of a namespace with its deliveries and their attempts, 10,000 of them at most. The queue has no
// index by event, which would cost each delivery: what became of one is read from its history.
// ErrNotFound: there is none, or it is another namespace's.
func (s *Store) Event(ctx context.Context, namespace, namespaceUID string, id uuid.UUID) (EventDetail, error) {
	d := EventDetail{ID: id, AcceptedAt: EventTime(id)}
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var endpoints []int64
		if err := tx.QueryRow(ctx, lookUpEvent, id, namespace, namespaceUID).
			Scan(&d.Namespace, &d.Type, &d.ContentType, &d.OrderingKey, &endpoints); err != nil {
			return err
		}
		h := history{names: map[int64]string{}, deliveries: map[deliveryKey]*DeliveryDetail{}}
		for _, endpoint := range endpoints {
			h.delivery(endpoint, 0)
		}
		return h.load(ctx, tx, id, endpoints, &d)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return EventDetail{}, fmt.Errorf("event %s: %w", id, ErrNotFound)
	}
	if err != nil {
		return EventDetail{}, fmt.Errorf("look up event %s: %w", id, err)
	}
	return d, nil
}

type deliveryKey struct {
	endpoint int64
	replay   int
}

type history struct {
	names      map[int64]string
	order      []deliveryKey
	deliveries map[deliveryKey]*DeliveryDetail
}

// delivery returns the entry of a delivery, made when it is first named: pending until its history says otherwise.
func (h *history) delivery(endpoint int64, replay int) *DeliveryDetail {
	k := deliveryKey{endpoint, replay}
	if d := h.deliveries[k]; d != nil {
		return d
	}
	d := &DeliveryDetail{ReplayNo: replay, State: StatePending}
	h.deliveries[k] = d
	h.order = append(h.order, k)
	return d
}

func (h *history) load(ctx context.Context, tx pgx.Tx, id uuid.UUID, endpoints []int64, d *EventDetail) error {
	b := &pgx.Batch{}
	b.Queue(lookUpNames, endpoints).Query(func(rows pgx.Rows) error {
		var endpoint int64
		var name string
		_, err := pgx.ForEachRow(rows, []any{&endpoint, &name}, func() error { h.names[endpoint] = name; return nil })
		return err
	})
	b.Queue(lookUpAttempts, id, detailLimit).Query(h.readAttempts)
	b.Queue(lookUpDeadLetters, id, detailLimit).Query(func(rows pgx.Rows) error {
		var k deliveryKey
		var reason string
		_, err := pgx.ForEachRow(rows, []any{&k.endpoint, &k.replay, &reason}, func() error {
			dead := h.delivery(k.endpoint, k.replay)
			dead.State, dead.Reason, dead.NextAttemptAt = StateDead, reason, time.Time{}
			return nil
		})
		return err
	})
	if err := send(ctx, tx, b); err != nil {
		return err
	}
	for _, k := range h.order {
		one := h.deliveries[k]
		one.Endpoint = h.names[k.endpoint]
		d.Deliveries = append(d.Deliveries, *one)
	}
	return nil
}

func (h *history) readAttempts(rows pgx.Rows) error {
	var k deliveryKey
	var a Attempt
	var outcome string
	var ms int64
	var retryAt *time.Time
	_, err := pgx.ForEachRow(rows, []any{&k.endpoint, &k.replay, &a.Number, &a.At, &outcome, &a.Status, &a.Reason, &ms, &retryAt, &a.Response}, func() error {
		a.Outcome, a.Duration = Verdict(outcome), time.Duration(ms)*time.Millisecond
		one := h.delivery(k.endpoint, k.replay)
		one.Attempts = append(one.Attempts, a)
		one.NextAttemptAt = time.Time{}
		switch {
		case a.Outcome == Delivered:
			one.State = StateDelivered
		case retryAt != nil:
			one.NextAttemptAt = *retryAt
		}
		return nil
	})
	return err
}

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

const endpointColumns = `endpoint_id, public_id, namespace, name, namespace_uid, uid, generation, version,
    coalesce(lane_id, 0), coalesce(hold_reason, ''), adoptable, tombstoned_at IS NOT NULL,
    state, url, event_types, timeout, max_concurrency, rate_requests, rate_per, rate_burst, ordered, payload, headers,
    max_attempts, max_duration, backoff_base, backoff_factor, backoff_cap, schedule, failure_threshold, cooldown, max_cooldown,
    key_sealed, key_fingerprint, key_expires_at`

const (
	liveEndpoint  = `SELECT ` + endpointColumns + ` FROM postrider.endpoint WHERE namespace = $1 AND name = $2 AND tombstoned_at IS NULL`
	endpointsByID = `SELECT ` + endpointColumns + ` FROM postrider.endpoint WHERE endpoint_id = ANY($1::bigint[])`
	liveEndpoints = `SELECT endpoint_id, namespace, name, namespace_uid, uid FROM postrider.endpoint
WHERE endpoint_id > $1 AND tombstoned_at IS NULL ORDER BY endpoint_id LIMIT $2`
)

// Endpoint reads the live row of a name. ErrNotFound: there is none.
func (s *Store) Endpoint(ctx context.Context, namespace, name string) (Endpoint, error) {
	rows, err := s.pool.Query(ctx, liveEndpoint, namespace, name)
	if err != nil {
		return Endpoint{}, fmt.Errorf("read endpoint %s/%s: %w", namespace, name, err)
	}
	return oneEndpoint(rows, namespace, name)
}

func oneEndpoint(rows pgx.Rows, namespace, name string) (Endpoint, error) {
	e, err := pgx.CollectExactlyOneRow(rows, scanEndpoint)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("read endpoint %s/%s: %w", namespace, name, err)
	}
	return e, nil
}

// Endpoints reads rows by id, tombstoned ones too. What is not there is left out.
func (s *Store) Endpoints(ctx context.Context, ids []int64) ([]Endpoint, error) {
	rows, err := s.pool.Query(ctx, endpointsByID, ids)
	if err != nil {
		return nil, fmt.Errorf("read %d endpoints: %w", len(ids), err)
	}
	endpoints, err := pgx.CollectRows(rows, scanEndpoint)
	if err != nil {
		return nil, fmt.Errorf("read %d endpoints: %w", len(ids), err)
	}
	return endpoints, nil
}

// LiveEndpoints lists the rows that are not tombstoned, n at most, after an id.
func (s *Store) LiveEndpoints(ctx context.Context, after int64, n int) ([]EndpointRef, error) {
	rows, err := s.pool.Query(ctx, liveEndpoints, after, n)
	if err != nil {
		return nil, fmt.Errorf("list the endpoints: %w", err)
	}
	refs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[EndpointRef])
	if err != nil {
		return nil, fmt.Errorf("list the endpoints: %w", err)
	}
	return refs, nil
}

func scanEndpoint(row pgx.CollectableRow) (Endpoint, error) {
	var e Endpoint
	var requests, burst *int
	var per *time.Duration
	var sealed [][]byte
	var fingerprints []string
	var expiries []*time.Time
	p := &e.Spec
	err := row.Scan(&e.ID, &e.PublicID, &e.Namespace, &e.Name, &e.NamespaceUID, &e.UID, &e.Generation, &e.Version,
		&e.LaneID, &e.HoldReason, &e.Adoptable, &e.Tombstoned,
		&p.State, &p.URL, &p.EventTypes, &p.Timeout, &p.MaxConcurrency, &requests, &per, &burst, &p.Ordered, &p.Payload, &p.Headers,
		&p.MaxAttempts, &p.MaxDuration, &p.BackoffBase, &p.BackoffFactor, &p.BackoffCap, &p.Schedule,
		&p.FailureThreshold, &p.Cooldown, &p.MaxCooldown,
		&sealed, &fingerprints, &expiries)
	if err != nil {
		return Endpoint{}, err
	}
	if requests != nil {
		p.Rate = &Rate{Requests: *requests, Per: *per, Burst: *burst}
	}
	for i := range sealed {
		k := SealedKey{Sealed: sealed[i], Fingerprint: fingerprints[i]}
		if expiries[i] != nil {
			k.ExpiresAt = *expiries[i]
		}
		e.Keys = append(e.Keys, k)
	}
	return e, nil
}

// SealedValue is one ciphertext of a live row.
type SealedValue struct {
	EndpointID int64
	PublicID   uuid.UUID
	Column     string // ColumnKey or ColumnHeaders
	Sealed     []byte
}

// SealedValues lists the ciphertexts of the live rows after an id, of n rows that have any at most. None: the end.
func (s *Store) SealedValues(ctx context.Context, after int64, n int) ([]SealedValue, error) {
	rows, err := s.pool.Query(ctx, `SELECT endpoint_id, public_id, key_sealed, headers FROM postrider.endpoint
		WHERE endpoint_id > $1 AND tombstoned_at IS NULL AND (key_sealed <> '{}' OR headers IS NOT NULL)
		ORDER BY endpoint_id LIMIT $2`, after, n)
	if err != nil {
		return nil, fmt.Errorf("list the sealed values: %w", err)
	}
	var values []SealedValue
	var id int64
	var public uuid.UUID
	var keys [][]byte
	var headers []byte
	if _, err := pgx.ForEachRow(rows, []any{&id, &public, &keys, &headers}, func() error {
		for _, key := range keys {
			values = append(values, SealedValue{EndpointID: id, PublicID: public, Column: ColumnKey, Sealed: key})
		}
		if headers != nil {
			values = append(values, SealedValue{EndpointID: id, PublicID: public, Column: ColumnHeaders, Sealed: headers})
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("list the sealed values: %w", err)
	}
	return values, nil
}

package store

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// One statement, so that table and version are of one snapshot. Endpoints of an earlier namespace of the same name are
// left out.
const matchingTable = `
SELECT v.uid, v.version, p.endpoint_id, p.lane_id, p.name, p.event_types, p.ordered
FROM postrider.namespace_version v
LEFT JOIN postrider.endpoint p ON p.namespace = v.namespace AND p.namespace_uid = v.uid
     AND p.tombstoned_at IS NULL AND p.lane_id IS NOT NULL
WHERE v.namespace = $1
ORDER BY p.name`

// NamespaceUID reads the uid of a namespace, "" while the controller has not told of it.
func (s *Store) NamespaceUID(ctx context.Context, namespace string) (string, error) {
	var uid string
	err := s.pool.QueryRow(ctx, `SELECT uid FROM postrider.namespace_version WHERE namespace = $1`, namespace).Scan(&uid)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return "", fmt.Errorf("read the uid of a namespace: %w", err)
	}
	return uid, nil
}

// Matching loads a namespace's table of endpoints. A namespace that the controller has not told of gives an empty one of
// version 0, under which nothing is accepted.
func (s *Store) Matching(ctx context.Context, namespace string) (Matching, error) {
	m := Matching{Namespace: namespace}
	rows, err := s.pool.Query(ctx, matchingTable, namespace)
	if err != nil {
		return Matching{}, fmt.Errorf("load the endpoints of a namespace: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var endpoint, lane *int64
		var name *string
		var ordered *bool
		var e MatchedEndpoint
		if err := rows.Scan(&m.UID, &m.Version, &endpoint, &lane, &name, &e.EventTypes, &ordered); err != nil {
			return Matching{}, fmt.Errorf("load the endpoints of a namespace: %w", err)
		}
		if endpoint == nil {
			continue
		}
		e.EndpointID, e.LaneID, e.Name, e.Ordered = *endpoint, *lane, *name, *ordered
		m.Endpoints = append(m.Endpoints, e)
	}
	if err := rows.Err(); err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Matching{}, fmt.Errorf("load the endpoints of a namespace: %w", err)
	}
	return m, nil
}

package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

const insertEndpoint = `
INSERT INTO postrider.endpoint (public_id, namespace, name, namespace_uid, uid, generation, hold_reason,
    state, url, event_types, timeout, max_concurrency, rate_requests, rate_per, rate_burst, ordered, payload, headers,
    max_attempts, max_duration, backoff_base, backoff_factor, backoff_cap, schedule, failure_threshold, cooldown, max_cooldown,
    key_sealed, key_fingerprint, key_expires_at)
VALUES (@public_id, @namespace, @name, @namespace_uid, @uid, @generation, @hold_reason,
    @state, @url, @event_types, @timeout, @max_concurrency, @rate_requests, @rate_per, @rate_burst, @ordered, @payload, @headers,
    @max_attempts, @max_duration, @backoff_base, @backoff_factor, @backoff_cap, @schedule, @failure_threshold, @cooldown, @max_cooldown,
    @key_sealed, @key_fingerprint, @key_expires_at)
RETURNING ` + endpointColumns

const updateEndpoint = `
UPDATE postrider.endpoint SET version = version + 1, adoptable = false,
    namespace_uid = @namespace_uid, uid = @uid, generation = @generation, hold_reason = @hold_reason,
    state = @state, url = @url, event_types = @event_types, timeout = @timeout, max_concurrency = @max_concurrency,
    rate_requests = @rate_requests, rate_per = @rate_per, rate_burst = @rate_burst, ordered = @ordered, payload = @payload, headers = @headers,
    max_attempts = @max_attempts, max_duration = @max_duration, backoff_base = @backoff_base, backoff_factor = @backoff_factor,
    backoff_cap = @backoff_cap, schedule = @schedule, failure_threshold = @failure_threshold, cooldown = @cooldown, max_cooldown = @max_cooldown,
    key_sealed = @key_sealed, key_fingerprint = @key_fingerprint, key_expires_at = @key_expires_at
WHERE endpoint_id = @endpoint_id
RETURNING ` + endpointColumns

const insertLane = `
INSERT INTO postrider.lane (endpoint_id, version, ordered, max_inflight, rate, burst, threshold, cooldown_min, cooldown_max, max_duration, paused, blocked)
VALUES (@endpoint_id, @version, @ordered, @max_concurrency, @rate, @burst, @failure_threshold, @cooldown, @max_cooldown, @max_duration, @paused, @blocked)
RETURNING lane_id`

// A changed version clears the probe and makes an open circuit half open: what the change mends is found out at once. A
// changed rate keeps the tokens that there are: token_at as it stands would make a lane that had one request an hour wait
// out that hour, and turn the seconds that a slow one was idle for into a fast one's full burst, right after its last
// request. A changed generation is what a receiver that answered 410 may be tried again for; a rotated key is not. Ages count anew from the
// end of a hold.
const updateLane = `
UPDATE postrider.lane l SET version = @version, due_at = ` + turnAfterHold + `, ordered = @ordered, max_inflight = @max_concurrency,
    token_at = CASE WHEN token_at IS NOT NULL AND rate <> @rate::float8 THEN
                         now() + (greatest(token_at, now() - (burst - 1) / rate * interval '1 s') - now()) * (rate / @rate::float8) + interval '1 us'
                    WHEN rate IS NULL THEN least(token_at, now() + interval '1 s' / @rate::float8)
                    ELSE token_at END,
    rate = @rate, burst = @burst, threshold = @failure_threshold, cooldown_min = @cooldown, cooldown_max = @max_cooldown,
    max_duration = @max_duration, paused = @paused, blocked = @blocked,
    gone_at = CASE WHEN @respecified THEN NULL ELSE gone_at END,
    resumed_at = CASE WHEN (paused OR blocked OR gone_at IS NOT NULL)
                       AND NOT (@paused OR @blocked OR (gone_at IS NOT NULL AND NOT @respecified)) THEN now() ELSE resumed_at END,
    probe_token = NULL,
    open_until = least(open_until, CASE WHEN open_until IS NOT NULL THEN now() END)
WHERE lane_id = @lane_id`

const (
	setLane    = `UPDATE postrider.endpoint SET lane_id = $2 WHERE endpoint_id = $1`
	cancelLane = `UPDATE postrider.lane SET cancelled_at = now() WHERE lane_id = $1 AND cancelled_at IS NULL`
)

// The version starts at the clock, so that a namespace that was forgotten and told of again never repeats one.
const raiseNamespace = `
INSERT INTO postrider.namespace_version AS v (namespace, uid, version) VALUES ($1, $2, (extract(epoch FROM clock_timestamp()) * 1e6)::bigint)
ON CONFLICT (namespace) DO UPDATE SET version = v.version + 1, uid = excluded.uid`

// ApplyEndpoint writes a row, its lane and, where matching is concerned, the namespace's version in one transaction.
//
// ErrConflict: the row is not at c.IfVersion, or the namespace has another uid; read again and decide anew. ErrStale: the row holds a newer generation of
// the same object; nothing is to be done.
func (s *Store) ApplyEndpoint(ctx context.Context, c EndpointChange) (Endpoint, error) {
	var applied Endpoint
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, liveEndpoint+` FOR UPDATE`, c.Namespace, c.Name)
		if err != nil {
			return err
		}
		old, err := oneEndpoint(rows, c.Namespace, c.Name)
		switch {
		case errors.Is(err, ErrNotFound) && c.IfVersion != 0:
			return ErrConflict
		case errors.Is(err, ErrNotFound):
			applied, err = createEndpoint(ctx, tx, c)
			return err
		case err != nil:
			return err
		case old.UID == c.UID && old.Generation > c.Generation:
			return ErrStale
		case old.Version != c.IfVersion:
			return ErrConflict
		}
		applied, err = changeEndpoint(ctx, tx, old, c)
		return err
	})
	if isUnique(err) {
		err = ErrConflict // another one made the row meanwhile
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("apply endpoint %s/%s: %w", c.Namespace, c.Name, err)
	}
	return applied, nil
}

func createEndpoint(ctx context.Context, tx pgx.Tx, c EndpointChange) (Endpoint, error) {
	rows, err := tx.Query(ctx, insertEndpoint, c.args())
	if err != nil {
		return Endpoint{}, err
	}
	e, err := oneEndpoint(rows, c.Namespace, c.Name)
	if err != nil {
		return Endpoint{}, err
	}
	if c.Spec.State != Disabled {
		if e.LaneID, err = openLane(ctx, tx, e); err != nil {
			return Endpoint{}, err
		}
	}
	return e, raise(ctx, tx, c)
}

// raise raises the namespace's version. It does not change its uid, which is RecordNamespace's to do: a writer that still
// believes in an earlier namespace of the same name must not bring it back.
func raise(ctx context.Context, tx pgx.Tx, c EndpointChange) error {
	tag, err := tx.Exec(ctx, raiseNamespace+` WHERE v.uid = excluded.uid`, c.Namespace, c.NamespaceUID)
	if err == nil && tag.RowsAffected() == 0 {
		return ErrConflict
	}
	return err
}

func changeEndpoint(ctx context.Context, tx pgx.Tx, old Endpoint, c EndpointChange) (Endpoint, error) {
	args := c.args()
	args["endpoint_id"] = old.ID
	rows, err := tx.Query(ctx, updateEndpoint, args)
	if err != nil {
		return Endpoint{}, err
	}
	e, err := oneEndpoint(rows, c.Namespace, c.Name)
	if err != nil {
		return Endpoint{}, err
	}
	switch enabled := c.Spec.State != Disabled; {
	case enabled && old.LaneID == 0:
		e.LaneID, err = openLane(ctx, tx, e)
	case enabled:
		lane := laneArgs(e)
		lane["respecified"] = old.Generation != c.Generation || old.UID != c.UID
		_, err = tx.Exec(ctx, updateLane, lane)
	case old.LaneID != 0:
		// What waits in the lane is cancelled with it; a later enabling gets a new lane, so it cannot revive.
		e.LaneID = 0
		if _, err = tx.Exec(ctx, cancelLane, old.LaneID); err == nil {
			_, err = tx.Exec(ctx, setLane, e.ID, nil)
		}
	}
	if err != nil {
		return Endpoint{}, err
	}
	if e.LaneID != old.LaneID || e.Spec.Ordered != old.Spec.Ordered || e.NamespaceUID != old.NamespaceUID ||
		!slices.Equal(e.Spec.EventTypes, old.Spec.EventTypes) {
		err = raise(ctx, tx, c)
	}
	return e, err
}

func openLane(ctx context.Context, tx pgx.Tx, e Endpoint) (lane int64, err error) {
	if err := tx.QueryRow(ctx, insertLane, laneArgs(e)).Scan(&lane); err != nil {
		return 0, err
	}
	_, err = tx.Exec(ctx, setLane, e.ID, lane)
	return lane, err
}

func (c EndpointChange) args() pgx.NamedArgs {
	p := &c.Spec
	args := pgx.NamedArgs{
		"public_id": c.PublicID, "namespace": c.Namespace, "name": c.Name, "namespace_uid": c.NamespaceUID, "uid": c.UID,
		"generation": c.Generation, "hold_reason": nil, "state": p.State, "url": p.URL, "event_types": p.EventTypes,
		"timeout": p.Timeout, "max_concurrency": p.MaxConcurrency, "rate_requests": nil, "rate_per": nil, "rate_burst": nil,
		"ordered": p.Ordered, "payload": p.Payload, "headers": p.Headers, "max_attempts": p.MaxAttempts, "max_duration": p.MaxDuration,
		"backoff_base": p.BackoffBase, "backoff_factor": p.BackoffFactor, "backoff_cap": p.BackoffCap, "schedule": p.Schedule,
		"failure_threshold": p.FailureThreshold, "cooldown": p.Cooldown, "max_cooldown": p.MaxCooldown,
	}
	if c.HoldReason != "" {
		args["hold_reason"] = c.HoldReason
	}
	if r := p.Rate; r != nil {
		args["rate_requests"], args["rate_per"], args["rate_burst"] = r.Requests, r.Per, r.Burst
	}
	sealed, fingerprints, expiries := make([][]byte, len(c.Keys)), make([]string, len(c.Keys)), make([]*time.Time, len(c.Keys))
	for i, k := range c.Keys {
		sealed[i], fingerprints[i] = k.Sealed, k.Fingerprint
		if !k.ExpiresAt.IsZero() {
			expiries[i] = &k.ExpiresAt
		}
	}
	args["key_sealed"], args["key_fingerprint"], args["key_expires_at"] = sealed, fingerprints, expiries
	return args
}

func laneArgs(e Endpoint) pgx.NamedArgs {
	p := &e.Spec
	args := pgx.NamedArgs{
		"endpoint_id": e.ID, "lane_id": e.LaneID, "version": e.Version, "ordered": p.Ordered, "max_concurrency": p.MaxConcurrency,
		"rate": nil, "burst": 1, "failure_threshold": p.FailureThreshold, "cooldown": p.Cooldown, "max_cooldown": p.MaxCooldown,
		"max_duration": p.MaxDuration, "paused": p.State == Paused, "blocked": e.HoldReason != "",
	}
	if r := p.Rate; r != nil {
		args["rate"], args["burst"] = float64(r.Requests)/r.Per.Seconds(), r.Burst
	}
	return args
}

// A tombstoned row keeps what its history needs, and no secret.
const tombstone = `
UPDATE postrider.endpoint e SET tombstoned_at = now(), version = e.version + 1, lane_id = NULL,
    key_sealed = '{}', key_fingerprint = '{}', key_expires_at = '{}', headers = NULL
FROM (SELECT endpoint_id, lane_id FROM postrider.endpoint
      WHERE namespace = $1 AND name = $2 AND uid = $3 AND tombstoned_at IS NULL FOR UPDATE) old
WHERE e.endpoint_id = old.endpoint_id
RETURNING old.lane_id, e.namespace_uid`

// TombstoneEndpoint gives a row up because its object is gone: it gets no more events, and what waits is cancelled.
// False: there is no live row of that uid.
func (s *Store) TombstoneEndpoint(ctx context.Context, namespace, name, uid string) (bool, error) {
	found := false
	err := s.inTx(ctx, func(tx pgx.Tx) error {
		var lane *int64
		var namespaceUID string
		err := tx.QueryRow(ctx, tombstone, namespace, name, uid).Scan(&lane, &namespaceUID)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		if lane == nil {
			return nil
		}
		if _, err := tx.Exec(ctx, cancelLane, *lane); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE postrider.namespace_version SET version = version + 1 WHERE namespace = $1 AND uid = $2`, namespace, namespaceUID)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("tombstone endpoint %s/%s: %w", namespace, name, err)
	}
	return found, nil
}

// RecordNamespace notes the uid of a namespace that exists. What belongs to an earlier namespace of the same name stays
// with the earlier uid, and is matched no more.
func (s *Store) RecordNamespace(ctx context.Context, name, uid string) error {
	if _, err := s.pool.Exec(ctx, raiseNamespace+` WHERE v.uid <> excluded.uid`, name, uid); err != nil {
		return fmt.Errorf("record namespace %s: %w", name, err)
	}
	return nil
}

// ForgetNamespace tombstones the endpoints of a namespace that is gone and drops its row. A namespace of the same name
// and another uid is left alone.
func (s *Store) ForgetNamespace(ctx context.Context, name, uid string) (tombstoned int, err error) {
	rows, err := s.pool.Query(ctx, `SELECT name, uid FROM postrider.endpoint
		WHERE namespace = $1 AND namespace_uid = $2 AND tombstoned_at IS NULL ORDER BY name`, name, uid)
	if err != nil {
		return 0, fmt.Errorf("forget namespace %s: %w", name, err)
	}
	type object struct{ Name, UID string }
	objects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[object])
	if err != nil {
		return 0, fmt.Errorf("forget namespace %s: %w", name, err)
	}
	for _, o := range objects {
		found, err := s.TombstoneEndpoint(ctx, name, o.Name, o.UID)
		if err != nil {
			return tombstoned, err
		}
		if found {
			tombstoned++
		}
	}
	if _, err := s.pool.Exec(ctx, `DELETE FROM postrider.namespace_version WHERE namespace = $1 AND uid = $2`, name, uid); err != nil {
		return tombstoned, fmt.Errorf("forget namespace %s: %w", name, err)
	}
	return tombstoned, nil
}

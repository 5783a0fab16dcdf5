-- The first schema: who owns the database, the endpoints, the queue, the events and what became of them.
-- store/doc.go explains how the tables work together. This file never changes once released.

-- +goose Up

-- One installation owns a database.
CREATE TABLE postrider.installation (
    one         boolean     PRIMARY KEY DEFAULT true CHECK (one),
    namespace   text        NOT NULL,           -- of the release
    release     text        NOT NULL,
    cluster_uid text        NOT NULL DEFAULT '', -- uid of kube-system; '' until a part that knows it has started
    claimed_at  timestamptz NOT NULL DEFAULT now()
);

-- Which binaries may run on this schema: those that know a schema at least as new as oldest_binary.
CREATE TABLE postrider.schema_compat (
    one           boolean PRIMARY KEY DEFAULT true CHECK (one),
    oldest_binary bigint  NOT NULL
);
INSERT INTO postrider.schema_compat (oldest_binary) VALUES (1);

-- What each applied migration looked like, so that an edited one is noticed.
CREATE TABLE postrider.migration_checksum (
    version bigint PRIMARY KEY,
    sha256  bytea  NOT NULL
);

-- Per namespace: its uid, and the version of its matching table. Whoever changes which events an endpoint
-- gets raises the version in the same transaction; an accept checks it in its own snapshot.
CREATE TABLE postrider.namespace_version (
    namespace text   PRIMARY KEY,
    uid       text   NOT NULL,
    version   bigint NOT NULL DEFAULT 1
);

-- One row per WebhookEndpoint. Cold: read when its version is newer than what a dispatcher remembers.
CREATE TABLE postrider.endpoint (
    endpoint_id       bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    public_id         uuid        NOT NULL UNIQUE,
    namespace         text        NOT NULL,
    name              text        NOT NULL,
    namespace_uid     text        NOT NULL,
    uid               text        NOT NULL,
    generation        bigint      NOT NULL,
    version           bigint      NOT NULL DEFAULT 1,  -- raised with every change that a dispatcher must see
    lane_id           bigint,                          -- of the present enabling; null: disabled
    hold_reason       text,                            -- why it is not Ready; null: it is
    state             text        NOT NULL CHECK (state IN ('Enabled', 'Paused', 'Disabled')),
    url               text        NOT NULL,
    event_types       text[]      NOT NULL,
    timeout           interval    NOT NULL,
    max_concurrency   int         NOT NULL,
    rate_requests     int,                             -- null: no limit
    rate_per          interval,
    rate_burst        int,
    ordered           boolean     NOT NULL,
    payload           text        NOT NULL,
    headers           bytea,                           -- sealed; null: none
    max_attempts      int         NOT NULL,
    max_duration      interval    NOT NULL,
    backoff_base      interval    NOT NULL,
    backoff_factor    int         NOT NULL,
    backoff_cap       interval    NOT NULL,
    schedule          interval[],                      -- null: backoff
    failure_threshold int         NOT NULL,
    cooldown          interval    NOT NULL,
    max_cooldown      interval    NOT NULL,
    -- Signing keys, newest first, sealed; one expiry each, null: none.
    key_sealed        bytea[]     NOT NULL DEFAULT '{}',
    key_fingerprint   text[]      NOT NULL DEFAULT '{}',
    key_expires_at    timestamptz[] NOT NULL DEFAULT '{}',
    adoptable         boolean     NOT NULL DEFAULT false, -- taken over: may be adopted under another namespace uid
    created_at        timestamptz NOT NULL DEFAULT now(),
    tombstoned_at     timestamptz,
    CHECK (cardinality(key_sealed) <= 10
       AND cardinality(key_sealed) = cardinality(key_fingerprint)
       AND cardinality(key_sealed) = cardinality(key_expires_at))
);
CREATE UNIQUE INDEX endpoint_name ON postrider.endpoint (namespace, name) WHERE tombstoned_at IS NULL;

-- What the last attempts came to: one small write per endpoint and completion batch. updated_at marks it dirty
-- for the status feed; no index names it, so the writes stay HOT.
CREATE TABLE postrider.endpoint_status (
    endpoint_id          bigint      PRIMARY KEY,
    last_success_at      timestamptz,
    last_failure_at      timestamptz,
    last_failure_event   uuid,
    last_failure_status  int,
    last_failure_reason  text,
    last_failure_message text,
    failures             int         NOT NULL DEFAULT 0, -- consecutive
    updated_at           timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- Hot scheduling state of one enabling of one endpoint. The row is the mutex of its queue.
CREATE TABLE postrider.lane (
    lane_id      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id  bigint      NOT NULL,
    version      bigint      NOT NULL,                    -- endpoint.version these limits came from
    ordered      boolean     NOT NULL,
    due_at       timestamptz NOT NULL DEFAULT 'infinity', -- when an unclaimed delivery falls due; infinity: none known
    inflight     int         NOT NULL DEFAULT 0,          -- deliveries with a claim token, ended leases included
    max_inflight int         NOT NULL CHECK (max_inflight > 0),
    lease_end    timestamptz,                             -- no lease of this lane ends earlier; null: nothing in flight
    rate         float8      CHECK (rate > 0),            -- requests a second; null: no limit
    burst        int         NOT NULL DEFAULT 1 CHECK (burst > 0),
    token_at     timestamptz,                             -- when the next token is there; this alone is the bucket
    threshold    int         NOT NULL,                    -- consecutive failures that open the circuit
    fails        int         NOT NULL DEFAULT 0,
    open_until   timestamptz,                             -- null: closed; past: half open; while a probe flies: its lease end
    probe_token  uuid,                                    -- claim token of the probe in flight
    cooldown     interval    NOT NULL DEFAULT '0',        -- the running one; 0 while closed
    cooldown_min interval    NOT NULL,
    cooldown_max interval    NOT NULL,
    max_duration interval    NOT NULL,                    -- for the backlog of an open circuit, which dies of age
    paused       boolean     NOT NULL DEFAULT false,
    blocked      boolean     NOT NULL DEFAULT false,      -- the endpoint is not Ready
    gone_at      timestamptz,                             -- the receiver answered 410
    cancelled_at timestamptz,
    resumed_at   timestamptz,                             -- when the last hold ended; ages count from here at the earliest
    -- When a claimer should look. Each hold is its own column, so lifting one neither lifts nor keeps another,
    -- and no statement computes a hold: Postgres does, at every write.
    ready_at     timestamptz NOT NULL GENERATED ALWAYS AS (greatest(
                     least(due_at, lease_end),
                     CASE WHEN rate IS NOT NULL THEN token_at END,
                     open_until,
                     CASE WHEN inflight >= max_inflight THEN lease_end END,
                     CASE WHEN paused OR blocked OR gone_at IS NOT NULL OR cancelled_at IS NOT NULL
                          THEN timestamptz 'infinity' END)) STORED
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, vacuum_truncate = off);
CREATE INDEX lane_ready ON postrider.lane (ready_at);
CREATE INDEX lane_endpoint ON postrider.lane (endpoint_id);

-- Live work only. No state column: claimed = claim_token set, follower of a key = available_at infinity.
-- No index names a column that a claim changes, so claims stay HOT; half-empty pages leave room for that.
CREATE TABLE postrider.delivery (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lane_id      bigint      NOT NULL,
    endpoint_id  bigint      NOT NULL,
    event_id     uuid        NOT NULL,
    claim_token  uuid,
    available_at timestamptz NOT NULL,
    lease_until  timestamptz,
    accepted_at  timestamptz NOT NULL DEFAULT now(),
    attempt      int         NOT NULL DEFAULT 0,
    replay_no    int         NOT NULL DEFAULT 0,
    ordering_key text
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, vacuum_truncate = off);
-- The predicate always holds. It keeps the planner from looking up an id here, by reading the whole index: over a table
-- that was vacuumed while empty it takes that for as cheap as the primary key.
CREATE INDEX delivery_due ON postrider.delivery (lane_id, available_at, id) WHERE lane_id IS NOT NULL;
-- The first entry of a key answers both questions of a promotion: has it a visible row, and if not, which is next.
CREATE INDEX delivery_key ON postrider.delivery (lane_id, ordering_key, available_at, id) WHERE ordering_key IS NOT NULL;

-- What producers posted, by day of its id: a UUIDv7 of Postgres' clock.
CREATE TABLE postrider.event (
    id            uuid     PRIMARY KEY,
    namespace     text     NOT NULL,
    namespace_uid text     NOT NULL,
    type          text     NOT NULL,
    content_type  text     NOT NULL,
    body          bytea    NOT NULL,
    headers       jsonb,
    ordering_key  text,
    traceparent   text,
    endpoint_ids  bigint[] NOT NULL  -- whom it was fanned out to
) PARTITION BY RANGE (id);
ALTER TABLE postrider.event ALTER body SET STORAGE EXTERNAL;

-- Bodies that outlive their day: of dead letters, and of live deliveries when the day is dropped.
CREATE TABLE postrider.pinned_event (
    id            uuid     PRIMARY KEY,
    namespace     text     NOT NULL,
    namespace_uid text     NOT NULL,
    type          text     NOT NULL,
    content_type  text     NOT NULL,
    body          bytea    NOT NULL,
    headers       jsonb,
    ordering_key  text,
    traceparent   text,
    endpoint_ids  bigint[] NOT NULL
);
ALTER TABLE postrider.pinned_event ALTER body SET STORAGE EXTERNAL;

-- Insert-only history, by day of the attempt's end.
CREATE TABLE postrider.attempt (
    at          timestamptz NOT NULL,
    event_id    uuid        NOT NULL,
    endpoint_id bigint      NOT NULL,
    replay_no   int         NOT NULL,
    number      int         NOT NULL,
    outcome     text        NOT NULL,  -- delivered, retry, dead
    status      int,                   -- of the response; null: there was none
    reason      text,
    duration_ms int         NOT NULL,
    retry_at    timestamptz,           -- null: no further attempt
    response    bytea                  -- the first bytes of it
) PARTITION BY RANGE (at);
CREATE INDEX attempt_event ON postrider.attempt (event_id);

CREATE TABLE postrider.dead_letter (
    id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    endpoint_id bigint      NOT NULL,
    event_id    uuid        NOT NULL,
    replay_no   int         NOT NULL,
    reason      text        NOT NULL,
    status      int,
    attempts    int         NOT NULL,
    accepted_at timestamptz NOT NULL,
    died_at     timestamptz NOT NULL DEFAULT now(),
    replayed_at timestamptz
);
CREATE INDEX dead_letter_endpoint ON postrider.dead_letter (endpoint_id, id);
CREATE INDEX dead_letter_event ON postrider.dead_letter (event_id);
CREATE INDEX dead_letter_died ON postrider.dead_letter (died_at);

-- By hash of the key and never by time, or uniqueness would silently end at midnight.
CREATE TABLE postrider.idempotency (
    namespace     text        NOT NULL,
    namespace_uid text        NOT NULL,
    key           text        NOT NULL,
    event_id      uuid        NOT NULL,
    expires_at    timestamptz NOT NULL,
    PRIMARY KEY (key, namespace, namespace_uid)
) PARTITION BY HASH (key);
CREATE INDEX idempotency_expires ON postrider.idempotency (expires_at);
CREATE TABLE postrider.idempotency_0 PARTITION OF postrider.idempotency FOR VALUES WITH (MODULUS 8, REMAINDER 0);
CREATE TABLE postrider.idempotency_1 PARTITION OF postrider.idempotency FOR VALUES WITH (MODULUS 8, REMAINDER 1);
CREATE TABLE postrider.idempotency_2 PARTITION OF postrider.idempotency FOR VALUES WITH (MODULUS 8, REMAINDER 2);
CREATE TABLE postrider.idempotency_3 PARTITION OF postrider.idempotency FOR VALUES WITH (MODULUS 8, REMAINDER 3);
CREATE TABLE postrider.idempotency_4 PARTITION OF postrider.idempotency FOR VALUES WITH (MODULUS 8, REMAINDER 4);
CREATE TABLE postrider.idempotency_5 PARTITION OF postrider.idempotency FOR VALUES WITH (MODULUS 8, REMAINDER 5);
CREATE TABLE postrider.idempotency_6 PARTITION OF postrider.idempotency FOR VALUES WITH (MODULUS 8, REMAINDER 6);
CREATE TABLE postrider.idempotency_7 PARTITION OF postrider.idempotency FOR VALUES WITH (MODULUS 8, REMAINDER 7);

-- UUIDv7 by Postgres' clock (RFC 9562, section 5.7; built in from Postgres 18 on).
-- +goose StatementBegin
CREATE FUNCTION postrider.uuid7() RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT encode(set_bit(set_bit(overlay(uuid_send(gen_random_uuid())
        PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
        52, 1), 53, 1), 'hex')::uuid
$$;
-- +goose StatementEnd

-- The least id that uuid7 can make at a time: the bound of a day's partition.
-- +goose StatementBegin
CREATE FUNCTION postrider.uuid7_floor(at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE STRICT AS $$
    SELECT encode(substring(int8send((extract(epoch FROM at) * 1000)::bigint) FROM 3) || '\x00000000000000000000'::bytea, 'hex')::uuid
$$;
-- +goose StatementEnd

-- Makes the partitions of event and attempt for some days, those that are not there yet, and says how many it made.
-- Each is made apart and then attached, which lets readers and writers of the parents go on.
-- +goose StatementBegin
CREATE FUNCTION postrider.make_days(first date, days int) RETURNS int LANGUAGE plpgsql
SET search_path = pg_catalog SET lock_timeout = '3s' AS $$
DECLARE
    d    date;
    made int := 0;
    name text;
    low  timestamptz;
    high timestamptz;
BEGIN
    FOR i IN 0 .. days - 1 LOOP
        d := first + i;
        low := d::timestamp AT TIME ZONE 'UTC';
        high := (d + 1)::timestamp AT TIME ZONE 'UTC';
        name := 'event_' || to_char(d, 'YYYYMMDD');
        IF to_regclass('postrider.' || name) IS NULL THEN
            EXECUTE format('CREATE TABLE postrider.%I (LIKE postrider.event INCLUDING ALL)', name);
            EXECUTE format('ALTER TABLE postrider.event ATTACH PARTITION postrider.%I FOR VALUES FROM (%L) TO (%L)',
                           name, postrider.uuid7_floor(low), postrider.uuid7_floor(high));
            made := made + 1;
        END IF;
        name := 'attempt_' || to_char(d, 'YYYYMMDD');
        IF to_regclass('postrider.' || name) IS NULL THEN
            EXECUTE format('CREATE TABLE postrider.%I (LIKE postrider.attempt INCLUDING ALL)', name);
            EXECUTE format('ALTER TABLE postrider.attempt ATTACH PARTITION postrider.%I FOR VALUES FROM (%L) TO (%L)',
                           name, low, high);
            made := made + 1;
        END IF;
    END LOOP;
    RETURN made;
END
$$;
-- +goose StatementEnd
SELECT postrider.make_days((now() AT TIME ZONE 'UTC')::date - 1, 5);

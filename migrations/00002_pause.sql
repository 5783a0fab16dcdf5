-- Pausing: an operator holds all sending of the installation, or of a namespace, and lifts the hold again.
--
-- What it costs: two small tables, and on lane a column with a constant default and a trigger. Nothing is rewritten and
-- no row is read, however many lanes there are; the exclusive lock on lane lasts for the rest of this transaction, some
-- milliseconds. It is waited for 3 s at most, since claims queue behind whoever waits: a backup or another long
-- transaction that has read lane makes this migration fail then, and it is to be run again.
--
-- The previous release runs on: it knows nothing of these columns, and the trigger has it respect the pause of a namespace,
-- in lanes that it makes too. The pause of the installation it does not see, since its claims do not ask.

-- +goose Up

SET LOCAL lock_timeout = '3s';

-- Who is paused. Rows stay after a resume, since ages count from it.
CREATE TABLE postrider.pause (
    namespace  text        PRIMARY KEY,            -- '': the whole installation
    paused_at  timestamptz,                        -- null: it is not paused
    reason     text        NOT NULL DEFAULT '',    -- the operator's words
    resumed_at timestamptz,                        -- when the last pause ended
    change     bigint      NOT NULL DEFAULT 1,     -- raised by each pause and resume: whoever still works on an earlier one stops
    settled    boolean     NOT NULL DEFAULT false  -- the namespace's lanes are as this row says
);
INSERT INTO postrider.pause (namespace, settled) VALUES ('', true); -- a claim looks at this one row

-- The tokens that the installation was started paused for, each once.
CREATE TABLE postrider.start_paused (
    token   text        PRIMARY KEY,
    used_at timestamptz NOT NULL DEFAULT now()
);

-- lane.ready_at names the column paused, and cannot be changed without writing the whole table anew. So paused becomes the
-- sum of two holds: what a statement writes into it is the endpoint's own state, and the trigger adds the namespace's.
-- +goose StatementBegin
CREATE FUNCTION postrider.hold_lane() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        -- A pause is written, then waits for this lock, then looks for lanes: it finds this lane, or we find the pause.
        PERFORM pg_advisory_xact_lock_shared(123623980663041);
        NEW.namespace_paused := EXISTS (
            SELECT FROM postrider.pause p JOIN postrider.endpoint e ON e.namespace = p.namespace
            WHERE e.endpoint_id = NEW.endpoint_id AND p.paused_at IS NOT NULL);
    END IF;
    NEW.paused := NEW.paused OR NEW.namespace_paused;
    RETURN NEW;
END
$$;
-- +goose StatementEnd

ALTER TABLE postrider.lane ADD COLUMN namespace_paused boolean NOT NULL DEFAULT false;
-- Only statements that write one of these columns pay for it; claims and completions do not.
CREATE TRIGGER lane_hold BEFORE INSERT OR UPDATE OF paused, namespace_paused ON postrider.lane
    FOR EACH ROW EXECUTE FUNCTION postrider.hold_lane();

-- What a claim needs to stay fast while an old snapshot is held: a backup, a report, a transaction that somebody forgot.
-- Dead versions of rows cannot be removed then, and whoever looks a row up by an index walks over all of them.
--
-- What it costs: columns with constant defaults, and indexes on lane and endpoint_status, which have one row for each
-- endpoint: 100,000 of them take about a second, in which claims wait. Long transactions that hold one of the tables make
-- it fail after 3 s; it is to be run again then.
--
-- The previous release runs on. It does not write the new columns: what it leaves out costs time under a held snapshot,
-- and a claim of this release finds what it accepted late by the sweep.

-- +goose Up

SET LOCAL lock_timeout = '3s';

-- moved_at: when the row last got new index entries on purpose, in steps; it never falls. So the version that lives is the
-- last of its lane in the index, and a lookup that goes backwards meets none of the dead ones of earlier steps. Within a
-- step updates may be HOT, as far as ready_at lets them.
--
-- first_at: no delivery of the lane that is to be claimed, or is claimed, became available earlier, but for those of an
-- accept that committed late. Who looks for deliveries begins here, and not at the dead entries before.
ALTER TABLE postrider.lane
    ADD COLUMN moved_at timestamptz NOT NULL DEFAULT '-infinity',
    ADD COLUMN first_at timestamptz NOT NULL DEFAULT '-infinity';
CREATE INDEX lane_latest ON postrider.lane (lane_id, moved_at);
-- In its place: lane_id is an identity that nothing else assigns, and two indexes for it would be written at each claim.
ALTER TABLE postrider.lane DROP CONSTRAINT lane_pkey;

ALTER TABLE postrider.endpoint_status ADD COLUMN moved_at timestamptz NOT NULL DEFAULT '-infinity';
CREATE INDEX endpoint_status_latest ON postrider.endpoint_status (endpoint_id, moved_at);

-- From now on every endpoint has its status row from the start: completions lock their rows in order before they write any,
-- which a row that is yet to be inserted would escape.
-- +goose StatementBegin
CREATE FUNCTION postrider.begin_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO postrider.endpoint_status (endpoint_id) VALUES (NEW.endpoint_id) ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
-- +goose StatementEnd
CREATE TRIGGER endpoint_status AFTER INSERT ON postrider.endpoint FOR EACH ROW EXECUTE FUNCTION postrider.begin_status();
INSERT INTO postrider.endpoint_status (endpoint_id) SELECT endpoint_id FROM postrider.endpoint ON CONFLICT DO NOTHING;

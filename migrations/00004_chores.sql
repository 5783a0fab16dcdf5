-- What the chores look for every second or so, cancelled lanes and open circuits, is found without reading every lane: with
-- 100,000 of them that is much, and under a held snapshot it is every version that each of them had.
--
-- What it costs: two small indexes, whose entries are only of such lanes. Making them reads the lanes once, in which claims
-- wait: 100,000 take about 50 ms. Long transactions that hold the table make it fail after 3 s; it is to be run again then.
--
-- The previous release runs on.

-- +goose Up

SET LOCAL lock_timeout = '3s';

CREATE INDEX lane_cancelled ON postrider.lane (lane_id) WHERE cancelled_at IS NOT NULL;
CREATE INDEX lane_open ON postrider.lane (lane_id) WHERE open_until IS NOT NULL;

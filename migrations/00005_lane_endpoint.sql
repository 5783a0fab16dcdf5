-- One index less to write whenever a lane changes, some three times for each delivery. Which lane an endpoint has is written in
-- endpoint; only those that it had before, cancelled ones, are to be looked up by it.
--
-- What it costs: reading the lanes once, in which claims wait: 100,000 take about 50 ms. Long transactions that hold the table
-- make it fail after 3 s, in which claims wait too; it is to be run again then.
--
-- The previous release runs on, but its controller reads all lanes for each endpoint whose pending deliveries it counts. With a
-- thousand endpoints nobody notices; with 100,000 it does not get done, and pendingCount stands still until the release is back.

-- +goose Up

SET LOCAL lock_timeout = '3s';

-- First, since it takes the greater lock: a claim that holds the lesser one, and is about to ask for more, would deadlock with
-- whoever does so too.
DROP INDEX postrider.lane_endpoint;
CREATE INDEX lane_left ON postrider.lane (endpoint_id) WHERE cancelled_at IS NOT NULL;

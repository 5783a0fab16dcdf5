package store

// How rows that are written all the time are found while a held snapshot keeps all their dead versions.
//
// An index lookup walks over the entries of dead versions until it meets the living one; with a backup under way these are
// thousands for each lane after a minute. So lane and endpoint_status have an index that ends in moved_at, which only rises:
// the living version is the last entry, and whoever goes backwards meets it first. It rises in steps, for between two of
// them an update may be HOT and make no entry at all. Having found the row, a statement that holds its lock updates it by
// ctid. The rows of the queue itself are bounded by lane.first_at, the ready lanes by readyCursor.

// moved raises the moved_at of a row l by at most a step.
const moved = `moved_at = greatest(l.moved_at, date_bin('250 ms', now(), timestamptz '2000-01-01 00:00:00Z'))`

// latestLanes are the lanes $1, each once, as l; l.tid is its ctid.
const (
	latestLanes = latestOf + `$1::bigint[]` + asLanes

	latestOf = `(SELECT DISTINCT unnest(`
	asLanes  = `) AS lane_id) wanted
    CROSS JOIN LATERAL (SELECT *, ctid AS tid FROM postrider.lane WHERE lane_id = wanted.lane_id ORDER BY moved_at DESC LIMIT 1) l`
)

// lateCommit is how long after its beginning an accept may commit and still be found by claims without being told of:
// lane.first_at stays behind by as much. The touch of a later one lowers first_at.
const lateCommit = `interval '100 ms'`

// searchFrom bounds the search for deliveries of a lane l. Not by first_at alone: a clock that was set back would hide all.
const searchFrom = `least(l.first_at, now() - ` + lateCommit + `)`

// byKey is true of every delivery with an ordering key, and has it looked up by delivery_key: the predicate of that index
// implies the condition, which therefore costs nothing there, while elsewhere each row seems to cost what to_tsvector does.
// Without it the planner looks a key up by delivery_due wherever that is the lower tree, in a queue of 60,000 lanes with a
// delivery each for example; and then reads through all that waits in a lane for each key of it.
const byKey = `(ordering_key IS NOT NULL OR to_tsvector('simple', to_tsvector('simple', ordering_key)::text) IS NULL)`

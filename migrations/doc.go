// Package migrations holds the schema of Postrider's database: goose SQL files, embedded, applied in order.
//
// A released file never changes: its checksum is kept in the database, and an edited one refuses to run. The newest
// schema is always usable by the previous release (expand first, contract a release later), so that two versions can
// run side by side during a rolling upgrade. The package imports nothing of ours. Start at [Up] and [Check].
package migrations

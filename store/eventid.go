package store

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
)

// newEventID makes a UUIDv7 (RFC 9562, section 5.7) of a time in milliseconds since 1970.
func newEventID(ms int64) uuid.UUID {
	var id uuid.UUID
	_, _ = rand.Read(id[6:]) // never fails
	for i := range 6 {
		id[i] = byte(ms >> (40 - 8*i))
	}
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

// databaseClock follows Postgres' clock. The ids of events carry its time and not this machine's: the partitions that
// they go to are made by it. Each accept tells the time anew, so that what is followed is the clock of the server that
// answers now, whichever that is.
type databaseClock struct {
	began time.Time // carries the monotonic clock, which nobody sets

	mu    sync.Mutex
	ahead int64     // of the milliseconds since began; 0: not known yet
	seen  time.Time // when it was last set
}

func newDatabaseClock() *databaseClock { return &databaseClock{began: time.Now()} }

const tellTime = `SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint`

// now returns the time in milliseconds since 1970. It asks the database only the first time.
func (c *databaseClock) now(ctx context.Context, pool *pgxpool.Pool) (int64, error) {
	c.mu.Lock()
	ahead := c.ahead
	c.mu.Unlock()
	if ahead == 0 {
		sent, ms := time.Now(), int64(0)
		if err := pool.QueryRow(ctx, tellTime).Scan(&ms); err != nil {
			return 0, fmt.Errorf("read the database's clock: %w", err)
		}
		ahead = c.set(ms, sent)
	}
	return ahead + time.Since(c.began).Milliseconds(), nil
}

// set takes in what the clock showed in answer to a statement sent at a time. The statement was some time on its way, so
// this is more than what the clock is ahead, and the least of many is the closest. It may rise by a thousandth of the time
// that has passed, more than clocks drift, and to anything when the clock was set.
func (c *databaseClock) set(ms int64, sent time.Time) (ahead int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ahead = ms - sent.Sub(c.began).Milliseconds()
	if most := c.ahead + sent.Sub(c.seen).Milliseconds()/1000; c.ahead != 0 && ahead > most && ahead < c.ahead+clockTolerance.Milliseconds() {
		ahead = most
	}
	if ahead != c.ahead {
		c.ahead, c.seen = ahead, sent
	}
	return ahead
}

package dispatcher

import (
	"math"
	"sync/atomic"
	"time"
)

// instant is a moment of this machine's monotonic clock, counted from the start of the process. It is the only clock of
// the package, so that a wall clock that is wrong, or is set while we run, can change nothing; being no time.Time, it
// cannot be mistaken for one. What must be a point in time comes from the database (databaseTime).
type instant time.Duration

// never is before every instant.
const never = instant(math.MinInt64)

var started = time.Now()

func now() instant { return instant(time.Since(started)) }

// since is how long ago an instant was; negative for one to come.
func since(i instant) time.Duration { return time.Duration(now() - i) }

// until is how long it is to an instant; negative for a past one.
func until(i instant) time.Duration { return time.Duration(i - now()) }

func (i instant) add(d time.Duration) instant { return i + instant(d) }

// databaseTime carries a reading of the database's clock forward.
type databaseTime struct {
	at   time.Time // what the database said
	read instant   // when its answer was here: what is derived lags by that answer's way, and never leads
}

func (d databaseTime) now() time.Time { return d.at.Add(since(d.read)) }

// databaseClock is the database's time for those that have no claim at hand: the one by which certificates are valid.
type databaseClock struct{ reading atomic.Pointer[databaseTime] }

func (c *databaseClock) set(d databaseTime) { c.reading.Store(&d) }

// now is the machine's own time until there is a reading. Nothing is sent before there is.
func (c *databaseClock) now() time.Time {
	if d := c.reading.Load(); d != nil {
		return d.now()
	}
	return time.Now()
}

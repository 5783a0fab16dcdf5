package store

import (
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// readyCursor bounds the search for ready lanes, in the order of ready_at, by where the last search found the oldest of
// them. What is before the cursor nevertheless is a lane whose change committed late: so all is searched as long as that is
// quick, and else as often as takes up a hundredth of the time.
type readyCursor struct {
	mu   sync.Mutex
	from time.Time // of the database's clock
	next time.Time // when all is searched again; zero: by each claim
}

const (
	// readyMargin is how long a change of a lane may take to commit and still be found by the bounded search.
	readyMargin = 200 * time.Millisecond
	// slowSearch is what a search of all may take before the next ones are bounded, and those are bounded for searchPause
	// times what it took.
	slowSearch  = 5 * time.Millisecond
	searchPause = 100
)

// searchAll is before all of them.
var searchAll = pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true}

// begin returns from where to search. Overdue: claims' searches are bounded, and it is time to look at what they leave out.
func (c *readyCursor) begin() (from pgtype.Timestamptz, overdue bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.next.IsZero():
		return searchAll, false
	case time.Now().Before(c.next):
		return pgtype.Timestamptz{Time: c.from, Valid: true}, false
	}
	return searchAll, true
}

// searched takes in what a claim's search f.
func (c *readyCursor) searched(from pgtype.Timestamptz, f found) {
	c.mu.Lock()
	defer c.mu.Unlock()
	oldest, took := f.oldest, f.ended.Sub(f.began)
	switch slow := took > slowSearch; {
	case slow && from == searchAll:
		c.next = time.Now().Add(searchPause * took)
	case slow && f.first.Valid:
		// A lane that somebody has locked for long must not have everybody search from where it is.
		oldest = f.first
	}
	c.from = f.at.Add(-readyMargin)
	c.lower(oldest)
}

// searchedAll takes in the oldest of all ready lanes, and returns from where to search now.
func (c *readyCursor) searchedAll(took time.Duration, oldest pgtype.Timestamptz) pgtype.Timestamptz {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lower(oldest)
	if took <= slowSearch {
		c.next = time.Time{}
		return searchAll
	}
	c.next = time.Now().Add(searchPause * took)
	return pgtype.Timestamptz{Time: c.from, Valid: true}
}

func (c *readyCursor) lower(oldest pgtype.Timestamptz) {
	if oldest.Valid && oldest.InfinityModifier == pgtype.Finite && oldest.Time.Before(c.from) {
		c.from = oldest.Time
	}
}

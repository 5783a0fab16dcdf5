package dispatcher

import (
	"math"
	"sync/atomic"
	"time"
)

// slowMemory is how long an endpoint counts as slow after a request to it ran into its timeout.
const slowMemory = time.Minute

// shares keeps any receiver from taking all senders of this replica: a lane holds at most half of them, and the lanes
// whose endpoints lately ran into their timeout hold at most three quarters together.
//
// Only the claimer adds and forgets; senders count down without a lock.
type shares struct {
	senders int
	lanes   map[int64]*share
}

// share is what one lane holds of the senders.
type share struct {
	held     atomic.Int32
	timedOut atomic.Int64 // instant of the last timeout
}

func newShares(senders int) *shares {
	return &shares{senders: senders, lanes: map[int64]*share{}}
}

// take counts a claim to its lane.
func (s *shares) take(lane int64) *share {
	sh := s.lanes[lane]
	if sh == nil {
		sh = &share{}
		sh.timedOut.Store(int64(never))
		s.lanes[lane] = sh
	}
	sh.held.Add(1)
	return sh
}

// give ends a claim. The time of a timeout is kept, also when the next request succeeds: a receiver that hangs every
// other time is a slow one.
func (s *share) give(timedOut bool) {
	if timedOut {
		s.timedOut.Store(int64(now()))
	}
	s.held.Add(-1)
}

// bounds says how many deliveries the next claim may take of any lane, and of which lanes less or nothing.
func (s *shares) bounds() (perLane int, exclude []int64, caps map[int64]int) {
	at := now()
	half := max(1, s.senders/2)
	slowHeld, slow := 0, 0
	for lane, sh := range s.lanes {
		held, isSlow := int(sh.held.Load()), sh.slow(at)
		switch {
		case isSlow:
			slowHeld += held
			slow++
		case held == 0:
			delete(s.lanes, lane) // as many as were ever used would be walked at each claim
		}
	}
	room := max(1, s.senders*3/4) - slowHeld
	each := math.MaxInt
	if slow > 0 {
		each = max(1, room/slow)
	}
	for lane, sh := range s.lanes { // in random order: nobody is always the one that is left out
		may := half - int(sh.held.Load())
		if sh.slow(at) {
			may = min(may, each, room)
			room -= max(0, may)
		}
		switch {
		case may <= 0:
			exclude = append(exclude, lane)
		case may < half:
			if caps == nil {
				caps = map[int64]int{}
			}
			caps[lane] = may
		}
	}
	return half, exclude, caps
}

func (s *share) slow(at instant) bool {
	last := instant(s.timedOut.Load())
	return last != never && time.Duration(at-last) < slowMemory
}

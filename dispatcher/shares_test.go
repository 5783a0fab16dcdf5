package dispatcher

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// hold takes n senders for a lane and returns their share.
func hold(s *shares, lane int64, n int) *share {
	sh := s.take(lane)
	for range n - 1 {
		s.take(lane)
	}
	return sh
}

func TestNoEndpointHoldsMoreThanHalfOfTheSenders(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		senders int
		held    map[int64]int
		perLane int
		exclude []int64
		caps    map[int64]int
	}{
		{"nothing in flight", 8, nil, 4, nil, nil},
		{"some", 8, map[int64]int{1: 3, 2: 1}, 4, nil, map[int64]int{1: 1, 2: 3}},
		{"half", 8, map[int64]int{1: 4, 2: 1}, 4, []int64{1}, map[int64]int{2: 3}},
		{"one sender", 1, nil, 1, nil, nil},
		{"one sender, busy", 1, map[int64]int{1: 1}, 1, []int64{1}, nil},
		{"three senders", 3, map[int64]int{1: 1}, 1, []int64{1}, nil},
	} {
		s := newShares(test.senders)
		for lane, n := range test.held {
			hold(s, lane, n)
		}
		perLane, exclude, caps := s.bounds()
		if perLane != test.perLane || !slices.Equal(exclude, test.exclude) || !sameBounds(caps, test.caps) {
			t.Errorf("%s: got %d, %v, %v, want %d, %v, %v", test.name, perLane, exclude, caps, test.perLane, test.exclude, test.caps)
		}
	}
}

func sameBounds(a, b map[int64]int) bool {
	if len(a) != len(b) {
		return false
	}
	for lane, n := range a {
		if b[lane] != n {
			return false
		}
	}
	return true
}

func TestSlowEndpointsTogetherHoldAtMostThreeQuarters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShares(100)
		var slow []*share
		for lane := int64(1); lane <= 3; lane++ {
			sh := hold(s, lane, 21)
			sh.give(true) // one ran into its timeout, 20 go on
			slow = append(slow, sh)
		}
		_, exclude, caps := s.bounds()
		sum := 0
		for _, n := range caps {
			sum += n
		}
		if sum > 15 || len(exclude) > 0 || len(caps) != 3 {
			t.Errorf("60 held by three slow ones: got bounds %v and exclusions %v, want all three to get 15 more together at most", caps, exclude)
		}
		hold(s, 1, 15)
		if _, exclude, caps = s.bounds(); len(exclude) != 3 {
			t.Errorf("75 held by three slow ones: got bounds %v and exclusions %v, want all three excluded", caps, exclude)
		}
		// A healthy one gets its half all the same.
		hold(s, 4, 1)
		if _, _, caps = s.bounds(); caps[4] != 49 {
			t.Errorf("bound of the healthy one: got %d, want 49", caps[4])
		}
		// Many slow ones, little room: no more of them than there is room for.
		for lane := int64(10); lane < 60; lane++ {
			s.take(lane).give(true)
		}
		slow[0].give(false)
		slow[0].give(false)
		_, exclude, caps = s.bounds()
		if delete(caps, 4); len(caps) != 2 || len(exclude) != 51 {
			t.Errorf("room for two among 53 slow ones: got bounds %v and %d exclusions, want 2 and 51", caps, len(exclude))
		}
		// What was slow long ago is not slow, and is forgotten where nothing is in flight.
		time.Sleep(slowMemory)
		if _, exclude, _ = s.bounds(); len(exclude) != 0 || len(s.lanes) != 4 {
			t.Errorf("a minute later: got exclusions %v and %d lanes, want none and 4", exclude, len(s.lanes))
		}
	})
}

package check

import (
	"slices"
	"time"
)

// sequence is what one endpoint gets of one ordering key.
type sequence struct{ endpoint, key string }

// progress is how far a sequence has come: all before next are delivered, or dead.
type progress struct {
	posts []*post // acknowledged ones that the endpoint is owed, as accepted
	next  int
}

// expect lays out the order of each key. Load posts the events of a key one after the other, so the order in which they were
// accepted is known. A post whose answer is not known has no place in it: it may be accepted late, or never.
func (c *checker) expect() {
	for _, p := range c.order {
		if p.sending.Key == "" || p.accepted.Kind == "" {
			continue
		}
		for _, endpoint := range p.accepted.Endpoints {
			if !slices.Contains(c.options.Ordered, endpoint) && !c.orderedSince(endpoint, p.sending.At) {
				continue
			}
			s := sequence{endpoint, p.sending.Key}
			if c.sequences[s] == nil {
				c.sequences[s] = &progress{}
			}
			c.sequences[s].posts = append(c.sequences[s].posts, p)
		}
	}
	for _, s := range c.sequences {
		slices.SortStableFunc(s.posts, func(a, b *post) int { return a.sending.Number - b.sending.Number })
	}
	c.report.Keys = len(c.sequences)
}

// inOrder looks at the first request for a delivery: all events of the key that were accepted earlier must have been
// delivered by then. Later requests for it are repeats of what was sent before, and are judged as such.
func (c *checker) inOrder(p *post, f Fact) {
	s := c.sequences[sequence{f.Endpoint, p.sending.Key}]
	if s == nil || p.accepted.Kind == "" {
		return
	}
	for s.next < len(s.posts) && c.settled(s.posts[s.next], f.Endpoint) {
		s.next++
	}
	if s.next == len(s.posts) || s.posts[s.next].sending.Number >= p.sending.Number {
		return
	}
	head := s.posts[s.next]
	c.violate(Disorder, "key %s at %s: number %d (event %s) was sent before number %d (event %s) was delivered",
		p.sending.Key, f.Endpoint, p.sending.Number, f.Event, head.sending.Number, head.event)
}

func (c *checker) settled(p *post, endpoint string) bool {
	key := delivery{p.event, endpoint}
	d := c.deliveries[key]
	return c.dead[key] || (d != nil && !d.done.IsZero())
}

// orderedSince tells that an endpoint was known to keep order when a post began, and kept it from then on.
func (c *checker) orderedSince(endpoint string, posted time.Time) bool {
	ordered := false
	for _, change := range c.changes[endpoint] {
		if change.Until.After(posted) {
			return ordered && change.Ordered
		}
		ordered = change.Ordered
	}
	return ordered
}

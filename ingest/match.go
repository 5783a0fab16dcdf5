package ingest

import (
	"fmt"
	"slices"
	"strings"
)

// patterns finds the endpoints whose event type patterns match a type. It is a tree by segment, so that matching costs
// the segments of the type and not the number of patterns; it is never changed once made.
//
// A pattern is segments of [A-Za-z0-9_-]+ or * with dots between them. A * in front or in the middle stands for one
// segment, at the end for one or more. Matching is case-sensitive.
type patterns struct {
	root patternNode
}

type patternNode struct {
	next map[string]*patternNode
	star *patternNode
	ends []int // endpoints with a pattern that ends here
	rest []int // endpoints with a pattern that ends with a * here: one or more further segments
}

// add makes an endpoint, known by its number, match a pattern.
func (p *patterns) add(pattern string, endpoint int) error {
	segments := strings.Split(pattern, ".")
	for _, segment := range segments {
		if segment != "*" && !isSegment(segment) {
			return fmt.Errorf("the event type pattern %q has a segment that is neither * nor A-Z, a-z, 0-9, _, -", pattern)
		}
	}
	node := &p.root
	last := len(segments) - 1
	for i, segment := range segments {
		switch {
		case segment == "*" && i == last:
			node.rest = append(node.rest, endpoint)
			return nil
		case segment == "*":
			if node.star == nil {
				node.star = &patternNode{}
			}
			node = node.star
		default:
			if node.next[segment] == nil {
				if node.next == nil {
					node.next = map[string]*patternNode{}
				}
				node.next[segment] = &patternNode{}
			}
			node = node.next[segment]
		}
	}
	node.ends = append(node.ends, endpoint)
	return nil
}

// match returns the endpoints that get an event of a type, in ascending order, each once.
func (p *patterns) match(eventType string) []int {
	var found []int
	p.root.collect(eventType, &found)
	slices.Sort(found)
	return slices.Compact(found)
}

// collect visits each node at most once, since the way to a node is unique: a namespace's patterns bound the work
// whatever they and the type are.
func (n *patternNode) collect(rest string, found *[]int) {
	*found = append(*found, n.rest...)
	segment, rest, more := strings.Cut(rest, ".")
	for _, next := range []*patternNode{n.next[segment], n.star} {
		switch {
		case next == nil:
		case more:
			next.collect(rest, found)
		default:
			*found = append(*found, next.ends...)
		}
	}
}

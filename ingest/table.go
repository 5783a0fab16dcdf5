package ingest

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/postrider/postrider/store"
)

// table is a namespace's matching table, ready for use. It is never changed once made.
type table struct {
	store.Matching
	patterns patterns
}

// match returns the endpoints that get an event of a type, in the order of the table.
func (t *table) match(eventType string) []store.MatchedEndpoint {
	found := t.patterns.match(eventType)
	matched := make([]store.MatchedEndpoint, len(found))
	for i, number := range found {
		matched[i] = t.Endpoints[number]
	}
	return matched
}

// tables remembers the matching tables of namespaces. Nothing expires by time: what is remembered may be of any age,
// since accepting an event checks in its own transaction that the table it was matched by is still the present one.
type tables struct {
	store   Store
	timeout time.Duration
	log     *slog.Logger
	cache   recent[string, *table] // by namespace
	loads   singleflight.Group
}

// maxTables bounds the namespaces in memory. A quota bounds the endpoints of each.
const maxTables = 4096

func newTables(s Store, timeout time.Duration, log *slog.Logger) *tables {
	return &tables{store: s, timeout: timeout, log: log, cache: newRecent[string, *table](maxTables)}
}

// present returns a namespace's table. With stale set it is another one than that, which was found to be outdated.
func (t *tables) present(ctx context.Context, namespace string, stale *table) (*table, error) {
	if cached, ok := t.cache.get(namespace); ok && cached != stale {
		return cached, nil
	}
	return t.load(ctx, namespace)
}

// load reads a namespace's table from the store. One that the controller has not told of is asked for each time: it may
// have been made a moment ago, and nothing is accepted for it until it is known. Those who want it at one moment share one reading: one that began
// before a change gives an outdated table, which is noticed when it is used.
func (t *tables) load(ctx context.Context, namespace string) (*table, error) {
	loaded, err, _ := t.loads.Do(namespace, func() (any, error) {
		// Not the caller's context: others wait for this too.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.timeout)
		defer cancel()
		matching, err := t.store.Matching(ctx, namespace)
		if err != nil {
			return nil, fmt.Errorf("load the endpoints of a namespace: %w", err)
		}
		made := &table{Matching: matching}
		for i, endpoint := range matching.Endpoints {
			for _, pattern := range endpoint.EventTypes {
				if err := made.patterns.add(pattern, i); err != nil {
					// The API server refuses such a pattern; one that is here nevertheless matches nothing.
					t.log.Warn("an event type pattern is not valid and matches nothing",
						"endpoint", namespace+"/"+endpoint.Name, "reason", err.Error())
				}
			}
		}
		if made.Version > 0 {
			t.cache.put(namespace, made)
		}
		return made, nil
	})
	if err != nil {
		return nil, err
	}
	made, _ := loaded.(*table) // it is nothing else
	return made, nil
}

package main

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/bench/sink"
	"github.com/postrider/postrider/store"
)

const (
	namespace    = "bench"
	namespaceUID = "7d0f5b0e-0000-4000-8000-000000000001"
	bodyBytes    = 1024
	groupSize    = 500 // events in one bulk accept
	loaders      = 2   // bulk accepts side by side: with more they only wait for the same disk
	keyWindow    = 24 * time.Hour
)

// layout is a set of endpoints in a namespace.
type layout struct {
	name   string
	groups []endpoints
}

// endpoints are some that are alike.
type endpoints struct {
	kind   string // of the sink
	count  int
	types  string // a pattern for all of them; "": each has a type of its own, see typeOf
	change func(*store.EndpointSpec)
}

// typeOf is the event type that the endpoint with this number alone gets.
func typeOf(number int) string { return fmt.Sprintf("load.e%d", number) }

// standard is an endpoint whose owner set nothing but the URL.
func standard(url, types string) store.EndpointSpec {
	return store.EndpointSpec{
		State: store.Enabled, URL: url, EventTypes: []string{types}, Timeout: 10 * time.Second, MaxConcurrency: 16, Payload: "Raw",
		MaxAttempts: 12, MaxDuration: 24 * time.Hour, BackoffBase: 10 * time.Second, BackoffFactor: 2, BackoffCap: 6 * time.Hour,
		FailureThreshold: 10, Cooldown: 30 * time.Second, MaxCooldown: 10 * time.Minute,
	}
}

// lay returns the template with a layout's endpoints, made as the controller would make them.
func (s *stage) lay(ctx context.Context, l layout) (template, error) {
	return s.prepare(ctx, l.name, migrated(func(ctx context.Context, db *database) error { return db.apply(ctx, l) }))
}

func (db *database) apply(ctx context.Context, l layout) error {
	// Nothing is lost if these commits do not wait for the disk: a template is thrown away with its server.
	if err := db.exec(ctx, "ALTER DATABASE "+db.name+" SET synchronous_commit = off"); err != nil {
		return err
	}
	s, err := db.store(ctx, loadConns)
	if err != nil {
		return err
	}
	defer s.Close()
	if err := s.RecordNamespace(ctx, namespace, namespaceUID); err != nil {
		return err
	}
	for _, group := range l.groups {
		for range group.count {
			if err := db.addEndpoint(ctx, s, group); err != nil {
				return err
			}
		}
	}
	return db.exec(ctx, "ALTER DATABASE "+db.name+" RESET synchronous_commit", `VACUUM ANALYZE postrider.endpoint, postrider.lane`)
}

func (db *database) addEndpoint(ctx context.Context, s *store.Store, group endpoints) error {
	number, id := len(db.endpoints), uuid.New()
	types := group.types
	if types == "" {
		types = typeOf(number)
	}
	spec := standard(db.stage.url(group.kind, number), types)
	if group.change != nil {
		group.change(&spec)
	}
	sealed, err := db.stage.ring.Seal(db.stage.secret, id.String(), store.ColumnKey)
	if err != nil {
		return err
	}
	e, err := s.ApplyEndpoint(ctx, store.EndpointChange{
		PublicID: id, Namespace: namespace, Name: fmt.Sprintf("e%d", number), NamespaceUID: namespaceUID, UID: id.String(), Generation: 1,
		Spec: spec, Keys: []store.SealedKey{{Sealed: sealed, Fingerprint: "sha256:bench"}},
	})
	if err != nil {
		return err
	}
	db.endpoints = append(db.endpoints, e)
	return nil
}

// accepter accepts events in bulk, past HTTP.
type accepter struct {
	store     *store.Store
	matching  store.Matching
	endpoints []store.Endpoint
	next      atomic.Int64 // whose turn it is
}

func (db *database) accepter(ctx context.Context, s *store.Store, among []store.Endpoint) (*accepter, error) {
	m, err := s.Matching(ctx, namespace)
	if err != nil {
		return nil, err
	}
	return &accepter{store: s, matching: m, endpoints: among}, nil
}

// touchTries is how often a touch is tried.
const touchTries = 5

// accept accepts n events, each for the endpoint whose turn it is, and wakes their lanes.
func (a *accepter) accept(ctx context.Context, n int, intended int64) error {
	body := sink.Body(bodyBytes, intended)
	events, touched := make([]store.NewEvent, n), make([]store.Touched, n)
	first := a.next.Add(int64(n)) - int64(n)
	for i := range events {
		e := &a.endpoints[(first+int64(i))%int64(len(a.endpoints))]
		events[i] = store.NewEvent{
			Namespace: namespace, NamespaceUID: namespaceUID, Version: a.matching.Version, Type: e.Spec.EventTypes[0],
			ContentType: "application/json", Body: body, Targets: []store.Target{{EndpointID: e.ID, LaneID: e.LaneID}},
		}
		touched[i] = store.Touched{LaneID: e.LaneID}
	}
	accepted, err := a.store.Accept(ctx, events, keyWindow)
	if err != nil {
		return err
	}
	for _, one := range accepted {
		if one.Stale || one.Original != nil {
			return fmt.Errorf("an event was not accepted: stale: %v", one.Stale)
		}
	}
	// A touch that fails for a passing reason is tried again, as ingest does.
	for try := 1; ; try++ {
		if err := a.store.Touch(ctx, touched); err == nil || try == touchTries || !store.IsUnavailable(err) {
			return err
		}
	}
}

// load accepts n events for some endpoints in turn, as fast as it goes.
func (db *database) load(ctx context.Context, among []store.Endpoint, n int) error {
	s, err := db.store(ctx, loadConns)
	if err != nil {
		return err
	}
	defer s.Close()
	a, err := db.accepter(ctx, s, among)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	left := n
	group, ctx := errgroup.WithContext(ctx)
	for range loaders {
		group.Go(func() error {
			for {
				mu.Lock()
				size := min(left, groupSize)
				left -= size
				mu.Unlock()
				if size == 0 {
					return nil
				}
				if err := a.accept(ctx, size, 0); err != nil {
					return err
				}
			}
		})
	}
	return group.Wait()
}

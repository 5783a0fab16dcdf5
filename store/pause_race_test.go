package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// A claim that has looked before the pause must not take after it: the pause returns once no such claim is left.
func TestAPauseWaitsForClaimsThatDoNotKnowOfIt(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.in("billing", "a")
	f.due(2, e)
	g := f.gated("claimer", "UPDATE", "delivery")
	claim := begin(t, func(ctx context.Context) (Batch, error) { return g.Claim(ctx, whole()) })
	f.blocked("claimer", claim.done) // in the midst of taking
	pauser := f.as("pauser")
	pause := begin(t, func(ctx context.Context) (Pause, error) { return pauser.Pause(ctx, WholeInstallation, "") })
	if !f.blocked("pauser", pause.done) {
		t.Error("the pause did not wait for the claim")
	}
	if b, err := f.Claim(t.Context(), whole()); err != nil || !b.Paused {
		t.Errorf("got %+v, %v; want a further claim to find it paused, without waiting", b, err)
	}
	g.open()
	if n := len(claim.result().Claims); n != 2 {
		t.Errorf("the claim got %d deliveries, want the 2 that it was about to take", n)
	}
	pause.result()
}

// Also not if it waited for a lane meanwhile.
func TestAClaimThatWaitedLooksForAPauseAgain(t *testing.T) {
	t.Parallel()
	for name, scope := range scopes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.in("billing", "a")
			f.due(2, e)
			holder, claimer, pauser := f.session(), f.as("claimer"), f.as("pauser")
			holder.lockLane(e)
			claim := begin(t, func(ctx context.Context) (Batch, error) { return claimer.Claim(ctx, whole()) })
			f.blocked("claimer", claim.done)
			pause := begin(t, func(ctx context.Context) (Pause, error) { return pauser.Pause(ctx, scope, "") })
			f.blocked("pauser", pause.done)
			holder.exec(`COMMIT`)
			pause.result()
			// Who of the two gets the lane of a namespace first is open; that of the installation is known by then.
			if n := len(claim.result().Claims); n > 0 && scope == WholeInstallation {
				t.Errorf("claimed %d deliveries after the pause", n)
			}
			if b, err := f.Claim(t.Context(), whole()); err != nil || len(b.Claims) > 0 {
				t.Errorf("got %+v, %v; want nothing", b, err)
			}
		})
	}
}

// A lane that is being made while its namespace is paused is found by the pause, or finds it.
func TestAPauseWaitsForLanesInTheMaking(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	off := f.in("billing", "a", func(p *EndpointSpec) { p.State = Disabled })
	g := f.gated("maker", "UPDATE", "namespace_version") // the last that enabling does
	enable := begin(t, func(ctx context.Context) (Endpoint, error) {
		c := off.change(off.Generation + 1)
		c.Spec.State = Enabled
		return g.ApplyEndpoint(ctx, c)
	})
	f.blocked("maker", enable.done)
	pauser := f.as("pauser")
	pause := begin(t, func(ctx context.Context) (Pause, error) { return pauser.Pause(ctx, "billing", "") })
	if !f.blocked("pauser", pause.done) {
		t.Error("the pause did not wait for the lane")
	}
	g.open()
	e := enable.result()
	pause.result()
	f.due(1, e)
	if got := f.claim(10); len(got) != 0 {
		t.Errorf("claimed %d deliveries of the lane that was being made", len(got))
	}
}

// The state that an endpoint is given while its namespace is resumed is the one its lane ends up with, whoever comes first.
func TestAResumeMeetsAChangeOfState(t *testing.T) {
	t.Parallel()
	for _, state := range []State{Paused, Enabled} {
		for _, first := range []string{"the change", "the resume"} {
			t.Run(fmt.Sprint(state, ", first ", first), func(t *testing.T) {
				t.Parallel()
				f := newFixture(t)
				before := map[State]State{Paused: Enabled, Enabled: Paused}[state]
				e := f.in("billing", "a", func(p *EndpointSpec) { p.State = before })
				f.pause("billing", "")
				change := func(s *Store) func(context.Context) (Endpoint, error) {
					return func(ctx context.Context) (Endpoint, error) {
						c := e.change(e.Generation + 1)
						c.Spec.State = state
						return s.ApplyEndpoint(ctx, c)
					}
				}
				resume := func(s *Store) func(context.Context) (bool, error) {
					return func(ctx context.Context) (bool, error) { return s.Resume(ctx, "billing") }
				}
				g, other := f.gated("first", "UPDATE", "lane"), f.as("other")
				if first == "the change" {
					changing := begin(t, change(g.Store))
					f.blocked("first", changing.done)
					resuming := begin(t, resume(other))
					f.blocked("other", resuming.done)
					g.open()
					changing.result()
					resuming.result()
				} else {
					resuming := begin(t, resume(g.Store))
					f.blocked("first", resuming.done)
					changing := begin(t, change(other))
					f.blocked("other", changing.done)
					g.open()
					resuming.result()
					changing.result()
				}
				if got := ask[bool](f, `SELECT paused FROM postrider.lane WHERE lane_id = $1`, e.LaneID); got != (state == Paused) {
					t.Errorf("the lane is paused: %v, and the endpoint is %s", got, state)
				}
			})
		}
	}
}

// Operators pause and resume at random, of the installation and of two namespaces, beside claims, completions and changes
// of endpoints. Between the return of a pause and the next resume nothing of what it holds is attempted.
func TestPausesUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const rows, senders = 300, 3
	namespaces := []string{"billing", "orders"}
	var endpoints []Endpoint
	for _, ns := range namespaces {
		for _, name := range []string{"a", "b", "c"} {
			e := f.in(ns, name)
			endpoints = append(endpoints, e)
			f.due(rows, e)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var working sync.WaitGroup
	for range senders {
		s := f.as("sender")
		working.Go(func() {
			for ctx.Err() == nil {
				b, err := s.Claim(t.Context(), ClaimRequest{Budget: 4, Lanes: 4, PerLane: 2, Lease: time.Minute})
				if err == nil && len(b.Claims) > 0 {
					_, err = s.Complete(t.Context(), results(Retry, b.Claims...)) // due again at once: the load never ends
				}
				if err != nil {
					t.Errorf("claim and complete: %v", err)
					return
				}
			}
		})
	}
	working.Go(func() {
		for n := int64(0); ctx.Err() == nil; n++ {
			e := &endpoints[n%int64(len(endpoints))]
			c := e.change(e.Generation + 1)
			// Enabled, paused, disabled and enabled again, with a new lane.
			c.Spec.State = []State{Enabled, Paused, Enabled, Disabled}[rand.N(4)]
			applied, err := f.ApplyEndpoint(t.Context(), c)
			if err != nil {
				t.Errorf("apply: %v", err)
				return
			}
			if *e = applied; e.LaneID != 0 {
				f.due(1, *e)
			}
		}
	})
	working.Go(func() { pauseNamespaces(ctx, f, "orders") })
	rounds := 0
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); rounds++ {
		scope := []string{WholeInstallation, "billing"}[rounds%2]
		f.pause(scope, "")
		before := attempts(f, scope)
		time.Sleep(10 * time.Millisecond) // what others get done meanwhile is what this is about
		after := attempts(f, scope)
		for id, n := range after {
			if n > before[id] {
				t.Errorf("round %d, %s paused: delivery %d was attempted: %d, then %d", rounds, scopeOf(scope), id, before[id], n)
			}
		}
		f.resume(scope)
	}
	stop()
	working.Wait()
	for _, scope := range append(namespaces, WholeInstallation) {
		f.resume(scope)
	}
	f.checkInFlight()
	if n := ask[int](f, `SELECT count(*) FROM postrider.lane l JOIN postrider.endpoint e USING (lane_id)
		WHERE l.namespace_paused OR l.paused <> (e.state = 'Paused')`); n != 0 {
		t.Errorf("%d lanes are not as their endpoints want them", n)
	}
	if rounds < 10 {
		t.Errorf("only %d rounds", rounds)
	}
}

// pauseNamespaces pauses and resumes by two commands that overtake each other.
func pauseNamespaces(ctx context.Context, f *fixture, namespace string) {
	var commands sync.WaitGroup
	for range 2 {
		commands.Go(func() {
			for ctx.Err() == nil {
				if _, err := f.Pause(f.t.Context(), namespace, ""); err != nil && !errors.Is(err, ErrConflict) {
					f.t.Errorf("pause: %v", err)
				}
				if _, err := f.Resume(f.t.Context(), namespace); err != nil && !errors.Is(err, ErrConflict) {
					f.t.Errorf("resume: %v", err)
				}
			}
		})
	}
	commands.Wait()
}

// attempts are the numbers of the deliveries' attempts.
func attempts(f *fixture, namespace string) map[int64]int {
	f.t.Helper()
	rows, err := f.pool.Query(f.t.Context(), `SELECT d.id, d.attempt FROM postrider.delivery d JOIN postrider.endpoint e USING (endpoint_id)
		WHERE $1 IN ('', e.namespace)`, namespace)
	if err != nil {
		f.t.Fatal(err)
	}
	defer rows.Close()
	all := map[int64]int{}
	for rows.Next() {
		var id int64
		var n int
		if err := rows.Scan(&id, &n); err != nil {
			f.t.Fatal(err)
		}
		all[id] = n
	}
	if err := rows.Err(); err != nil {
		f.t.Fatal(err)
	}
	return all
}

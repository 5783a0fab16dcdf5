package store

import (
	"context"
	"testing"
	"time"
)

// A maxDuration of 0 means one attempt. What waits behind an open circuit has not had its own yet.
func TestABacklogOfOneAttemptEachDoesNotExpireUnattempted(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", fragile(1), func(p *EndpointSpec) { p.MaxDuration, p.MaxConcurrency = 0, 1 })
	f.post("", 3, e)
	f.wake("", e)
	f.complete(Retry, f.claim(1)...) // opens the circuit
	f.exec(`UPDATE postrider.delivery SET accepted_at = now() - interval '1 h', available_at = now() - interval '1 h'`)
	if n, err := f.ExpireBacklogs(t.Context(), 100); n != 0 || err != nil {
		t.Errorf("buried %d, %v; want none", n, err)
	}
}

// What was found to be too old is looked at again under the lane's lock: meanwhile the endpoint may have been paused, its
// circuit closed, or its maxDuration raised.
func TestExpiryLooksAgainUnderTheLanesLock(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]string{
		"paused":         `paused = true`,
		"closed":         `open_until = NULL`,
		"raised":         `max_duration = '2 h'`,
		"just resumed":   `resumed_at = now()`,
		"not Ready":      `blocked = true`,
		"nothing at all": `fails = fails`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			e := f.endpoint("a", fragile(1), func(p *EndpointSpec) { p.MaxDuration, p.MaxConcurrency = time.Hour, 1 })
			f.post("", 2, e)
			f.wake("", e)
			f.complete(Retry, f.claim(1)...)
			f.exec(`UPDATE postrider.delivery SET accepted_at = now() - interval '61 m', available_at = now() - interval '61 m'`)
			holder := f.session()
			holder.exec(`UPDATE postrider.lane SET `+change+` WHERE lane_id = $1`, e.LaneID)
			buried, failed := make(chan int, 1), make(chan error, 1)
			go func() {
				n, err := f.ExpireBacklogs(t.Context(), 100)
				buried <- n
				failed <- err
			}()
			f.until("the chore waits for the lane", func() bool {
				return ask[bool](f, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock')`)
			})
			holder.exec(`COMMIT`)
			want := 0
			if name == "nothing at all" {
				want = 2
			}
			if n, err := <-buried, <-failed; n != want || err != nil {
				t.Errorf("buried %d, %v; want %d", n, err, want)
			}
		})
	}
}

// The probe of a half-open circuit may be taken while the chore waits for the lane: it is its owner's then.
func TestExpiryLeavesTheProbeThatIsBeingClaimed(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("a", fragile(1), func(p *EndpointSpec) { p.MaxDuration, p.MaxConcurrency = time.Hour, 1 })
	f.post("", 3, e)
	f.wake("", e)
	f.complete(Retry, f.claim(1)...) // opens the circuit
	f.exec(`UPDATE postrider.delivery SET accepted_at = now() - interval '1 d', available_at = now() - interval '1 d'`)
	f.exec(`UPDATE postrider.lane SET first_at = '-infinity'`)
	f.endCooldown(e)
	slow, chore := f.gated("claimer", "UPDATE", "lane"), f.as("chore")
	claiming := begin(t, func(ctx context.Context) (Batch, error) { return slow.Claim(ctx, whole()) })
	f.blocked("claimer", claiming.done)
	burying := begin(t, func(ctx context.Context) (int, error) { return chore.ExpireBacklogs(ctx, 100) })
	if !f.blocked("chore", burying.done) {
		t.Error("the chore did not wait for the lane")
	}
	slow.open()
	probe := claiming.result().Claims
	if n := burying.result(); n != 2 || len(probe) != 1 {
		t.Errorf("buried %d, claimed %d; want 2, and the probe", n, len(probe))
	}
	f.checkInFlight()
	f.complete(Delivered, probe...)
}

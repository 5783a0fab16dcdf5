package dispatcher

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/postrider/postrider/store"
)

// keeper watches the leases of what is in flight. A request that may outlast its lease gets a longer one, and is
// abandoned where there is none: the delivery will be somebody else's.
//
// A lease is longer than the longest request and its recording, so this concerns only claims that began late, such as
// behind a slow database.
type keeper struct {
	config Config
	store  Store
	logger *slog.Logger
	slots  []atomic.Pointer[job] // one per sender
}

// period is short against a lease and against the time for recording; what it costs is a look at each sender's slot.
func (k *keeper) period() time.Duration {
	return min(k.config.Lease/50, k.config.RecordTime/5, time.Second)
}

func (k *keeper) run(ctx context.Context) {
	ticker := time.NewTicker(k.period())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			k.look(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (k *keeper) look(ctx context.Context) {
	var short []*job
	for i := range k.slots {
		j := k.slots[i].Load()
		if j == nil {
			continue
		}
		// Half, so that a request that began a little late, with all of its timeout before it, is still let end by itself.
		left := j.leaseLeft() - k.config.RecordTime/2
		switch {
		case left <= 0:
			k.abandon(j)
		case until(j.mustEnd) > left && left < k.config.Lease/2:
			short = append(short, j)
		}
	}
	if len(short) > 0 {
		k.extend(ctx, short)
	}
}

func (k *keeper) abandon(j *job) {
	if !j.abandoned.Swap(true) {
		j.cancel()
	}
}

// extend asks for longer leases. Where the database cannot be asked, the requests go on to the end of what they have.
func (k *keeper) extend(ctx context.Context, jobs []*job) {
	leases := make([]store.Lease, len(jobs))
	for i, j := range jobs {
		c := &j.result.Claim
		leases[i] = store.Lease{DeliveryID: c.DeliveryID, LaneID: c.LaneID, Token: c.Token, Probe: c.Probe}
	}
	ctx, cancel := context.WithTimeout(ctx, k.config.RecordTime)
	defer cancel()
	asked := now()
	extended, _, err := k.store.Extend(ctx, leases, k.config.Lease)
	if err != nil {
		k.logger.Warn("leases could not be extended", "event", "extend_failed", "leases", len(leases), "error", err)
		return
	}
	for i, j := range jobs {
		if extended[leases[i].DeliveryID] {
			j.lease.Store(int64(asked.add(k.config.Lease)))
		} else {
			k.abandon(j)
		}
	}
}

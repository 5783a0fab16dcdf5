package dispatcher

import (
	"context"
	"log/slog"
	"time"

	"github.com/postrider/postrider/store"
)

const (
	// completers record in turn. The second one begins beside the first for what cannot wait: beyond a whole batch, or longer
	// than recordOverlap.
	completers    = 2
	recordOverlap = 20 * time.Millisecond
	// recordBatch is how many outcomes one transaction records at most, and recordBuffer how many may wait. When the buffer
	// is full, senders wait with their outcome in hand and nothing more is claimed for them.
	recordBatch   = 500
	recordBuffer  = 2 * recordBatch
	recordTimeout = 15 * time.Second

	recordBackoffMin, recordBackoffMax = 50 * time.Millisecond, 2 * time.Second
)

// recorder writes outcomes to the database. A batch is what came while the batch before it was committed: the busier it is
// the larger the batches are. Two at once would each be half as large, and cost nearly as much.
type recorder struct {
	store   Store
	logger  *slog.Logger
	metrics *metrics
	health  *health
	claimer *claimer
	life    context.Context // its end gives up what cannot be recorded
	queue   chan *job
	turn    chan struct{} // has one place, which is taken by whoever records
	whole   chan struct{} // rings when a whole batch waits
}

func newRecorder(life context.Context, d Dependencies, m *metrics, h *health, c *claimer) *recorder {
	return &recorder{
		store: d.Store, logger: d.Logger, metrics: m, health: h, claimer: c, life: life,
		queue: make(chan *job, recordBuffer), turn: make(chan struct{}, 1), whole: make(chan struct{}, 1),
	}
}

// put takes an outcome. It blocks while the buffer is full, unless recording has been given up.
func (r *recorder) put(j *job) {
	select {
	case r.queue <- j:
		if len(r.queue) >= recordBatch {
			ring(r.whole)
		}
	case <-r.life.Done():
		r.lost([]*job{j}, r.life.Err())
	}
}

func (r *recorder) lost(jobs []*job, err error) {
	r.metrics.unrecorded.Add(float64(len(jobs)))
	r.logger.Error("outcomes could not be recorded; these deliveries will be attempted again when their leases end",
		"event", "record_lost", "deliveries", len(jobs), "error", err)
}

// close says that nothing more will be put.
func (r *recorder) close() { close(r.queue) }

// run records until the queue is closed and empty. Several may run at once.
func (r *recorder) run() {
	jobs, results := make([]*job, 0, recordBatch), make([]store.Result, 0, recordBatch)
	for first := range r.queue {
		leave := r.enter()
		jobs = r.gather(append(jobs[:0], first))
		results = results[:0]
		for _, j := range jobs {
			results = append(results, j.result)
		}
		r.record(jobs, results)
		leave()
		clear(jobs) // or they would be kept until the next batch is as large
		clear(results)
	}
}

// enter waits until nobody else records, or what waits cannot wait for that any longer.
func (r *recorder) enter() (leave func()) {
	leave = func() { <-r.turn }
	select {
	case r.turn <- struct{}{}: // even if the bell rings: it may have rung for a batch that is recorded by now
		return leave
	default:
	}
	overlap := time.NewTimer(recordOverlap)
	defer overlap.Stop()
	select {
	case r.turn <- struct{}{}:
		return leave
	case <-r.whole:
	case <-overlap.C:
	}
	return func() {}
}

// gather adds what is there already.
func (r *recorder) gather(jobs []*job) []*job {
	for len(jobs) < recordBatch {
		select {
		case j, open := <-r.queue:
			if !open {
				return jobs
			}
			jobs = append(jobs, j)
		default:
			return jobs
		}
	}
	return jobs
}

// record tries until a batch is recorded, or there is no use in it any more. Repeating is harmless: what was recorded
// by a try whose answer was lost no longer carries the claim's token.
func (r *recorder) record(jobs []*job, results []store.Result) {
	pause := recordBackoffMin
	for repeated := false; ; repeated = true {
		recorded, err := r.complete(results)
		if err == nil {
			r.health.worked()
			r.settle(jobs, recorded, repeated)
			return
		}
		r.metrics.storeErrors.complete.Inc()
		r.health.failed("record", err)
		// While the database is away nobody takes over: an ended lease may still be ours when it is back.
		if r.life.Err() != nil || !store.IsUnavailable(err) && leasesEnded(jobs) {
			r.lost(jobs, err)
			return
		}
		if sleep(r.life, jitter(pause)) {
			pause = min(2*pause, recordBackoffMax)
		}
	}
}

func leasesEnded(jobs []*job) bool {
	for _, j := range jobs {
		if j.leaseLeft() > 0 {
			return false
		}
	}
	return true
}

func (r *recorder) complete(results []store.Result) ([]store.Recorded, error) {
	ctx, cancel := context.WithTimeout(r.life, recordTimeout)
	defer cancel()
	began := now()
	recorded, err := r.store.Complete(ctx, results)
	r.metrics.recordDuration.Observe(since(began).Seconds())
	return recorded, err
}

// settle counts what was recorded and wakes the claimer where that made more work due.
func (r *recorder) settle(jobs []*job, recorded []store.Recorded, repeated bool) {
	wake := false
	soonest := time.Duration(-1)
	for i, j := range jobs {
		switch result := &j.result; {
		case recorded[i].Err != nil:
			r.metrics.unrecorded.Inc()
			r.logger.Error("an outcome was refused by the database; its delivery will be attempted again when its lease ends",
				"event", "record_refused", "endpoint", j.name(), "delivery", result.Claim.DeliveryID,
				"attempt", result.Claim.Attempt, "error", recorded[i].Err)
		case recorded[i].Fenced && !repeated:
			r.metrics.fenced.Inc()
			r.logger.Warn("an outcome came after its lease was taken over, and changed nothing", "event", "fenced",
				"endpoint", j.name(), "delivery", result.Claim.DeliveryID, "attempt", result.Claim.Attempt)
		default: // repeated and fenced: the try whose answer was lost had recorded it
			r.metrics.recorded(result)
			// What was released is due at once, but went back for a reason that holds for a while.
			wake = wake || recorded[i].Ready && result.Verdict != store.Released
			if result.Verdict == store.Retry && (soonest < 0 || result.Delay < soonest) {
				soonest = result.Delay
			}
		}
	}
	if wake {
		r.claimer.wake()
	}
	if soonest >= 0 {
		r.claimer.lookAt(now().add(soonest))
	}
}

// name of the job's endpoint, as far as it is known.
func (j *job) name() string {
	if j.endpoint == nil {
		return ""
	}
	return j.endpoint.name
}

package store

import (
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// completion gathers the columns of one completing transaction; complete.go has its statements.
type completion struct {
	removed []int64

	moved  []int64
	delays []*float64
	back   []int32

	attempt struct {
		event          []uuid.UUID
		endpoint       []int64
		replay, number []int32
		outcome        []string
		status         []int32
		reason         []string
		duration       []int32
		delay          []*float64
		response       [][]byte
	}
	dead struct {
		endpoint []int64
		event    []uuid.UUID
		replay   []int32
		reason   []string
		status   []int32
		attempts []int32
		accepted []time.Time
	}
	status map[int64]*endpointNews
	noNews []int64 // endpoints whose success need not be written down
	late   []int64 // of these, the ones where it must be after all; filled in when the batch is sent

	lane struct {
		id      []int64
		token   []uuid.UUID
		version []int64
		circuit []string
		look    []*float64
		gone    []bool
	}
	keyLanes []int64
	keys     []string
}

// endpointNews is what a batch says of one endpoint.
type endpointNews struct {
	ok, failed bool
	failures   int32 // since the last success
	last       *Result
}

// add takes in one result whose claim stands.
func (c *completion) add(r *Result) {
	k := &r.Claim
	atOnce := 0.0
	var delay, look *float64
	given := int32(0) // attempt numbers given back
	if r.Verdict == Released || r.Unsent {
		given = 1
	}
	switch r.Verdict {
	case Retry:
		seconds := r.Delay.Seconds()
		delay, look = &seconds, &seconds
		c.moved, c.delays, c.back = append(c.moved, k.DeliveryID), append(c.delays, delay), append(c.back, given)
	case Released:
		look = &atOnce
		c.moved, c.delays, c.back = append(c.moved, k.DeliveryID), append(c.delays, nil), append(c.back, given)
	case Delivered, Dead:
		c.removed = append(c.removed, k.DeliveryID)
		if k.OrderingKey != "" {
			look = &atOnce
			c.keyLanes, c.keys = append(c.keyLanes, k.LaneID), append(c.keys, k.OrderingKey)
		}
	}
	if r.Verdict == Dead {
		c.addDead(r, int32(k.Attempt)-given)
	}
	l := &c.lane
	l.id, l.token, l.version = append(l.id, k.LaneID), append(l.token, k.Token), append(l.version, r.Version)
	l.circuit, l.look, l.gone = append(l.circuit, r.circuit()), append(l.look, look), append(l.gone, r.Gone)
	if r.Verdict == Released {
		return
	}
	c.addNews(r)
	if !r.Unsent {
		c.addAttempt(r, delay)
	}
}

func (c *completion) addDead(r *Result, attempts int32) {
	k, d := &r.Claim, &c.dead
	reason := r.DeadReason
	if reason == "" {
		reason = r.Reason
	}
	d.endpoint, d.event, d.replay = append(d.endpoint, k.EndpointID), append(d.event, k.EventID), append(d.replay, int32(k.ReplayNo))
	d.reason, d.status, d.attempts = append(d.reason, reason), append(d.status, int32(r.Status)), append(d.attempts, attempts)
	d.accepted = append(d.accepted, k.AcceptedAt)
}

// addAttempt takes in what was attempted, for the history.
func (c *completion) addAttempt(r *Result, delay *float64) {
	k, a := &r.Claim, &c.attempt
	a.event, a.endpoint = append(a.event, k.EventID), append(a.endpoint, k.EndpointID)
	a.replay, a.number = append(a.replay, int32(k.ReplayNo)), append(a.number, int32(k.Attempt))
	a.outcome, a.status, a.reason = append(a.outcome, string(r.Verdict)), append(a.status, int32(r.Status)), append(a.reason, r.Reason)
	a.duration, a.delay, a.response = append(a.duration, int32(r.Duration.Milliseconds())), append(a.delay, delay), append(a.response, r.Response)
}

// addNews takes in what the endpoint's status will say.
func (c *completion) addNews(r *Result) {
	if c.status == nil {
		c.status = map[int64]*endpointNews{}
	}
	news := c.status[r.Claim.EndpointID]
	if news == nil {
		news = &endpointNews{}
		c.status[r.Claim.EndpointID] = news
	}
	if r.Verdict == Delivered {
		news.ok, news.failures = true, 0
		return
	}
	news.failed, news.last = true, r
	news.failures++
}

// leaveOut drops the news that are none.
func (c *completion) leaveOut(known map[int64]bool) {
	for id := range c.status {
		if known[id] {
			delete(c.status, id)
			c.noNews = append(c.noNews, id)
		}
	}
}

// queue puts the statements in the order that their locks demand; ready is filled in with the lanes that have more.
func (c *completion) queue(b *pgx.Batch, ready map[int64]bool) {
	if len(c.removed) > 0 {
		b.Queue(removeDeliveries, c.removed)
	}
	if len(c.moved) > 0 {
		b.Queue(reschedule, c.moved, c.delays, c.back)
	}
	if a := &c.attempt; len(a.event) > 0 {
		b.Queue(recordAttempts, a.event, a.endpoint, a.replay, a.number, a.outcome, a.status, a.reason, a.duration, a.delay, a.response)
	}
	if d := &c.dead; len(d.event) > 0 {
		b.Queue(pinEvents, d.event)
		b.Queue(buryDeliveries, d.endpoint, d.event, d.replay, d.reason, d.status, d.attempts, d.accepted)
	}
	c.queueStatus(b)
	if l := &c.lane; len(l.id) > 0 {
		b.Queue(lockLanes, l.id)
		b.Queue(settleLanes, l.id, l.token, l.version, l.circuit, l.look, l.gone).Query(func(rows pgx.Rows) error {
			var id int64
			var now bool
			_, err := pgx.ForEachRow(rows, []any{&id, &now}, func() error { ready[id] = now; return nil })
			return err
		})
	}
	if len(c.noNews) > 0 {
		b.Queue(newsAfterAll, c.noNews).Query(func(rows pgx.Rows) (err error) {
			c.late, err = pgx.CollectRows(rows, pgx.RowTo[int64])
			return err
		})
	}
	if len(c.keys) > 0 {
		b.Queue(promoteKeys, c.keyLanes, c.keys) // after the removal, so that it need not be told what to leave out
	}
}

func (c *completion) queueStatus(b *pgx.Batch) {
	n := len(c.status)
	if n == 0 {
		return
	}
	endpoint, ok, failed, failures := make([]int64, 0, n), make([]bool, 0, n), make([]bool, 0, n), make([]int32, 0, n)
	event, status, reason, message := make([]*uuid.UUID, 0, n), make([]int32, 0, n), make([]*string, 0, n), make([]*string, 0, n)
	for id, news := range c.status {
		endpoint, ok, failed, failures = append(endpoint, id), append(ok, news.ok), append(failed, news.failed), append(failures, news.failures)
		if r := news.last; r != nil {
			event, status = append(event, &r.Claim.EventID), append(status, int32(r.Status))
			reason, message = append(reason, &r.Reason), append(message, &r.Message)
		} else {
			event, status, reason, message = append(event, nil), append(status, 0), append(reason, nil), append(message, nil)
		}
	}
	b.Queue(lockStatuses, endpoint)
	b.Queue(noteStatus, endpoint, ok, failed, failures, event, status, reason, message)
}

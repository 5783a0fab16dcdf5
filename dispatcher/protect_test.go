package dispatcher

import (
	"cmp"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/store"
)

// Never above maxConcurrency, over all replicas together.
func TestConcurrencyHoldsOverAllReplicas(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("narrow", func(s *store.EndpointSpec) { s.MaxConcurrency = 3 })
	f.receiver.answer("narrow", func(http.ResponseWriter, *http.Request) { time.Sleep(5 * time.Millisecond) }) // a receiver's work
	ids := f.post(150, "", e)
	for range 3 {
		f.dispatch(quickConfig(8))
	}
	began := time.Now()
	f.waitFor(store.StateDelivered, ids...)
	if got := f.receiver.mostAtOnce("narrow"); got != 3 {
		t.Errorf("requests at once: got %d, want 3", got)
	}
	if n := len(f.receiver.of("narrow")); n != 150 {
		t.Errorf("requests: got %d, want 150", n)
	}
	t.Logf("150 deliveries, 3 at a time, took %v", time.Since(began))
}

// Never above the rate and its burst, over all replicas together, and not far below either.
func TestRateHoldsOverAllReplicas(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const rate, burst, n = 20, 4, 40
	e := f.endpoint("paced", func(s *store.EndpointSpec) {
		s.Rate = &store.Rate{Requests: rate, Per: time.Second, Burst: burst}
	})
	ids := f.post(n, "", e)
	for range 2 {
		f.dispatch(quickConfig(8))
	}
	f.waitFor(store.StateDelivered, ids...)
	requests := f.receiver.of("paced")
	if len(requests) != n {
		t.Fatalf("requests: got %d, want %d", len(requests), n)
	}
	// From one request to a later one no more may come than the bucket held and what has dripped into it. The allowance is
	// for what a claim takes to become a request.
	const allowance = 250 * time.Millisecond
	for i := range requests {
		for j := i + burst + 1; j < n; j++ {
			least := time.Duration(j-i-burst) * time.Second / rate
			if got := requests[j].at.Sub(requests[i].at); got < least-allowance {
				t.Fatalf("requests %d to %d: came within %v, want %v at least", i, j, got, least)
			}
		}
	}
	if took, most := requests[n-1].at.Sub(requests[0].at), 2*n*time.Second/rate; took > most {
		t.Errorf("%d requests at %d a second: took %v, want %v at most", n, rate, took, most)
	}
}

// The circuit opens after so many failures; then only probes go, of which the first success closes it.
func TestOpenCircuitSendsProbesOnly(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("down", func(s *store.EndpointSpec) {
		s.FailureThreshold, s.Cooldown, s.MaxCooldown = 5, 500*time.Millisecond, time.Second
		s.MaxConcurrency, s.Schedule, s.MaxAttempts = 1, []time.Duration{time.Millisecond}, 100
	})
	f.receiver.answer("down", status(503))
	ids := f.post(20, "", e)
	f.dispatch(quickConfig(8))
	open := func() bool { return !f.activity(e).OpenUntil.IsZero() }
	waitFor(t, "the circuit to open", open)
	opened := len(f.receiver.of("down"))
	if opened < 5 || opened > 6 {
		t.Errorf("requests until the circuit opened: got %d, want 5 (and a probe at most)", opened)
	}
	waitFor(t, "three probes", func() bool { return len(f.receiver.of("down")) >= 8 })
	requests := f.receiver.of("down")
	// The fifth request opened it. Each probe comes a cooldown after the one before, which doubles to its maximum.
	for i, least := range []time.Duration{500 * time.Millisecond, time.Second, time.Second} {
		if got := requests[5+i].at.Sub(requests[4+i].at); got < least-50*time.Millisecond {
			t.Errorf("probe %d: came %v after the failure before it, want %v at least", i+1, got, least)
		}
	}
	f.receiver.answer("down", nil)
	f.waitFor(store.StateDelivered, ids...)
	if open() {
		t.Error("the circuit is open after a success")
	}
}

func (f *fixture) activity(e store.Endpoint) store.Activity {
	f.t.Helper()
	all, _, err := f.Activities(f.t.Context(), time.Time{})
	if err != nil {
		f.t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(a store.Activity) bool { return a.EndpointID == e.ID })
	if i < 0 {
		return store.Activity{}
	}
	return all[i]
}

// The circuit also counts last attempts: deliveries that die of exhaustion are no answers.
func TestLastAttemptsOpenTheCircuitToo(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("down", func(s *store.EndpointSpec) {
		s.MaxAttempts, s.FailureThreshold, s.Cooldown, s.MaxCooldown, s.MaxConcurrency = 1, 3, time.Hour, time.Hour, 1
	})
	f.receiver.answer("down", status(500))
	f.post(10, "", e)
	f.dispatch(quickConfig(8))
	waitFor(t, "the circuit to open", func() bool { return !f.activity(e).OpenUntil.IsZero() })
	if n := len(f.receiver.of("down")); n != 3 {
		t.Errorf("requests until the circuit opened: got %d, want 3", n)
	}
}

// One in flight per key, in the order of acceptance; a retrying head blocks its key only.
func TestKeysKeepTheirOrder(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("frames", func(s *store.EndpointSpec) {
		s.Ordered, s.Schedule = true, []time.Duration{300 * time.Millisecond}
	})
	failing := failFirst(2, 500)
	f.receiver.answer("frames", func(w http.ResponseWriter, q *http.Request) {
		// The third frame of job 0 fails twice.
		if job, n := frame(q); job == "job-0" && n == 2 {
			failing(w, q)
		}
	})
	want := map[string][]uuid.UUID{}
	for n := range 12 {
		for job := range 3 {
			key := "job-" + strconv.Itoa(job)
			want[key] = append(want[key], f.postFrame(e, key, n))
		}
	}
	for range 2 {
		f.dispatch(quickConfig(8))
	}
	f.waitForPending(func(pending int) bool { return pending == 0 })
	got, at := map[string][]string{}, map[string]time.Time{}
	for _, q := range f.receiver.of("frames") {
		key, _, _ := strings.Cut(q.body, "/")
		if n := len(got[key]); n > 0 && got[key][n-1] == q.id {
			continue // a retry, with nothing of its key in between
		}
		got[key], at[key] = append(got[key], q.id), q.at
	}
	for key, ids := range want {
		if len(got[key]) != len(ids) {
			t.Fatalf("%s: got %d events in turn, want %d", key, len(got[key]), len(ids))
		}
		for i, id := range ids {
			if got[key][i] != id.String() {
				t.Errorf("%s: event %d is %s, want %s", key, i, got[key][i], id)
			}
		}
	}
	if !at["job-1"].Before(at["job-0"]) || !at["job-2"].Before(at["job-0"]) {
		t.Errorf("ends of the keys: got %v, want the two others before job-0, whose head was retried", at)
	}
}

func frame(q *http.Request) (job string, n int) {
	job = q.Header.Get("Content-Type")
	job, number, _ := strings.Cut(strings.TrimPrefix(job, "text/"), ".")
	n, _ = strconv.Atoi(number)
	return job, n
}

// postFrame posts frame n of a job, whose name is the ordering key.
func (f *fixture) postFrame(e store.Endpoint, job string, n int) uuid.UUID {
	f.t.Helper()
	m, err := f.Matching(f.t.Context(), "billing")
	if err != nil {
		f.t.Fatal(err)
	}
	accepted, err := f.Accept(f.t.Context(), []store.NewEvent{{
		Namespace: "billing", NamespaceUID: m.UID, Version: m.Version, Type: "render.frame", ContentType: "text/" + job + "." + strconv.Itoa(n),
		Body: []byte(job + "/" + strconv.Itoa(n)), OrderingKey: job, Targets: []store.Target{{EndpointID: e.ID, LaneID: e.LaneID, Ordered: true}},
	}}, 0)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.Touch(f.t.Context(), []store.Touched{{LaneID: e.LaneID, OrderingKey: job}}); err != nil {
		f.t.Fatal(err)
	}
	return accepted[0].EventID
}

// 410: dead, and nothing more is sent until the endpoint changes.
func TestGoneEndpointGetsNothingMore(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("gone", func(s *store.EndpointSpec) { s.MaxConcurrency = 1 })
	f.receiver.answer("gone", status(410))
	ids := f.post(5, "", e)
	f.dispatch(quickConfig(8))
	waitFor(t, "the endpoint to be gone", func() bool { return f.activity(e).Gone })
	if pending := ask[int](f, "SELECT count(*) FROM postrider.delivery"); pending != 4 || len(f.receiver.of("gone")) != 1 {
		t.Errorf("got %d requests and %d pending, want 1 and 4", len(f.receiver.of("gone")), pending)
	}
	dead := 0
	for _, id := range ids {
		if d := f.delivery(id); d.State == store.StateDead {
			dead++
			if d.Reason != string(Gone) || d.Attempts[0].Status != 410 {
				t.Errorf("dead: got %+v, want %s after 410", d, Gone)
			}
		}
	}
	if dead != 1 {
		t.Errorf("dead letters: got %d, want 1", dead)
	}
	f.receiver.answer("gone", nil)
	f.apply(e, setSpec(func(s *store.EndpointSpec) { s.Timeout = time.Second }))
	f.waitForPending(func(pending int) bool { return pending == 0 })
	if f.activity(e).Gone {
		t.Error("the endpoint is gone after its spec changed")
	}
}

// 429 with Retry-After, with the real store.
func TestReceiverMayAskForAnEarlierRetry(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("busy", func(s *store.EndpointSpec) { s.Schedule = []time.Duration{10 * time.Hour} })
	failing := failFirst(1, 429)
	f.receiver.answer("busy", func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Retry-After", "1")
		failing(w, q)
	})
	f.dispatch(quickConfig(8))
	ids := f.post(1, "", e)
	f.waitFor(store.StateDelivered, ids...)
	requests := f.receiver.of("busy")
	if got := requests[1].at.Sub(requests[0].at); got < 900*time.Millisecond || got > 5*time.Second {
		t.Errorf("the retry came after %v, want about a second", got)
	}
}

// D10, with the real store: hostile answers are recorded beside ordinary ones, and harm no batch.
func TestHostileAnswersAreRecorded(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	bodies := map[string]string{
		"nul": "a\x00b", "utf8": "\xff\xfe\xfd", "gzip": "\x1f\x8b\x08\x00", "long": strings.Repeat("é", 40<<10), "plain": "fine",
	}
	var endpoints []store.Endpoint
	for name, body := range bodies {
		f.receiver.answer(name, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Odd", "J\xfcrgen")
			w.WriteHeader(400)
			_, _ = io.WriteString(w, body)
		})
		endpoints = append(endpoints, f.endpoint(name))
	}
	id := f.post(1, "", endpoints...)[0]
	f.dispatch(quickConfig(8))
	f.waitFor(store.StateDead, id)
	deliveries := f.event(id).Deliveries
	slices.SortFunc(deliveries, func(a, b store.DeliveryDetail) int { return cmp.Compare(a.Endpoint, b.Endpoint) })
	want := []string{"\uFFFD", strings.Repeat("é", keptResponse/2), "a\uFFFDb", "fine", "\uFFFD"}
	for i, d := range deliveries {
		got := d.Attempts[0].Response
		if !strings.Contains(got, want[i]) && got != want[i] {
			t.Errorf("%s: recorded %q, want %q", d.Endpoint, got, want[i])
		}
	}
}

// An event whose body is lost becomes a dead letter and no endless lease.
func TestLostBodyIsADeadLetter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("any")
	ids := f.accept(2, "", e)
	ask[int](f, "WITH d AS (DELETE FROM postrider.event WHERE id = $1 RETURNING 1) SELECT count(*)::int FROM d", ids[0])
	if err := f.Touch(t.Context(), []store.Touched{{LaneID: e.LaneID}}); err != nil {
		t.Fatal(err)
	}
	f.dispatch(quickConfig(8))
	f.waitForPending(func(pending int) bool { return pending == 0 })
	if reason := ask[string](f, "SELECT reason FROM postrider.dead_letter WHERE event_id = $1", ids[0]); reason != string(BodyLost) {
		t.Errorf("dead letter: got %s, want %s", reason, BodyLost)
	}
	if got := f.receiver.of("any"); len(got) != 1 || got[0].id != ids[1].String() {
		t.Errorf("requests: got %+v, want the one of the other event", got)
	}
}

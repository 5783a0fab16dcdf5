package dispatcher

import (
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/postrider/postrider/store"
)

func inOrder(s *store.EndpointSpec) { s.Ordered = true }

// turns are the events that came to a path, in the order of their first requests, with repeats left out.
func (r *recordingReceiver) turns(name string) (ids []string) {
	for _, q := range r.of(name) {
		if !slices.Contains(ids, q.id) {
			ids = append(ids, q.id)
		}
	}
	return ids
}

func texts(ids ...uuid.UUID) []string {
	all := make([]string, len(ids))
	for i, id := range ids {
		all[i] = id.String()
	}
	return all
}

// byEvent answers by the event, 204 where there is no answer for it.
func byEvent(answers map[uuid.UUID]http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		if answer := answers[uuid.MustParse(q.Header.Get("Webhook-Id"))]; answer != nil {
			answer(w, q)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// A head that is given up, for whatever reason, makes way for the next of its key, which is sent then and not before.
func TestAKeyGoesOnWithoutWhatWasGivenUp(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("frames", inOrder, func(s *store.EndpointSpec) {
		s.MaxAttempts, s.Schedule, s.MaxDuration = 3, []time.Duration{20 * time.Millisecond}, time.Hour
	})
	ids := f.accept(6, "job", e)
	f.receiver.answer("frames", byEvent(map[uuid.UUID]http.HandlerFunc{
		ids[0]: status(http.StatusBadRequest),
		ids[1]: status(http.StatusInternalServerError),
		ids[2]: status(http.StatusServiceUnavailable, "Retry-After", "7200"), // later than an hour from now
		ids[4]: status(http.StatusUnprocessableEntity),
	}))
	if err := f.Touch(t.Context(), []store.Touched{{LaneID: e.LaneID, OrderingKey: "job"}}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		f.dispatch(quickConfig(8))
	}
	f.waitForPending(func(pending int) bool { return pending == 0 })
	for i, want := range []struct {
		reason   Reason // of the dead letter; "": it was delivered
		attempts int
	}{{Rejected, 1}, {AttemptsExhausted, 3}, {Expired, 1}, {"", 1}, {Rejected, 1}, {"", 1}} {
		d := f.delivery(ids[i])
		if dead := d.State == store.StateDead; dead != (want.reason != "") || dead && d.Reason != string(want.reason) || len(d.Attempts) != want.attempts {
			t.Errorf("event %d: got %s %s after %d attempts, want %q after %d", i, d.State, d.Reason, len(d.Attempts), want.reason, want.attempts)
		}
	}
	if got := f.receiver.turns("frames"); !slices.Equal(got, texts(ids...)) {
		t.Errorf("got %v, want %v", got, texts(ids...))
	}
	if n := f.receiver.mostAtOnce("frames"); n != 1 {
		t.Errorf("%d requests of the key at once", n)
	}
}

// While a head waits as its receiver asked by Retry-After, the other keys go on, and its own followers wait with it.
func TestOtherKeysGoOnWhileAHeadWaitsByRetryAfter(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("frames", inOrder)
	waits := f.accept(3, "waits", e)
	var once sync.Once
	f.receiver.answer("frames", byEvent(map[uuid.UUID]http.HandlerFunc{waits[0]: func(w http.ResponseWriter, _ *http.Request) {
		once.Do(func() {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
		})
	}}))
	wake := func() {
		if err := f.Touch(t.Context(), []store.Touched{{LaneID: e.LaneID, OrderingKey: "waits"}}); err != nil {
			t.Fatal(err)
		}
	}
	wake()
	f.dispatch(quickConfig(8))
	others := slices.Concat(f.post(10, "b", e), f.post(10, "c", e))
	f.waitForPending(func(pending int) bool { return pending == len(waits) })
	if got := f.receiver.of("frames"); len(got) != 1+len(others) {
		t.Errorf("got %d requests, want the first of the key that waits, and %d of others", len(got), len(others))
	}
	d := f.delivery(waits[0])
	if left := time.Until(d.NextAttemptAt); len(d.Attempts) != 1 || left > time.Hour || left < 50*time.Minute {
		t.Errorf("got %d attempts and the next in %v, want one and an hour", len(d.Attempts), left)
	}
	f.exec(`UPDATE postrider.delivery SET available_at = now() WHERE available_at < 'infinity'`) // the hour is over
	wake()
	f.exec(`UPDATE postrider.lane SET due_at = now()`)
	f.waitForPending(func(pending int) bool { return pending == 0 })
	rest := f.receiver.of("frames")[1+len(others):]
	if len(rest) != len(waits) {
		t.Fatalf("got %d requests afterwards, want %d", len(rest), len(waits))
	}
	for i, want := range texts(waits...) {
		if rest[i].id != want {
			t.Errorf("request %d of the key that waited: got %s, want %s", i, rest[i].id, want)
		}
	}
}

// A key without a visible row, which nothing else would ever send, and one with two, which would be sent at once, are mended
// by the sweep.
func TestTheSweepMendsKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("frames", inOrder)
	headless, twoHeads := f.post(3, "headless", e), f.post(3, "two heads", e)
	f.post(1, "well", e)
	// Nothing is sent until both are mended, or the second head would be sent before the sweep comes by.
	if _, err := f.Pause(t.Context(), store.WholeInstallation, "a test"); err != nil {
		t.Fatal(err)
	}
	f.dispatch(quickConfig(8))
	visible := func(key string) int {
		return ask[int](f, `SELECT count(*) FROM postrider.delivery WHERE ordering_key = $1 AND available_at < 'infinity'`, key)
	}
	for range 3 { // each time for its first sweep or a later one
		f.exec(`UPDATE postrider.delivery SET available_at = 'infinity' WHERE ordering_key = 'headless'`)
		f.exec(`UPDATE postrider.delivery SET available_at = now() WHERE ordering_key = 'two heads'`)
		waitFor(t, "the sweep", func() bool { return visible("headless") == 1 && visible("two heads") == 1 })
	}
	if visible("well") != 1 {
		t.Errorf("a key that was well has %d visible rows", visible("well"))
	}
	if _, err := f.Resume(t.Context(), store.WholeInstallation); err != nil {
		t.Fatal(err)
	}
	f.waitForPending(func(pending int) bool { return pending == 0 })
	got := f.receiver.turns("frames")
	for key, ids := range map[string][]uuid.UUID{"headless": headless, "two heads": twoHeads} {
		want := texts(ids...)
		if of := slices.DeleteFunc(slices.Clone(got), func(id string) bool { return !slices.Contains(want, id) }); !slices.Equal(of, want) {
			t.Errorf("%s: got %v, want %v", key, of, want)
		}
	}
}

// An endpoint becomes ordered, and unordered again, under load at two dispatchers: what was accepted under the order is
// never sent beside another of its key, and comes in order; at the end all has arrived.
func TestOrderingChangesUnderLoad(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	e := f.endpoint("frames", func(s *store.EndpointSpec) { s.MaxConcurrency = 4 })
	var mu sync.Mutex
	flying := map[string]int{}
	alone := map[string]bool{}
	var order, arrived, broken []string
	f.receiver.answer("frames", func(w http.ResponseWriter, q *http.Request) {
		id := q.Header.Get("Webhook-Id")
		mu.Lock()
		flying[id]++
		if len(flying) > 1 {
			for other := range flying {
				if alone[other] {
					broken = append(broken, fmt.Sprintf("%s beside %v", other, flying))
				}
			}
		}
		if alone[id] && !slices.Contains(arrived, id) {
			arrived = append(arrived, id)
		}
		mu.Unlock()
		time.Sleep(3 * time.Millisecond) // a receiver's work
		mu.Lock()
		delete(flying, id)
		mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	})
	for range 2 {
		f.dispatch(quickConfig(8))
	}
	var all []uuid.UUID
	for range 3 {
		all = append(all, f.post(30, "k", e)...) // a backlog without an order
		e = f.apply(e, setSpec(inOrder))
		ids := f.accept(20, "k", e)
		mu.Lock()
		for _, id := range texts(ids...) {
			alone[id] = true
			order = append(order, id)
		}
		mu.Unlock()
		if err := f.Touch(t.Context(), []store.Touched{{LaneID: e.LaneID, OrderingKey: "k"}}); err != nil {
			t.Fatal(err)
		}
		all = append(all, ids...)
		// Half of them under the order; of the rest nothing is promised any more.
		waitFor(t, "half of what is ordered", func() bool { mu.Lock(); defer mu.Unlock(); return len(arrived) >= len(order)-10 })
		mu.Lock()
		order = order[:len(arrived)]
		if !slices.Equal(arrived, order) {
			t.Errorf("got %v, want %v", arrived, order)
		}
		clear(alone)
		mu.Unlock()
		e = f.apply(e, setSpec(func(s *store.EndpointSpec) { s.Ordered = false }))
	}
	f.waitFor(store.StateDelivered, all...)
	if len(broken) > 0 {
		t.Errorf("sent beside others of its key: %v", broken)
	}
	if n := len(f.receiver.turns("frames")); n != len(all) {
		t.Errorf("%d events arrived, want %d", n, len(all))
	}
}

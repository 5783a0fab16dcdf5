package check

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postrider/postrider/signature"
)

const (
	secret  = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	another = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
)

func keyOf(t *testing.T, secret string) signature.Key {
	t.Helper()
	key, err := signature.ParseKey([]byte(secret))
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// double stands for Postrider: it accepts, and delivers the events of a key one after the other to one endpoint. Its faults
// are those that the check has to find, or has to allow for.
type double struct {
	t        *testing.T
	receiver string
	key      signature.Key

	mutex  sync.Mutex
	posts  int
	events map[string]string // id by idempotency key
	lanes  map[string]chan event
	lines  sync.WaitGroup

	answer func(n int) fate // of the nth request
	lose   func(n int) bool // the nth event
	twice  func(n int) bool
}

// patience of the double with one request.
const patience = time.Second

type fate int

const (
	accept fate = iota
	unavailable
	breakBefore
	breakAfter
	acceptTwice // under two ids
)

type event struct {
	id   string
	body []byte
}

func newDouble(t *testing.T, receiver string) *double {
	t.Helper()
	return &double{t: t, receiver: receiver, key: keyOf(t, secret), events: map[string]string{}, lanes: map[string]chan event{}}
}

func (d *double) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "Bearer token" {
		http.Error(w, "no", http.StatusUnauthorized)
		return
	}
	var body struct {
		Payload     json.RawMessage `json:"payload"`
		Key         string          `json:"ordering_key"`
		Idempotency string          `json:"idempotency_key"`
	}
	if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	d.posts++
	what := accept
	if d.answer != nil {
		what = d.answer(d.posts)
	}
	switch what {
	case unavailable:
		w.Header().Set("Retry-After", "0")
		http.Error(w, "later", http.StatusServiceUnavailable)
		return
	case breakBefore:
		panic(http.ErrAbortHandler)
	case accept, breakAfter, acceptTwice:
	}
	id, again := d.events[body.Idempotency]
	if !again {
		id = "event-" + strconv.Itoa(len(d.events))
		d.events[body.Idempotency] = id
		d.deliver(body.Key, event{id, body.Payload})
	}
	if what == acceptTwice {
		d.deliver(body.Key, event{id + "-again", body.Payload})
	}
	if what == breakAfter {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(http.StatusAccepted)
	_, _ = fmt.Fprintf(w, `{"id": %q, "duplicate": %t, "deliveries": [{"endpoint": "a-b"}]}`, id, again)
}

func (d *double) deliver(key string, e event) {
	n := len(d.events)
	if d.lose != nil && d.lose(n) {
		return
	}
	lane := d.lanes[key]
	if lane == nil {
		lane = make(chan event, 10_000)
		d.lanes[key] = lane
		d.lines.Go(func() {
			for e := range lane {
				d.send(e)
			}
		})
	}
	lane <- e
	if d.twice != nil && d.twice(n) {
		lane <- e
	}
}

// send repeats until it succeeds.
func (d *double) send(e event) {
	for attempt := 1; ; attempt++ {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, d.receiver+"/a/b", bytes.NewReader(e.body))
		if err != nil {
			d.t.Error(err)
			cancel()
			return
		}
		now := time.Now()
		request.Header.Set(signature.HeaderID, e.id)
		request.Header.Set(signature.HeaderTimestamp, signature.Timestamp(now))
		request.Header.Set(signature.HeaderSignature, signature.Sign(e.id, now, e.body, d.key))
		request.Header.Set("Postrider-Attempt", strconv.Itoa(attempt))
		response, err := http.DefaultClient.Do(request)
		ok := false
		if err == nil {
			_, err = new(bytes.Buffer).ReadFrom(response.Body)
			ok = err == nil && response.StatusCode/100 == 2
			_ = response.Body.Close()
		}
		cancel()
		if ok {
			return
		}
	}
}

func (d *double) finish() {
	d.mutex.Lock()
	for _, lane := range d.lanes {
		close(lane)
	}
	d.mutex.Unlock()
	d.lines.Wait()
}

// whole runs a load against the double and returns what the check says.
func whole(t *testing.T, script Script, fault func(*double), o Options) Report {
	t.Helper()
	dir := t.TempDir()
	open := func(name string) *Journal {
		j, err := OpenJournal(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = j.Close() })
		return j
	}
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte("token\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	receiver := httptest.NewServer(NewReceiver(ReceiverOptions{
		Journal: open("receive"), Script: script, Keys: map[string][]signature.Key{"a-b": {keyOf(t, secret)}},
	}))
	t.Cleanup(receiver.Close)
	double := newDouble(t, receiver.URL)
	fault(double)
	ingest := httptest.NewServer(double)
	t.Cleanup(ingest.Close)
	load := Load{URL: ingest.URL, TokenFile: token, Types: []string{"t"}, Workers: 4, Keys: 6, Count: 120, Bytes: 200, Journal: open("load")}
	if err := load.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	double.finish()
	receiver.Close()
	record, err := Read(filepath.Join(dir, "load"), filepath.Join(dir, "receive"))
	if err != nil {
		t.Fatal(err)
	}
	return Check(record, o)
}

func TestAWholeRunHoldsDespiteTroubleOnBothSides(t *testing.T) {
	t.Parallel()
	script := Script{Seed: 7, Rules: []Rule{
		{Percent: 10, Status: 503, RetryAfter: "1"},
		{Percent: 5, Drop: true},
		{Percent: 5, Truncate: true},
		{Percent: 3, Hang: true},
		{Percent: 20, Delay: Duration(5 * time.Millisecond)},
	}}
	report := whole(t, script, func(d *double) {
		d.answer = func(n int) fate {
			switch {
			case n%10 == 3:
				return unavailable
			case n%10 == 5:
				return breakBefore
			case n%10 == 7:
				return breakAfter
			}
			return accept
		}
	}, Options{Ordered: []string{"a-b"}, Timeout: patience, Recovery: 10 * time.Second})
	var text strings.Builder
	report.Print(&text)
	if !report.OK() || report.Accepted != 120 || report.Delivered != 120 || report.Keys != 6 || report.Torn != 0 {
		t.Errorf("got %s", &text)
	}
	if report.Answers["503"] == 0 || report.Answers["none"] == 0 || report.Retries < 10 || report.Recovered == 0 {
		t.Errorf("no trouble was had:\n%s", &text)
	}
}

func TestFaultsOfAWholeRunAreFound(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault func(*double)
		want  Violation
	}{
		"an event is lost":             {func(d *double) { d.lose = func(n int) bool { return n == 50 } }, Lost},
		"an event is delivered twice":  {func(d *double) { d.twice = func(n int) bool { return n == 50 } }, Duplicate},
		"a post becomes two events":    {func(d *double) { d.answer = func(n int) fate { return map[bool]fate{true: acceptTwice}[n == 50] } }, Split},
		"another key signs everything": {func(d *double) { d.key = keyOf(d.t, another); d.lose = func(int) bool { return true } }, Lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := whole(t, Script{}, test.fault, Options{Ordered: []string{"a-b"}})
			if report.Violations[test.want] == 0 {
				t.Errorf("violations: got %v, want %s", report.Violations, test.want)
			}
		})
	}
}

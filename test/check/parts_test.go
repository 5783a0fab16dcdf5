package check

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postrider/postrider/signature"
)

func TestAJournalGoesOnAfterATornLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	write := func(f Fact) {
		t.Helper()
		j, err := OpenJournal(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := j.Write(f); err != nil {
			t.Fatal(err)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if err := j.Write(f); err == nil {
			t.Error("a closed journal takes facts")
		}
	}
	write(Fact{Kind: Sending, Post: "a"})
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := file.WriteString(`{"kind": "accep`); err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	torn, err := Read(path)
	if err != nil || torn.Torn != 1 || len(torn.Facts) != 1 {
		t.Errorf("while torn: got %+v, %v", torn, err)
	}
	write(Fact{Kind: Sending, Post: "b"})
	whole, err := Read(path)
	if err != nil || whole.Torn != 1 || len(whole.Facts) != 2 || whole.Facts[1].Post != "b" || whole.Facts[1].At.Before(whole.Facts[0].At) {
		t.Errorf("afterwards: got %+v, %v", whole, err)
	}
}

func TestJournalsAreReadInTheOrderOfTimeAndEachInItsOwn(t *testing.T) {
	t.Parallel()
	const one = `{"kind":"sending","post":"1","at":"2026-01-01T00:00:05Z"}
{"kind":"sending","post":"2","at":"2026-01-01T00:00:03Z"}
{"kind":"disrupted","problem":"3","at":"2026-01-01T00:00:01Z"}
`
	const other = `{"kind":"sending","post":"4","at":"2026-01-01T00:00:04Z"}` + "\n"
	record, err := ReadFrom(strings.NewReader(one), strings.NewReader(other))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range record.Facts {
		got = append(got, f.Post+f.Problem)
	}
	if strings.Join(got, "") != "3412" {
		t.Errorf("order: got %v, want 3 4 1 2", got)
	}
}

func TestAScriptIsRefusedWithTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"rules": [{"percent": 101}]}`:              "rules[0].percent",
		`{"rules": [{}, {"status": 99}]}`:            "rules[1].status",
		`{"rules": [{"endpoint": "["}]}`:             "rules[0].endpoint",
		`{"rules": [{"delay": "5"}]}`:                "missing unit",
		`{"rules": [{"delay": "5s", "from": "1m"}]}`: "",
	} {
		_, err := ParseScript([]byte(text))
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}

func TestTheFirstRuleThatAppliesDecides(t *testing.T) {
	t.Parallel()
	s := Script{Rules: []Rule{
		{Endpoint: "slow-*", Status: 201},
		{From: Duration(time.Minute), Until: Duration(2 * time.Minute), Status: 503},
		{Attempts: 2, Status: 500},
	}}
	for _, test := range []struct {
		endpoint string
		attempt  int
		played   time.Duration
		want     int
	}{
		{"slow-one", 1, 90 * time.Second, 201},
		{"x", 3, 59 * time.Second, 204},
		{"x", 3, 60 * time.Second, 503},
		{"x", 3, 120 * time.Second, 204},
		{"x", 2, 0, 500},
	} {
		if got := s.rule(Fact{Endpoint: test.endpoint, Attempt: test.attempt}, test.played).status(); got != test.want {
			t.Errorf("%+v: got %d", test, got)
		}
	}
}

func TestChancesComeAsOftenAsAskedAndAgainWithTheSameSeed(t *testing.T) {
	t.Parallel()
	count := func(seed uint64) (n int, fates string) {
		s := Script{Seed: seed, Rules: []Rule{{Percent: 30, Status: 500}}}
		for i := range 10_000 {
			if s.rule(Fact{Post: "run/1", Number: i, Attempt: 1}, 0).Status == 500 {
				n++
				fates += "x"
			} else {
				fates += "."
			}
		}
		return n, fates
	}
	n, fates := count(1)
	if n < 2800 || n > 3200 {
		t.Errorf("30 %% of 10000: got %d", n)
	}
	if _, again := count(1); again != fates {
		t.Error("the same seed gave other fates")
	}
	if _, other := count(2); other == fates {
		t.Error("another seed gave the same fates")
	}
}

func TestAReceiverRefusesWhatDoesNotVerifyAndRecordsIt(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	r := NewReceiver(ReceiverOptions{Journal: journal, Keys: map[string][]signature.Key{"": {keyOf(t, secret)}}})
	server := httptest.NewServer(r)
	defer server.Close()
	ask(t, http.MethodPost, server.URL+"/a/b", `{"post": "p"}`, http.StatusUnauthorized)

	control := httptest.NewServer(Control(path, r))
	defer control.Close()
	text := ask(t, http.MethodGet, control.URL+"/journal", "", http.StatusOK)
	record, err := ReadFrom(strings.NewReader(text))
	if err != nil || len(record.Facts) != 2 || record.Facts[0].Problem == "" || record.Facts[0].Post != "p" || record.Facts[1].Status != 401 {
		t.Errorf("journal: got %s, %v", text, err)
	}
	ask(t, http.MethodPut, control.URL+"/script", `{"rules": [{"status": 1}]}`, http.StatusBadRequest)
	ask(t, http.MethodPut, control.URL+"/script", `{"rules": [{"status": 500}]}`, http.StatusOK)
	if got := r.script.Rules[0].Status; got != 500 {
		t.Errorf("script: got status %d, want 500", got)
	}
	if err := journal.Close(); err != nil {
		t.Fatal(err)
	}
	// What cannot be recorded must be sent again.
	ask(t, http.MethodPost, server.URL+"/a/b", `{"post": "p"}`, http.StatusInternalServerError)
}

func TestAReceiverLies(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rule Rule
		want string // of the fact
	}{
		"by a reset":   {Rule{Reset: true}, onPurpose},
		"by a trickle": {Rule{Trickle: Duration(10 * time.Millisecond)}, goneAway},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "journal")
			journal, err := OpenJournal(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = journal.Close() }()
			server := httptest.NewServer(NewReceiver(ReceiverOptions{
				Journal: journal, Keys: map[string][]signature.Key{"": {keyOf(t, secret)}}, Script: Script{Rules: []Rule{test.rule}},
			}))
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			now := time.Now()
			request, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/a?revision=7", strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Postrider-Attempt", "1")
			request.Header.Set(signature.HeaderID, "e")
			request.Header.Set(signature.HeaderTimestamp, signature.Timestamp(now))
			request.Header.Set(signature.HeaderSignature, signature.Sign("e", now, []byte("{}"), keyOf(t, secret)))
			response, err := http.DefaultClient.Do(request)
			if err == nil {
				_, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			if err == nil {
				t.Error("a whole answer came")
			}
			server.Close() // waits for the handler
			record, err := Read(path)
			if err != nil {
				t.Fatal(err)
			}
			last := record.Facts[len(record.Facts)-1]
			if record.Facts[0].Revision != 7 || !last.Unheard || last.Problem != test.want {
				t.Errorf("facts: got %+v, want the last one %q", record.Facts, test.want)
			}
		})
	}
}

func TestAReceiverRecordsWhichKeysVerifyARequest(t *testing.T) {
	t.Parallel()
	first, second := keyOf(t, secret), keyOf(t, another)
	r := NewReceiver(ReceiverOptions{Keys: map[string][]signature.Key{"": {first, second}}})
	for name, test := range map[string]struct{ signing, want []int }{
		"the first":  {[]int{1}, []int{1}},
		"the second": {[]int{2}, []int{2}},
		"both":       {[]int{2, 1}, []int{1, 2}},
	} {
		request := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/a", nil)
		var keys []signature.Key
		for _, number := range test.signing {
			keys = append(keys, []signature.Key{first, second}[number-1])
		}
		now := time.Now()
		request.Header.Set(signature.HeaderID, "e")
		request.Header.Set(signature.HeaderTimestamp, signature.Timestamp(now))
		request.Header.Set(signature.HeaderSignature, signature.Sign("e", now, []byte("{}"), keys...))
		if got := r.read(request, []byte("{}")).Keys; !slices.Equal(got, test.want) {
			t.Errorf("signed by %s: got %v, want %v", name, got, test.want)
		}
	}
}

func ask(t *testing.T, method, url, body string, want int) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != want {
		t.Fatalf("%s %s: got %s %s, %v, want %d", method, url, response.Status, text, err, want)
	}
	return string(text)
}

func TestALoadGivesUpAPostThatStaysUnanswered(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = journal.Close() }()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }))
	defer server.Close()
	load := Load{URL: server.URL, Types: []string{"t"}, Workers: 1, Count: 1, Patience: 300 * time.Millisecond, Journal: journal}
	if err := load.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	record, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	last := record.Facts[len(record.Facts)-1]
	if record.Facts[0].Kind != Sending || len(record.Facts) < 3 || last.Kind != Unknown || last.Post != record.Facts[0].Post {
		t.Errorf("facts: got %+v", record.Facts)
	}
}

func TestALoadKeepsItsRateAndEndsWithItsContext(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	journal, err := OpenJournal(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = journal.Close() }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	n := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n++; n == 10 { // one worker: one at a time
			cancel()
		}
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, `{"id": "x"}`)
	}))
	defer server.Close()
	begun := time.Now()
	load := Load{URL: server.URL, Types: []string{"t"}, Workers: 1, Rate: 100, Journal: journal}
	if err := load.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begun); took < 90*time.Millisecond {
		t.Errorf("10 posts at 100 a second took %s", took)
	}
	record, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(record.Facts); got < 20 || got > 22 || record.Facts[got-1].Kind != Accepted || record.Facts[0].Due.IsZero() {
		t.Errorf("facts: got %d, the last one %+v", got, record.Facts[got-1])
	}
}

func TestALoadSaysWhatItLacks(t *testing.T) {
	t.Parallel()
	if err := (&Load{}).Run(t.Context()); err == nil {
		t.Error("an empty load runs")
	}
	journal, err := OpenJournal(filepath.Join(t.TempDir(), "journal"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = journal.Close() }()
	load := Load{URL: "http://127.0.0.1:1", Types: []string{"t"}, TokenFile: filepath.Join(t.TempDir(), "none"), Count: 5, Journal: journal}
	if err := load.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "read the token") {
		t.Errorf("without its token: got %v", err)
	}
}

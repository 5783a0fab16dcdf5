package access

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// watched is a guard before a handler that tells whether it was reached.
type watched struct {
	*Guard
	handler http.Handler
	log     *bytes.Buffer
	seen    http.Header // by the handler, lastly
}

func guarding(t *testing.T, server *apiServer) *watched {
	t.Helper()
	w := &watched{log: &bytes.Buffer{}}
	w.Guard = NewGuard(server.client(t), slog.New(slog.NewTextHandler(w.log, nil)))
	w.handler = w.Protect(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { w.seen = r.Header.Clone() }))
	return w
}

func (w *watched) get(t *testing.T, path string, authorization ...string) *httptest.ResponseRecorder {
	t.Helper()
	return w.do(t, http.MethodGet, path, authorization...)
}

func (w *watched) do(t *testing.T, method, path string, authorization ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	for _, value := range authorization {
		r.Header.Add("Authorization", value)
	}
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r)
	return answer
}

const jane = `{"authenticated":true,"user":{"username":"jane"}}`

func TestAGuardLetsPassWhomTheAPIAllows(t *testing.T) {
	t.Parallel()
	const good = "Bearer secret-token"
	for name, c := range map[string]struct {
		authorization []string
		answer        func(int, *http.Request) (int, string)
		want, asked   int
	}{
		"allowed":                 {[]string{good}, says(jane, `{"allowed":true}`), 200, 2},
		"in another case":         {[]string{"bearer secret-token"}, says(jane, `{"allowed":true}`), 200, 2},
		"no token":                {nil, says(jane, `{"allowed":true}`), 401, 0},
		"two tokens":              {[]string{good, good}, says(jane, `{"allowed":true}`), 401, 0},
		"no scheme":               {[]string{"secret-token"}, says(jane, `{"allowed":true}`), 401, 0},
		"another scheme":          {[]string{"Basic c2VjcmV0OnRva2Vu"}, says(jane, `{"allowed":true}`), 401, 0},
		"an empty token":          {[]string{"Bearer "}, says(jane, `{"allowed":true}`), 401, 0},
		"a token and more":        {[]string{good + " more"}, says(jane, `{"allowed":true}`), 401, 0},
		"a list":                  {[]string{good + "," + good}, says(jane, `{"allowed":true}`), 401, 0},
		"a huge token":            {[]string{"Bearer " + strings.Repeat("x", maxToken+1)}, says(jane, `{"allowed":true}`), 401, 0},
		"a bad token":             {[]string{good}, says(`{"error":"it quotes secret-token"}`, `{"allowed":true}`), 401, 1},
		"denied":                  {[]string{good}, says(jane, `{"denied":true,"reason":"it quotes secret-token"}`), 403, 2},
		"no rule":                 {[]string{good}, says(jane, `{}`), 403, 2},
		"the API away":            {[]string{good}, fails(0, "it quotes no token"), 503, 1},
		"the API forbids reviews": {[]string{good}, fails(403, failure(403, "Forbidden", "")), 503, 1},
		"away before the second": {[]string{good}, func(asked int, _ *http.Request) (int, string) {
			if asked == 1 {
				return 201, tokenReview(jane)
			}
			return 403, failure(403, "Forbidden", "")
		}, 503, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := &apiServer{answer: c.answer}
			w := guarding(t, server)
			answer := w.get(t, "/metrics", c.authorization...)
			if answer.Code != c.want || len(server.asked()) != c.asked {
				t.Errorf("got %d after %d questions, want %d after %d", answer.Code, len(server.asked()), c.want, c.asked)
			}
			if reached := w.seen != nil; reached != (c.want == 200) {
				t.Errorf("the handler was reached: %t", reached)
			}
			if w.seen.Get("Authorization") != "" {
				t.Error("the handler sees the token")
			}
			if said := answer.Body.String() + fmt.Sprint(answer.Header()); strings.Contains(said, "secret-token") || strings.Contains(said, "jane") {
				t.Errorf("the answer tells too much: %s", said)
			}
			if got, want := answer.Header().Get("WWW-Authenticate") != "", c.want == 401; got != want {
				t.Errorf("it asks for a token: %t", got)
			}
			if got, want := answer.Header().Get("Retry-After") != "", c.want == 503; got != want {
				t.Errorf("it asks to try again: %t", got)
			}
		})
	}
}

func fails(status int, body string) func(int, *http.Request) (int, string) {
	return func(int, *http.Request) (int, string) { return status, body }
}

func TestAGuardAsksForMethodAndPath(t *testing.T) {
	t.Parallel()
	server := &apiServer{answer: says(jane, `{"allowed":true}`)}
	w := guarding(t, server)
	for range 2 {
		w.do(t, http.MethodGet, "/metrics?name=x", "Bearer one")
		w.do(t, http.MethodPost, "/metrics", "Bearer one")
		w.do(t, http.MethodGet, "/debug/pprof/heap", "Bearer one")
		w.do(t, http.MethodGet, "/metrics", "Bearer two")
	}
	var got []string
	for _, spec := range server.asked() {
		if what, ok := spec["nonResourceAttributes"].(map[string]any); ok {
			got = append(got, fmt.Sprint(what["verb"], " ", what["path"]))
		} else if _, limited := spec["audiences"]; limited {
			t.Error("an audience is asked for")
		}
	}
	if diff := cmp.Diff([]string{"get /metrics", "post /metrics", "get /debug/pprof/heap", "get /metrics"}, got); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

func TestAGuardRemembersForAMinuteWhatWasAllowed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		allow := says(jane, `{"allowed":true}`)
		server := &apiServer{answer: allow}
		w := guarding(t, server)
		want := func(status, asked int) {
			t.Helper()
			if got := w.get(t, "/metrics", "Bearer secret-token").Code; got != status || len(server.asked()) != asked {
				t.Errorf("got %d after %d questions, want %d after %d", got, len(server.asked()), status, asked)
			}
		}
		want(200, 2)
		server.answer = says(jane, `{}`)
		time.Sleep(allowFor - time.Nanosecond)
		want(200, 2)
		time.Sleep(time.Nanosecond)
		want(403, 4)
		want(403, 6) // a refusal is not remembered
		if w.allowed.Len() != 0 {
			t.Error("who was refused is still known")
		}
		server.answer = fails(0, "connection refused")
		want(503, 7)
		server.answer = allow
		want(200, 9)
		server.answer = fails(0, "connection refused")
		want(200, 9)
		time.Sleep(allowFor)
		want(503, 10)
		if w.allowed.Len() != 1 {
			t.Error("an outage makes the known unknown")
		}
	})
}

func TestAGuardsMemoryIsBounded(t *testing.T) {
	t.Parallel()
	w := guarding(t, &apiServer{answer: says(jane, `{"allowed":true}`)})
	for i := range 2 * maxAllowed {
		w.get(t, fmt.Sprint("/metrics/", i), "Bearer secret-token")
	}
	if got := w.allowed.Len(); got != maxAllowed {
		t.Errorf("%d answers are remembered, want %d", got, maxAllowed)
	}
}

// A flood of garbage, each of which is a review, neither reaches the API server as one nor keeps the known out.
func TestGarbageTokensNeitherFloodTheAPINorKeepTheKnownOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &apiServer{answer: says(jane, `{"allowed":true}`)}
		w := guarding(t, server)
		w.get(t, "/metrics", "Bearer known")
		time.Sleep(allowFor)

		server.answer = func(_ int, r *http.Request) (int, string) {
			<-r.Context().Done()
			return 0, ""
		}
		const flood = 100
		codes := make(chan int, flood)
		for i := range flood {
			go func() { codes <- w.get(t, "/metrics", fmt.Sprint("Bearer ", i)).Code }()
		}
		synctest.Wait()
		if got := len(server.asked()) - 2; got != maxReviews {
			t.Errorf("%d reviews at once, want %d", got, maxReviews)
		}
		if got := len(codes); got != flood-maxReviews {
			t.Errorf("%d were sent away at once, want %d", got, flood-maxReviews)
		}
		server.answer = says(jane, `{"allowed":true}`)
		if got := w.get(t, "/metrics", "Bearer known").Code; got != 200 {
			t.Errorf("the known one got %d", got)
		}
		for range flood {
			if got := <-codes; got != 503 {
				t.Errorf("one of the flood got %d", got)
			}
		}
		if got := w.get(t, "/metrics", "Bearer new").Code; got != 200 {
			t.Errorf("after the flood, a new one got %d", got)
		}
	})
}

func TestAGuardLogsAnOutageOnce(t *testing.T) {
	t.Parallel()
	server := &apiServer{answer: fails(403, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"tokenreviews is forbidden","reason":"Forbidden","code":403}`)}
	w := guarding(t, server)
	for range 3 {
		w.get(t, "/metrics", "Bearer secret-token")
	}
	if got := w.log.String(); strings.Count(got, "level=WARN") != 1 || !strings.Contains(got, "forbidden") || strings.Contains(got, "secret-token") {
		t.Errorf("the log of an outage:\n%s", got)
	}
	server.answer = says(jane, `{}`)
	for range 3 {
		w.get(t, "/metrics", "Bearer secret-token")
	}
	if got := w.log.String(); strings.Count(got, "level=INFO") != 1 {
		t.Errorf("the log after the outage:\n%s", got)
	}
}

func TestACallerThatLeavesIsNoOutage(t *testing.T) {
	t.Parallel()
	left, leave := context.WithCancel(t.Context())
	w := guarding(t, &apiServer{answer: func(int, *http.Request) (int, string) {
		leave()
		return 0, ""
	}})
	r := httptest.NewRequestWithContext(left, http.MethodGet, "/metrics", nil)
	r.Header.Set("Authorization", "Bearer secret-token")
	answer := httptest.NewRecorder()
	w.handler.ServeHTTP(answer, r)
	if answer.Code != 503 || w.log.Len() > 0 {
		t.Errorf("got %d and the log:\n%s", answer.Code, w.log)
	}
}

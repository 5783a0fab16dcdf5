package ingest

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/postrider/postrider/store"
)

func TestEveryRefusalIsAProblem(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	const good = `{"type":"a","payload":1}`
	tests := []struct {
		name   string
		q      request
		status int
	}{
		{"no such route", request{path: "/api/v2/events"}, 404},
		{"the root", request{path: "/"}, 404},
		{"a slash more", request{path: "/api/v1/events/?namespace=a", body: good}, 404},
		{"a path that is not clean", request{path: "//api/v1/events?namespace=a", body: good}, 404},
		{"dots in the path", request{path: "/api/v1/x/../events?namespace=a", body: good}, 404},
		{"GET of a POST route", request{path: "/api/v1/events"}, 405},
		{"POST to a GET route", request{path: "/openapi.json", body: good}, 405},
		{"DELETE", request{method: "DELETE", path: "/api/v1/events/" + uuid.NewString()}, 405},
		{"OPTIONS", request{method: "OPTIONS"}, 405},
		{"a method of its own", request{method: "BREW"}, 405},
		{"no namespace", request{body: good}, 422},
		{"an empty namespace", request{path: "/api/v1/events?namespace=", body: good}, 422},
		{"two namespaces", request{path: "/api/v1/events?namespace=a&namespace=b", body: good}, 422},
		{"a namespace that cannot be", request{path: "/api/v1/events?namespace=A_b", body: good}, 422},
		{"a query that cannot be read", request{path: "/api/v1/events?namespace=%zz", body: good}, 400},
		{"an unknown id", request{path: "/api/v1/events/" + uuid.NewString() + "?namespace=a"}, 404},
		{"an id that is none", request{path: "/api/v1/events/1?namespace=a"}, 404},
		{"an id in another form", request{path: "/api/v1/events/" + strings.ToUpper(uuid.NewString()) + "?namespace=a"}, 404},
		{"no content type", request{path: "/api/v1/events?namespace=a", body: good, header: map[string]string{"Content-Type": ""}}, 415},
		{"text", request{path: "/api/v1/events?namespace=a", body: good, header: map[string]string{"Content-Type": "text/plain"}}, 415},
		{"another charset", request{path: "/api/v1/events?namespace=a", body: good, header: map[string]string{"Content-Type": "application/json; charset=latin1"}}, 415},
		{"a gzip body", request{path: "/api/v1/events?namespace=a", body: good, header: map[string]string{"Content-Encoding": "gzip"}}, 415},
		{"identity and gzip", request{path: "/api/v1/events?namespace=a", body: good, header: map[string]string{"Content-Encoding": "identity, gzip"}}, 415},
		{"no body", request{method: "POST", path: "/api/v1/events?namespace=a", header: map[string]string{"Content-Type": "application/json"}}, 400},
		{"malformed JSON", request{path: "/api/v1/events?namespace=a", body: `{`}, 400},
		{"an empty event", request{path: "/api/v1/events?namespace=a", body: `{}`}, 422},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := r.do(t, tt.q).want(t, tt.status)
			p := a.problem(t)
			if p.Status != tt.status || p.Type == "" || p.Title == "" || p.Detail == "" {
				t.Errorf("got %s", a.body)
			}
			if tt.status == 405 && a.header.Get("Allow") == "" {
				t.Error("405 without Allow")
			}
		})
	}
}

func TestJSONWithACharsetAndIdentityEncodingIsTaken(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	r.do(t, request{path: "/api/v1/events?namespace=a", body: `{"type":"a","payload":1}`, header: map[string]string{
		"Content-Type": `Application/JSON; charset="UTF-8"`, "Content-Encoding": "identity",
	}}).accepted(t)
}

func TestRequestIDs(t *testing.T) {
	t.Parallel()
	r := startOpen(t, &double{})
	for given, kept := range map[string]bool{
		"": false, "abc-123_/:.+=@": true, strings.Repeat("x", 128): true,
		strings.Repeat("x", 129): false, "a b": false, "a\"b": false, "é": false,
	} {
		a := r.do(t, request{path: "/nowhere", header: map[string]string{"X-Request-Id": given}})
		id := a.header.Get("X-Request-Id")
		if id == "" || (id == given) != kept {
			t.Errorf("given %q, got %q, want it kept: %v", given, id, kept)
		}
		if p := a.problem(t); p.RequestID != id {
			t.Errorf("the problem has %q, the header %q", p.RequestID, id)
		}
	}
}

func TestAPanicIsA500WithoutItsStack(t *testing.T) {
	t.Parallel()
	d := &double{matching: func() (store.Matching, error) { panic("index 17 of a secret") }}
	r := startOpen(t, d)
	a := r.do(t, request{path: "/api/v1/events?namespace=a", body: `{"type":"a","payload":1}`}).want(t, 500)
	for _, word := range []string{"secret", "goroutine", ".go:"} {
		if strings.Contains(string(a.body), word) {
			t.Errorf("the answer has %q: %s", word, a.body)
		}
	}
	if !strings.Contains(r.logs.String(), "route.go") {
		t.Error("the log has no stack")
	}
	r.do(t, request{path: "/openapi.json"}).want(t, 200)
}

func TestAFaultOfOursIsA500WithoutSQL(t *testing.T) {
	t.Parallel()
	d := &double{accepts: func([]store.NewEvent) ([]store.Acceptance, error) {
		return nil, errors.New(`ERROR: relation "postrider.event" does not exist (SQLSTATE 42P01)`)
	}}
	a := startOpen(t, d).do(t, request{path: "/api/v1/events?namespace=a", body: `{"type":"a","payload":1}`}).want(t, 500)
	if strings.Contains(string(a.body), "postrider.event") || strings.Contains(string(a.body), "SQLSTATE") {
		t.Errorf("the answer tells of the database: %s", a.body)
	}
}

func TestEndpointsThatKeepChangingAreA503(t *testing.T) {
	t.Parallel()
	tries := 0
	d := &double{accepts: func(events []store.NewEvent) ([]store.Acceptance, error) {
		tries++
		return []store.Acceptance{{Stale: true}}, nil
	}}
	a := startOpen(t, d).do(t, request{path: "/api/v1/events?namespace=a", body: `{"type":"a","payload":1}`}).want(t, 503)
	if tries != maxStale || a.header.Get("Retry-After") == "" {
		t.Errorf("%d tries, want %d; Retry-After %q", tries, maxStale, a.header.Get("Retry-After"))
	}
}

func TestHeadIsAnsweredAsGet(t *testing.T) {
	t.Parallel()
	a := startOpen(t, &double{}).do(t, request{method: http.MethodHead, path: "/openapi.json"}).want(t, 200)
	if len(a.body) != 0 {
		t.Error("HEAD has a body")
	}
}

package access

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
)

func TestWhoseATokenIs(t *testing.T) {
	t.Parallel()
	const user = `"user":{"username":"jane","uid":"u","groups":["a","system:authenticated"],"extra":{"scopes":["x","y"]}}`
	jane := Identity{Name: "jane", UID: "u", Groups: []string{"a", "system:authenticated"}, Extra: map[string][]string{"scopes": {"x", "y"}}}
	for name, c := range map[string]struct {
		status, audience string
		want             Identity // the zero value: refused
	}{
		"accepted":                         {`{"authenticated":true,` + user + `}`, "", jane},
		"accepted for the audience":        {`{"authenticated":true,"audiences":["other","ours"],` + user + `}`, "ours", jane},
		"for no audience":                  {`{"authenticated":true,` + user + `}`, "ours", Identity{}},
		"for empty audiences":              {`{"authenticated":true,"audiences":[],` + user + `}`, "ours", Identity{}},
		"for another audience":             {`{"authenticated":true,"audiences":["other"],` + user + `}`, "ours", Identity{}},
		"not authenticated":                {`{}`, "", Identity{}},
		"not authenticated, for us":        {`{"audiences":["ours"],` + user + `}`, "ours", Identity{}},
		"not authenticated, with an error": {`{"error":"it quotes secret-token"}`, "", Identity{}},
		"an error all the same":            {`{"authenticated":true,"audiences":["ours"],"error":"it quotes secret-token",` + user + `}`, "ours", Identity{}},
		"no group of the authenticated": {
			`{"authenticated":true,"user":{"username":"jane","groups":["a"]}}`, "",
			Identity{Name: "jane", Groups: []string{"a", "system:authenticated"}},
		},
		"the group of the others": {
			`{"authenticated":true,"user":{"username":"jane","groups":["system:unauthenticated"]}}`, "",
			Identity{Name: "jane", Groups: []string{"system:unauthenticated"}},
		},
		"anonymous": {`{"authenticated":true,"user":{"username":"system:anonymous"}}`, "", Identity{Name: "system:anonymous"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := &apiServer{answer: says(c.status, "")}
			got, err := server.client(t).Whose(t.Context(), "secret-token", c.audience)
			if refused := c.want.Name == ""; refused != errors.Is(err, ErrRefused) || !refused && err != nil {
				t.Fatalf("got the error %v, want a refusal: %t", err, refused)
			}
			if err != nil && strings.Contains(err.Error(), "secret-token") {
				t.Errorf("the error has the token: %v", err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("identity (-want +got):\n%s", diff)
			}
			want := map[string]any{"token": "secret-token"}
			if c.audience != "" {
				want["audiences"] = []any{c.audience}
			}
			if diff := cmp.Diff([]map[string]any{want}, server.asked()); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatAnIdentityMayDo(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status string
		want   error
	}{
		"allowed":                      {`{"allowed":true}`, nil},
		"allowed, with an error":       {`{"allowed":true,"evaluationError":"a role is missing"}`, nil},
		"denied":                       {`{"allowed":false,"denied":true}`, ErrRefused},
		"both":                         {`{"allowed":true,"denied":true}`, ErrRefused},
		"no opinion":                   {`{"allowed":false,"reason":"no rule"}`, ErrRefused},
		"no opinion, with an error":    {`{"allowed":false,"evaluationError":"a role is missing"}`, ErrRefused},
		"an answer that says nothing":  {`{}`, ErrRefused},
		"denied, and that by an error": {`{"denied":true,"evaluationError":"a role is missing"}`, ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := (&apiServer{answer: says("", c.status)}).client(t)
			if err := api.May(t.Context(), Identity{Name: "jane"}, authorizationv1.ResourceAttributes{}); !errors.Is(err, c.want) {
				t.Errorf("resource: got %v, want %v", err, c.want)
			}
			if err := api.MayReach(t.Context(), Identity{Name: "jane"}, authorizationv1.NonResourceAttributes{}); !errors.Is(err, c.want) {
				t.Errorf("path: got %v, want %v", err, c.want)
			}
		})
	}
}

func TestAllOfAnIdentityIsReviewed(t *testing.T) {
	t.Parallel()
	server := &apiServer{answer: says("", `{"allowed":true}`)}
	api := server.client(t)
	who := Identity{Name: "jane", UID: "u", Groups: []string{"a", "b"}, Extra: map[string][]string{"scopes": {"x"}}}
	if err := api.May(t.Context(), who, authorizationv1.ResourceAttributes{
		Namespace: "billing", Verb: "create", Group: "g", Version: "v1", Resource: "r", Subresource: "s",
	}); err != nil {
		t.Fatal(err)
	}
	if err := api.MayReach(t.Context(), who, authorizationv1.NonResourceAttributes{Path: "/metrics", Verb: "get"}); err != nil {
		t.Fatal(err)
	}
	with := func(name string, attributes map[string]any) map[string]any {
		return map[string]any{
			"user": "jane", "uid": "u", "groups": []any{"a", "b"}, "extra": map[string]any{"scopes": []any{"x"}}, name: attributes,
		}
	}
	if diff := cmp.Diff([]map[string]any{
		with("resourceAttributes", map[string]any{
			"namespace": "billing", "verb": "create", "group": "g", "version": "v1", "resource": "r", "subresource": "s",
		}),
		with("nonResourceAttributes", map[string]any{"path": "/metrics", "verb": "get"}),
	}, server.asked()); diff != "" {
		t.Errorf("asked (-want +got):\n%s", diff)
	}
}

// What is no verdict is an outage, whatever stands in the API server's place. Only what it asks for is tried again.
func TestOutagesAreNoRefusals(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		status int // 0: the connection fails
		body   string
		tries  int
	}{
		"no connection":          {0, "connection refused", 1},
		"a page":                 {200, "<html>sign in</html>", 1},
		"an empty object":        {200, "{}", 1},
		"nothing":                {200, "", 1},
		"a success of no review": {200, `{"kind":"Status","status":"Success"}`, 1},
		"a review without":       {201, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1"}`, 1},
		"the other review":       {201, accessReview(`{"allowed":true}`), 1},
		"half a review":          {201, tokenReview(`{"authenticated":true`), 1},
		"a huge review":          {201, strings.Repeat(" ", maxReview) + tokenReview(`{"authenticated":true}`), 1},
		"forbidden":              {403, failure(403, "Forbidden", ""), 1},
		"unauthorized":           {401, failure(401, "Unauthorized", ""), 1},
		"bad request":            {400, failure(400, "BadRequest", ""), 1},
		"away for once":          {503, failure(503, "ServiceUnavailable", ""), 1},
		"internal error":         {500, failure(500, "InternalError", ""), 3},
		"too many requests":      {429, failure(429, "TooManyRequests", ""), 3},
		"timeout":                {504, failure(504, "Timeout", ""), 3},
		"a delay is suggested":   {504, failure(504, "ServerTimeout", `"retryAfterSeconds":1`), 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				server := &apiServer{answer: func(int, *http.Request) (int, string) { return c.status, c.body }}
				_, err := server.client(t).Whose(t.Context(), "secret-token", "")
				if err == nil || errors.Is(err, ErrRefused) {
					t.Errorf("got %v, want an error that is no refusal", err)
				}
				if got := len(server.asked()); got != c.tries {
					t.Errorf("asked %d times, want %d (%v)", got, c.tries, err)
				}
			})
		})
	}
}

func TestAReviewIsTriedAgainBrieflyAndThenCounts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &apiServer{answer: func(asked int, _ *http.Request) (int, string) {
			if asked < 3 {
				return 500, failure(500, "InternalError", "")
			}
			return 201, accessReview(`{"allowed":true}`)
		}}
		began := time.Now()
		if err := server.client(t).May(t.Context(), Identity{Name: "jane"}, authorizationv1.ResourceAttributes{}); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < 300*time.Millisecond || took > 360*time.Millisecond {
			t.Errorf("the two pauses took %v, want 100 and 200 ms and up to a fifth more", took)
		}
	})
}

// The time is that of all tries together, and the caller's own end counts too.
func TestAReviewEndsInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		server := &apiServer{answer: func(asked int, r *http.Request) (int, string) {
			if asked == 1 {
				time.Sleep(timeout - time.Second)
				return 500, failure(500, "InternalError", "")
			}
			<-r.Context().Done()
			return 0, ""
		}}
		began := time.Now()
		_, err := server.client(t).Whose(t.Context(), "secret-token", "")
		if took := time.Since(began); took != timeout || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("took %v and got %v, want the timeout of %v", took, err, timeout)
		}
		ended, end := context.WithCancel(t.Context())
		end()
		if _, err := server.client(t).Whose(ended, "secret-token", ""); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the context's end", err)
		}
	})
}

func TestALostConnectionIsTriedAgain(t *testing.T) {
	t.Parallel()
	if !passing(syscall.ECONNRESET) || !passing(errors.New("http2: client connection lost")) {
		t.Error("a lost connection ends a review")
	}
	if passing(nil) || passing(syscall.ECONNREFUSED) || passing(context.DeadlineExceeded) {
		t.Error("what will not pass is tried again")
	}
}

func TestOnlyServiceAccountsHaveANamespace(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"system:serviceaccount:billing:producer":                       "billing",
		"system:serviceaccount:b-1:pro.du-cer.1":                       "b-1",
		"system:serviceaccount:billing":                                "",
		"system:serviceaccount:billing:":                               "",
		"system:serviceaccount::producer":                              "",
		"system:serviceaccount::":                                      "",
		"system:serviceaccount:billing:producer:more":                  "",
		"system:serviceaccount:billing:producer:":                      "",
		"system:serviceaccount:Billing:producer":                       "",
		"system:serviceaccount:bil.ling:producer":                      "",
		"system:serviceaccount:billing:Producer":                       "",
		"system:serviceaccount:billing:producer/x":                     "",
		"system:serviceaccount:billing:-producer":                      "",
		"system:serviceaccount:bill ing:producer":                      "",
		" system:serviceaccount:billing:producer":                      "",
		"System:serviceaccount:billing:producer":                       "",
		"oidc:system:serviceaccount:billing:producer":                  "",
		"system:serviceaccounts:billing:producer":                      "",
		"system:serviceaccount:" + strings.Repeat("n", 63) + ":p":      strings.Repeat("n", 63),
		"system:serviceaccount:" + strings.Repeat("n", 64) + ":p":      "",
		"system:serviceaccount:billing:" + strings.Repeat("p", 254):    "",
		"system:serviceaccount:billing:producer\nsystem:serviceaccoun": "",
		"jane": "",
		"":     "",
	} {
		if got := (Identity{Name: name}).Namespace(); got != want {
			t.Errorf("%q: got %q, want %q", name, got, want)
		}
	}
}

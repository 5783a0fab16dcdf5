package ingest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/access"
	"github.com/postrider/postrider/test/localstack"
)

// cluster is a client with every right, for what a test arranges.
type cluster struct {
	config *rest.Config
	*kubernetes.Clientset
}

func clusterOf(t testing.TB, config *rest.Config) *cluster {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{config: config, Clientset: client}
}

// grant lets a ServiceAccount do something with the events of a namespace, and waits until the API server knows.
func (c *cluster) grant(t testing.TB, in, namespace, name string, verbs ...string) (revoke func()) {
	t.Helper()
	rule := rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource + "/" + subresource}, Verbs: verbs}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: in, GenerateName: "events-"}, Rules: []rbacv1.PolicyRule{rule}}
	role, err := c.RbacV1().Roles(in).Create(t.Context(), role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: in, GenerateName: "events-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: name}},
	}
	binding, err = c.RbacV1().RoleBindings(in).Create(t.Context(), binding, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	account := "system:serviceaccount:" + namespace + ":" + name
	for _, verb := range verbs {
		c.known(t, account, in, verb, true)
	}
	return func() {
		t.Helper()
		if err := c.RbacV1().RoleBindings(in).Delete(t.Context(), binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		c.known(t, account, in, verbs[0], false)
	}
}

// known waits until the API server's authorizer has heard of a change.
func (c *cluster) known(t testing.TB, who, namespace, verb string, allowed bool) {
	t.Helper()
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: who, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: verb, Group: group, Resource: resource, Subresource: subresource,
		},
	}}
	eventually(t, fmt.Sprintf("allowed: %v", allowed), func() bool {
		got, err := c.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return got.Status.Allowed == allowed
	})
}

// ingestIdentity is a ServiceAccount with system:auth-delegator and nothing else, as the chart makes it.
func (c *cluster) ingestIdentity(t testing.TB) *rest.Config {
	t.Helper()
	namespace := localstack.Namespace(t, c.config)
	token := localstack.ServiceAccountToken(t, c.config, namespace, "ingest")
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "ingest-" + namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:auth-delegator"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "ingest"}},
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config := localstack.TokenConfig(c.config, token)
	delegate, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "delegating", func() bool {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: "nobody", ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Resource: "pods"},
		}}
		_, err := delegate.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		return err == nil
	})
	return config
}

// Who is let in where, by a real API server.
func TestCredentials(t *testing.T) {
	t.Parallel()
	c := clusterOf(t, localstack.KubeAPI(t))
	billing, shipping := localstack.Namespace(t, c.config), localstack.Namespace(t, c.config)
	c.grant(t, billing, billing, "producer", verbPost, verbRead)
	c.grant(t, billing, billing, "reader", verbRead)
	good := localstack.ServiceAccountToken(t, c.config, billing, "producer", Audience)
	tampered := good[:len(good)-4] + map[bool]string{true: "AAAA", false: "BBBB"}[!strings.HasSuffix(good, "AAAA")]
	n := newTenant(t, billing)
	r := start(t, options{store: n.store, kubernetes: c.ingestIdentity(t)})
	posted := r.do(t, request{token: good, body: simple}).accepted(t)

	tokens := map[string]string{
		"the API server's own audience": localstack.ServiceAccountToken(t, c.config, billing, "producer"),
		"another audience":              localstack.ServiceAccountToken(t, c.config, billing, "producer", "vault"),
		"expired":                       localstack.ExpiredServiceAccountToken(t, c.config, billing, "producer", Audience),
		"tampered":                      tampered,
		"garbage":                       "garbage",
		"a JWT of nobody's":             "eyJhbGciOiJub25lIn0.eyJhdWQiOiJwb3N0cmlkZXIiLCJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6YTpiIn0.",
	}
	for name, token := range tokens {
		for _, q := range []request{{token: token, body: simple}, {token: token, path: "/api/v1/events/" + posted.ID}} {
			a := r.do(t, q).want(t, 401)
			if !strings.Contains(a.header.Get("WWW-Authenticate"), `error="invalid_token"`) {
				t.Errorf("%s: WWW-Authenticate is %q", name, a.header.Get("WWW-Authenticate"))
			}
			if strings.Contains(string(a.body), token) && len(token) > 20 {
				t.Errorf("%s: the answer has the token", name)
			}
		}
	}
	if a := r.do(t, request{body: simple}).want(t, 401); strings.Contains(a.header.Get("WWW-Authenticate"), "error") {
		t.Errorf("without a token, WWW-Authenticate is %q", a.header.Get("WWW-Authenticate"))
	}
	for _, header := range []string{"Basic dTpw", "Bearer", "Bearer ", "Bearer a b", good, "Bearer " + good + ", Bearer " + good} {
		r.do(t, request{body: simple, header: map[string]string{"Authorization": header}}).want(t, 401)
	}

	other := localstack.ServiceAccountToken(t, c.config, shipping, "producer", Audience)
	reader := localstack.ServiceAccountToken(t, c.config, billing, "reader", Audience)
	for name, tt := range map[string]struct {
		q      request
		status int
	}{
		"a namespace without the role":           {request{token: other, body: simple}, 403},
		"another's namespace":                    {request{token: other, path: "/api/v1/events?namespace=" + billing, body: simple}, 403},
		"a namespace that does not exist":        {request{token: good, path: "/api/v1/events?namespace=nowhere", body: simple}, 403},
		"its own namespace, named":               {request{token: good, path: "/api/v1/events?namespace=" + billing, body: simple}, 202},
		"reading with the right to read":         {request{token: reader, path: "/api/v1/events/" + posted.ID}, 200},
		"posting with the right to read":         {request{token: reader, body: simple}, 403},
		"reading another's namespace":            {request{token: other, path: "/api/v1/events/" + posted.ID + "?namespace=" + billing}, 403},
		"a body over the limit without the role": {request{token: other, body: bodyOf(300 << 10)}, 403},
	} {
		t.Run(name, func(t *testing.T) {
			r.do(t, tt.q).want(t, tt.status)
		})
	}

	for name, token := range tokens {
		if len(token) > 20 && strings.Contains(r.logs.String(), token) {
			t.Errorf("the log has the token (%s)", name)
		}
	}
	if strings.Contains(r.logs.String(), good) {
		t.Error("the log has the good token")
	}
	var audited map[string]any
	for line := range strings.SplitSeq(r.logs.String(), "\n") {
		if strings.Contains(line, "request denied") && strings.Contains(line, shipping) && strings.Contains(line, "403") {
			if err := json.Unmarshal([]byte(line), &audited); err != nil {
				t.Fatal(err)
			}
		}
	}
	if audited["level"] != "INFO" || audited["user"] != "system:serviceaccount:"+shipping+":producer" || audited["remote"] == "" {
		t.Errorf("the denial was logged as %v", audited)
	}
}

func TestAnotherNamespaceIsHonouredWhereRBACAllows(t *testing.T) {
	t.Parallel()
	c := clusterOf(t, localstack.KubeAPI(t))
	home, away := localstack.Namespace(t, c.config), localstack.Namespace(t, c.config)
	c.grant(t, away, home, "producer", verbPost)
	n := newTenant(t, away)
	n.endpoint(t, "ledger", "*")
	r := start(t, options{store: n.store, kubernetes: c.config})
	token := localstack.ServiceAccountToken(t, c.config, home, "producer", Audience)
	r.do(t, request{token: token, body: simple}).want(t, 403)
	if got := r.do(t, request{token: token, path: n.path(), body: simple}).accepted(t); got.Matched != 1 {
		t.Errorf("got %+v, want the other namespace's endpoint", got)
	}
}

// A wildcard on events, which many roles have for Kubernetes' own Events, grants nothing here.
func TestAWildcardOnEventsGrantsNothing(t *testing.T) {
	t.Parallel()
	c := clusterOf(t, localstack.KubeAPI(t))
	billing := localstack.Namespace(t, c.config)
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: billing, Name: "events"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"*"}, Resources: []string{"events", "webhookendpoints"}, Verbs: []string{"*"}},
	}}
	if _, err := c.RbacV1().Roles(billing).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: billing, Name: "events"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "events"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: billing, Name: "producer"}},
	}
	if _, err := c.RbacV1().RoleBindings(billing).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	r := start(t, options{store: &double{}, kubernetes: c.config})
	r.do(t, request{token: localstack.ServiceAccountToken(t, c.config, billing, "producer", Audience), body: simple}).want(t, 403)
}

// The API server is stopped: identities that it allowed lately are let in, others are not.
func TestTheAPIServerAway(t *testing.T) {
	t.Parallel()
	api := localstack.StartKubeAPI(t, localstack.KubeAPIOptions{})
	c := clusterOf(t, api.Config())
	billing := localstack.Namespace(t, c.config)
	c.grant(t, billing, billing, "producer", verbPost)
	c.grant(t, billing, billing, "newcomer", verbPost)
	revoke := c.grant(t, billing, billing, "dismissed", verbPost)
	token := func(name string) string {
		return localstack.ServiceAccountToken(t, c.config, billing, name, Audience)
	}
	lately, newcomer, dismissed, gone, stranger := token("producer"), token("newcomer"), token("dismissed"), token("producer"), token("stranger")
	s := &double{}
	r := start(t, options{store: s, kubernetes: c.config, config: func(c *Config) {
		c.Review.AllowFor, c.Review.DenyFor, c.Review.Timeout = 0, 0, time.Second
	}})
	for _, allowed := range []string{lately, dismissed, gone} {
		r.do(t, request{token: allowed, body: simple}).accepted(t)
	}
	r.do(t, request{token: stranger, body: simple}).want(t, 403)
	// Denied before the outage: one loses its role, another its ServiceAccount's token.
	revoke()
	r.do(t, request{token: dismissed, body: simple}).want(t, 403)

	api.Stop()
	for range 3 {
		r.do(t, request{token: lately, body: simple}).accepted(t)
	}
	for name, tt := range map[string]request{
		"one never seen":                       {token: newcomer, body: simple},
		"one that was denied after it was let": {token: dismissed, body: simple},
		"one that was only ever denied":        {token: stranger, body: simple},
		"garbage":                              {token: "garbage", body: simple},
		"another verb":                         {token: lately, path: "/api/v1/events/" + uuid.NewString()},
		"another namespace":                    {token: lately, path: "/api/v1/events?namespace=kube-system", body: simple},
	} {
		a := r.do(t, tt)
		if a.status != 503 || a.header.Get("Retry-After") == "" {
			t.Errorf("%s: status %d, want 503 with Retry-After", name, a.status)
		}
	}
	if testutil.ToFloat64(r.metrics.graceUsed) == 0 {
		t.Error("no remembered review was counted")
	}

	if err := api.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the newcomer let in", func() bool { return r.do(t, request{token: newcomer, body: simple}).status == 202 })
	r.do(t, request{token: dismissed, body: simple}).want(t, 403)
}

// A token that is deleted with its ServiceAccount is a bad one, and stays one when the API server goes.
func TestADeletedServiceAccountIsOutForGood(t *testing.T) {
	t.Parallel()
	api := localstack.StartKubeAPI(t, localstack.KubeAPIOptions{})
	c := clusterOf(t, api.Config())
	billing := localstack.Namespace(t, c.config)
	c.grant(t, billing, billing, "producer", verbPost)
	token := localstack.ServiceAccountToken(t, c.config, billing, "producer", Audience)
	r := start(t, options{store: &double{}, kubernetes: c.config, config: func(c *Config) {
		c.Review.AllowFor, c.Review.DenyFor, c.Review.Timeout = 0, 0, time.Second
	}})
	r.do(t, request{token: token, body: simple}).accepted(t)
	if err := c.CoreV1().ServiceAccounts(billing).Delete(t.Context(), "producer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "refused", func() bool { return r.do(t, request{token: token, body: simple}).status == 401 })
	api.Kill()
	r.do(t, request{token: token, body: simple}).want(t, 503)
}

// A server without system:auth-delegator cannot ask. That is its operator's fault and nobody's credential's.
func TestIngestWithoutItsOwnPermissionIsA503(t *testing.T) {
	t.Parallel()
	c := clusterOf(t, localstack.KubeAPI(t))
	billing := localstack.Namespace(t, c.config)
	c.grant(t, billing, billing, "producer", verbPost)
	powerless := localstack.TokenConfig(c.config, localstack.ServiceAccountToken(t, c.config, billing, "ingest"))
	r := start(t, options{store: &double{}, kubernetes: powerless})
	r.do(t, request{token: localstack.ServiceAccountToken(t, c.config, billing, "producer", Audience), body: simple}).want(t, 503)
	if !strings.Contains(r.logs.String(), "forbidden") {
		t.Errorf("the log does not say why:\n%s", r.logs)
	}
}

// Something else answers in the API server's place, or half of it: an outage, whatever it says.
func TestAnAnswerThatIsNoReviewIsAnOutage(t *testing.T) {
	t.Parallel()
	for name, handle := range map[string]http.HandlerFunc{
		"a page":          func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>sign in</html>") },
		"an empty object": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}") },
		"nothing":         func(http.ResponseWriter, *http.Request) {},
		"another kind": func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"kind":"Status","status":"Success"}`)
		},
		"a fault":           func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"too many requests": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTooManyRequests) },
		"not authorised":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
		"a redirect":        func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/login", http.StatusFound) },
		"half a review": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, `{"kind":"TokenReview","status":{}`)
		},
		"a review that hangs": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // a client's leaving shows only after that
			<-r.Context().Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := httptest.NewServer(handle)
			t.Cleanup(api.Close)
			r := start(t, options{store: &double{}, kubernetes: &rest.Config{Host: api.URL}, config: func(c *Config) {
				c.Review.Timeout = 500 * time.Millisecond
			}})
			r.do(t, request{token: "x.y.z", body: simple}).want(t, 503)
		})
	}
}

// reviewer is an API server that counts what it is asked, for what no real one shows.
type reviewer struct {
	tokens, accesses atomic.Int32
	url              string
}

func newReviewer(t *testing.T, status func(token string) string) *reviewer {
	t.Helper()
	v := &reviewer{}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		if strings.HasSuffix(r.URL.Path, "/subjectaccessreviews") {
			v.accesses.Add(1)
			_, _ = io.WriteString(w, `{"kind":"SubjectAccessReview","apiVersion":"authorization.k8s.io/v1","status":{"allowed":true}}`)
			return
		}
		v.tokens.Add(1)
		var review struct{ Spec struct{ Token string } }
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		_, _ = fmt.Fprintf(w, `{"kind":"TokenReview","apiVersion":"authentication.k8s.io/v1","status":%s}`, status(review.Spec.Token))
	}))
	t.Cleanup(api.Close)
	v.url = api.URL
	return v
}

// Some authenticators know nothing of audiences and answer without any: such a token was not meant for us.
func TestAnAnswerWithoutAudiencesLetsNobodyIn(t *testing.T) {
	t.Parallel()
	const who = `"authenticated":true,"user":{"username":"system:serviceaccount:billing:producer"}`
	v := newReviewer(t, func(token string) string {
		return map[string]string{
			"none":  `{` + who + `}`,
			"other": `{` + who + `,"audiences":["https://kubernetes.default.svc"]}`,
			"ours":  `{` + who + `,"audiences":["https://kubernetes.default.svc","postrider"]}`,
			"user":  `{"authenticated":true,"user":{"username":"jane"},"audiences":["postrider"]}`,
		}[token]
	})
	r := start(t, options{store: &double{}, kubernetes: &rest.Config{Host: v.url}})
	r.do(t, request{token: "none", body: simple}).want(t, 401)
	r.do(t, request{token: "other", body: simple}).want(t, 401)
	r.do(t, request{token: "ours", body: simple}).want(t, 202)
	r.do(t, request{token: "user", body: simple}).want(t, 422) // it has no namespace of its own
	r.do(t, request{token: "user", path: "/api/v1/events?namespace=billing", body: simple}).want(t, 202)
}

func TestManyProducersAreNotThrottledByTheClient(t *testing.T) {
	t.Parallel()
	v := newReviewer(t, func(token string) string {
		return `{"authenticated":true,"user":{"username":"system:serviceaccount:billing:` + token + `"},"audiences":["postrider"]}`
	})
	r := start(t, options{store: &double{}, kubernetes: &rest.Config{Host: v.url}, config: func(c *Config) {
		c.Review.MaxInFlight, c.Review.Timeout = 200, 30*time.Second
	}})
	began := time.Now()
	var all sync.WaitGroup
	for i := range 200 {
		all.Go(func() {
			for range 3 {
				a, err := r.try(t.Context(), request{token: fmt.Sprintf("p%d", i), body: simple})
				if err != nil || a.status != 202 {
					t.Errorf("status %d, %v", a.status, err)
				}
			}
		})
	}
	all.Wait()
	// With the client's default of 5 a second and a burst of 10, 200 reviews of a kind take 38 s.
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("200 producers took %v", took)
	}
	if v.tokens.Load() != 200 || v.accesses.Load() != 200 {
		t.Errorf("%d token and %d access reviews for 600 requests of 200 producers, want 200 each", v.tokens.Load(), v.accesses.Load())
	}
}

func TestPermissionsAreRememberedByAllThatDecides(t *testing.T) {
	t.Parallel()
	who := func(change func(*access.Identity)) digest {
		info := access.Identity{Name: "n", UID: "u", Groups: []string{"a", "b"}, Extra: map[string][]string{"scopes": {"x"}}}
		change(&info)
		return accessDigest(info, "create", "ns")
	}
	same := who(func(*access.Identity) {})
	for name, change := range map[string]func(*access.Identity){
		"name":         func(i *access.Identity) { i.Name = "m" },
		"uid":          func(i *access.Identity) { i.UID = "v" },
		"name and uid": func(i *access.Identity) { i.Name, i.UID = "nu", "" },
		"groups":       func(i *access.Identity) { i.Groups = []string{"a"} },
		"joined":       func(i *access.Identity) { i.Groups = []string{"ab"} },
		"extra":        func(i *access.Identity) { i.Extra["scopes"] = []string{"y"} },
		"more extra":   func(i *access.Identity) { i.Extra["more"] = nil },
	} {
		if who(change) == same {
			t.Errorf("another %s is taken for the same", name)
		}
	}
	for name, change := range map[string]func(*access.Identity){
		"order of groups": func(i *access.Identity) { i.Groups = []string{"b", "a"} },
		"pod":             func(i *access.Identity) { i.Extra["authentication.kubernetes.io/pod-name"] = []string{"p"} },
	} {
		if who(change) != same {
			t.Errorf("another %s is taken for somebody else", name)
		}
	}
	info := access.Identity{Name: "n"}
	if accessDigest(info, "create", "ns") == accessDigest(info, "get", "ns") || accessDigest(info, "create", "ns") == accessDigest(info, "create", "ns2") {
		t.Error("verb or namespace do not count")
	}
}

func TestExpiryIsReadFromTheToken(t *testing.T) {
	t.Parallel()
	for token, want := range map[string]time.Time{
		"e30.eyJleHAiOjE3MDAwMDAwMDB9.x":  time.Unix(1_700_000_000, 0),
		"e30.eyJleHAiOjE3MDAwMDAwMDAuNX0": {},
		"e30.e30.x":                       {},
		"e30.!.x":                         {},
		"e30.eyJleHAiOi0xfQ.x":            {},
		"e30.eyJleHAiOjFlOTl9.x":          {},
		"opaque":                          {},
		"":                                {},
	} {
		if got := expiryOf(token); !got.Equal(want) {
			t.Errorf("%q: got %v, want %v", token, got, want)
		}
	}
}

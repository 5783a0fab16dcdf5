package secrecy

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/localstack"
)

func TestMain(m *testing.M) { localstack.Main(m) }

// Promise 5: no secret leaves.
func TestNoSecretIsWrittenAnywhere(t *testing.T) {
	t.Parallel()
	// Random, so that nothing of them is found by chance.
	var (
		first     = "whsec_" + base64.StdEncoding.EncodeToString([]byte(rand.Text()))
		second    = rand.Text()
		prefixed  = "v1,whsec_" + base64.StdEncoding.EncodeToString([]byte(rand.Text()))
		broken    = "whsec_" + rand.Text() + "*"
		short     = rand.Text()[:20]
		header    = "Basic " + rand.Text()
		query     = rand.Text()
		bodyValue = rand.Text()
		garbage   = rand.Text()
	)
	in := install(t)
	in.producer()
	in.setSecret(first)
	in.create(&v1alpha1.WebhookEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.WebhookEndpointSpec{
			URL: in.receiver.URL + "/hook?token=" + query, EventTypes: []v1alpha1.EventTypePattern{"*"},
			Signing: v1alpha1.Signing{SecretRef: v1alpha1.SecretKeyReference{Name: name}},
			Headers: []v1alpha1.Header{{Name: "Authorization", Value: header}},
			Retry:   &v1alpha1.Retry{Schedule: []v1alpha1.Duration{"100ms"}},
		},
	})
	ready := func(e v1alpha1.WebhookEndpoint) bool {
		return meta.IsStatusConditionTrue(e.Status.Conditions, v1alpha1.ConditionReady)
	}
	in.awaitReady("the endpoint is Ready", ready)

	// Events arrive, fail, die; credentials are refused.
	event := `{"type": "invoice.paid", "payload": {"value": "` + bodyValue + `"}}`
	deliver := func(n int32) {
		t.Helper()
		want := in.received.Load() + n
		if status, text := in.post(in.token, event); status != http.StatusAccepted {
			t.Fatalf("post: %d %s", status, text)
		}
		in.await("the event arrives", func(context.Context) bool { return in.received.Load() >= want })
	}
	deliver(1)
	in.status.Store(http.StatusInternalServerError)
	deliver(2)
	in.awaitReady("the dead letter is in the status", func(e v1alpha1.WebhookEndpoint) bool {
		return e.Status.DeadLetterCount != nil && *e.Status.DeadLetterCount == 1
	})
	in.status.Store(http.StatusOK)
	answers := map[string]string{}
	for what, request := range map[string][2]string{
		"a garbage token":      {garbage, event},
		"a half token":         {in.token[:len(in.token)/2], event},
		"a malformed event":    {in.token, event[:len(event)-3]},
		"an unknown field":     {in.token, `{"type": "a", "payload": 1, "` + bodyValue + `": 1}`},
		"an event of no type":  {in.token, `{"payload": {"value": "` + bodyValue + `"}}`},
		"another content type": {in.token, bodyValue},
	} {
		status, text := in.post(request[0], request[1])
		if status < 400 || status > 499 {
			t.Errorf("%s: %d %s", what, status, text)
		}
		if what != "an unknown field" { // which the answer names
			answers["answer to "+what] = text
		}
	}

	// Every kind of Secret that cannot be used, and one more that can.
	for _, bad := range []string{prefixed, broken, short} {
		in.setSecret(bad)
		in.awaitReady("the Secret is refused", func(e v1alpha1.WebhookEndpoint) bool {
			c := meta.FindStatusCondition(e.Status.Conditions, v1alpha1.ConditionReady)
			return c != nil && c.Reason == v1alpha1.ReasonInvalidSigningKey
		})
		in.setSecret(second)
		in.awaitReady("the endpoint is Ready again", ready)
	}
	in.awaitReady("both keys sign", func(e v1alpha1.WebhookEndpoint) bool { return ready(e) && len(e.Status.SigningKeys) == 2 })
	deliver(1)

	// The database goes away under all of them.
	in.postgres.Stop()
	in.await("ingest answers 503", func(context.Context) bool {
		status, text := in.post(in.token, event)
		answers["answer without a database"] = text
		return status == http.StatusServiceUnavailable
	})
	if err := in.postgres.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	in.await("ingest accepts again", func(context.Context) bool {
		status, _ := in.post(in.token, event)
		return status == http.StatusAccepted
	})
	want := in.received.Load() + 1
	in.await("and it is delivered", func(context.Context) bool { return in.received.Load() >= want })

	logs, shown, rows := in.everything()
	everywhere := []Secret{
		NewSecret("first key", first), NewSecret("second key", second), NewSecret("prefixed key", prefixed),
		NewSecret("broken key", broken), NewSecret("short key", short), NewSecret("header value", strings.TrimPrefix(header, "Basic ")),
		NewSecret("producer's token", in.token), NewSecret("garbage token", garbage),
		NewSecret("encryption key", strings.TrimPrefix(in.keyring, "local:")), NewSecret("database password", password(t, in.database)),
	}
	// The URL and the event are what the database is for.
	outside := []Secret{NewSecret("query of the URL", query), NewSecret("body", bodyValue)}
	for _, places := range []map[string]string{logs, shown, answers} {
		search(t, places, append(everywhere, outside...))
	}
	search(t, rows, everywhere)

	// The search itself finds what is there.
	for _, s := range outside {
		if _, found := s.FoundIn(strings.Join(values(rows), "\n")); !found {
			t.Errorf("the %s is not found in the database, where it must be: the search is blind", s.Name)
		}
	}
	for place, text := range logs {
		if strings.HasPrefix(place, "log of the ") && !strings.Contains(text, `"level":"DEBUG`) {
			t.Errorf("%s has nothing at the most verbose level: this test would prove too little", place)
		}
	}
}

func search(t *testing.T, places map[string]string, secrets []Secret) {
	t.Helper()
	for place, text := range places {
		for _, s := range secrets {
			if around, found := s.FoundIn(text); found {
				t.Errorf("%s: %s", place, around)
			}
		}
	}
}

func values(m map[string]string) (all []string) {
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

// password of a connection string.
func password(t *testing.T, dsn string) string {
	t.Helper()
	parsed, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	secret, ok := parsed.User.Password()
	if !ok || len(secret) < window {
		t.Fatal("the database needs no password worth searching for: this test would prove nothing")
	}
	return secret
}

func producerBinding() *rbacv1.RoleBinding {
	return &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: namespace},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "postrider-producer"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "app", Namespace: namespace}},
	}
}

package main

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/postrider/postrider/store"
	"github.com/postrider/postrider/test/localstack"
)

// A database that another cluster has is refused by whoever can tell; who cannot, takes the installation's word.
func TestADatabaseOfAnotherClusterIsRefused(t *testing.T) {
	t.Parallel()
	s, err := store.Open(t.Context(), store.Options{DSN: localstack.Database(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	in := installation{namespace: "postrider-system", release: "postrider"}
	if err := s.Own(t.Context(), store.Installation{Namespace: in.namespace, Release: in.release, ClusterUID: "ours"}, false); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		status int
		answer string
		want   error
	}{
		"the same cluster": {200, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"ours"}}`, nil},
		"another cluster":  {200, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":"theirs"}}`, store.ErrOwned},
		"not allowed":      {403, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`, nil},
		"away":             {503, `{}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path != "/api/v1/namespaces/kube-system" {
					t.Errorf("asked for %s", r.URL.Path)
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(tt.status)
				_, _ = io.WriteString(w, tt.answer)
			}))
			t.Cleanup(api.Close)
			err := ownInCluster(t.Context(), slog.New(slog.DiscardHandler), s, in, &rest.Config{Host: api.URL})
			if !errors.Is(err, tt.want) || (err != nil) != (tt.want != nil) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

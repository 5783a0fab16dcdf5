package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Profiles are served where they are asked for; the command line, which may hold a password, never is.
func TestProfilesAreServedWhereTheyAreAskedFor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		profiling bool
		path      string
		want      int
	}{
		{false, "/debug/pprof/", http.StatusNotFound},
		{false, "/debug/pprof/heap", http.StatusNotFound},
		{true, "/debug/pprof/", http.StatusOK},
		{true, "/debug/pprof/heap", http.StatusOK},
		{true, "/debug/pprof/cmdline", http.StatusNotFound},
		{true, "/metrics", http.StatusOK},
		{true, "/livez", http.StatusOK},
		{true, "/readyz", http.StatusServiceUnavailable},
	} {
		o := observing{profiling: c.profiling}
		handler := o.handler(newRegistry(), guard{}, func() error { return errors.New("it waits") })
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, c.path, nil))
		if answer.Code != c.want {
			t.Errorf("profiling %t: %s: got %d, want %d", c.profiling, c.path, answer.Code, c.want)
		}
	}
}

package controllers

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
)

func TestLibrariesAreNotHeardBelowTheBound(t *testing.T) {
	t.Parallel()
	var text bytes.Buffer
	handler := slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.Level(-128)})
	logger := libraryLogger(handler).WithName("client-go").WithValues("verb", "GET")
	for level := range 12 {
		logger.V(level).Info("said", "level", level)
	}
	for _, level := range []string{"level=0", "level=4", "level=5"} {
		if !strings.Contains(text.String(), level) {
			t.Errorf("nothing of %s", level)
		}
	}
	for _, level := range []string{"level=6", "level=8", "level=10", "level=11"} {
		if strings.Contains(text.String(), level) {
			t.Errorf("heard: %s", level)
		}
	}
	if logger.V(8).Enabled() {
		t.Error("client-go would make up the text of a response's body for nothing")
	}
	// Without a logger in the context, client-go uses this one; TestMain redirected it.
	if klog.Background().V(8).Enabled() || klog.FromContext(logr.NewContext(t.Context(), logger)).V(8).Enabled() {
		t.Error("bodies of responses would be logged")
	}
}

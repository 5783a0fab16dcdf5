package controllers

import (
	"context"
	"log/slog"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
)

// mostVerbose is the level below which nothing of the Kubernetes libraries is logged, whatever the handler would take.
// From verbosity 6 on client-go logs requests, from 8 on the bodies of responses too, and among those are Secrets.
const mostVerbose = slog.Level(-5)

// RedirectLogs sends what controller-runtime and client-go log outside of any context to a handler, for the whole
// process. Call it once, before Run. Without it client-go logs to standard error and controller-runtime not at all.
func RedirectLogs(handler slog.Handler) {
	logger := libraryLogger(handler)
	ctrl.SetLogger(logger)
	klog.SetLoggerWithOptions(logger, klog.ContextualLogger(true))
}

// libraryLogger is the logger for the Kubernetes libraries: the handler, deaf to what may hold secrets.
func libraryLogger(handler slog.Handler) logr.Logger {
	return logr.FromSlogHandler(bounded{handler})
}

// bounded drops records below mostVerbose.
type bounded struct{ slog.Handler }

func (b bounded) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= mostVerbose && b.Handler.Enabled(ctx, level)
}

// Handle is asked without Enabled by some.
func (b bounded) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < mostVerbose {
		return nil
	}
	return b.Handler.Handle(ctx, record)
}

func (b bounded) WithAttrs(attrs []slog.Attr) slog.Handler {
	return bounded{b.Handler.WithAttrs(attrs)}
}

func (b bounded) WithGroup(name string) slog.Handler { return bounded{b.Handler.WithGroup(name)} }

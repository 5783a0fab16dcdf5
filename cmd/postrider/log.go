package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/pflag"
)

// logging says what is logged, and how. Standard error gets one JSON object a line.
type logging struct {
	level  string
	format string
	least  slog.LevelVar // what is in force
}

func (l *logging) flags(f *pflag.FlagSet) {
	f.StringVar(&l.level, "log-level", "info", "least level that is logged: debug, info, warn or error")
	mayChange(f, "log-level")
	f.StringVar(&l.format, "log-format", "json", "json, or text for reading by eye")
}

func (l *logging) validate() error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return fmt.Errorf("--log-level: %q is not debug, info, warn or error", l.level)
	}
	if l.format != "json" && l.format != "text" {
		return fmt.Errorf("--log-format: %q is neither json nor text", l.format)
	}
	return nil
}

// logger also becomes the default, for what libraries log.
func (l *logging) logger(part string) *slog.Logger {
	l.follow(l)
	options := &slog.HandlerOptions{Level: &l.least}
	var handler slog.Handler = slog.NewJSONHandler(os.Stderr, options)
	if l.format == "text" {
		handler = slog.NewTextHandler(os.Stderr, options)
	}
	log := slog.New(handler).With("part", part)
	slog.SetDefault(log)
	return log
}

// follow puts the level of other settings in force, for loggers that are made and in use.
func (l *logging) follow(next *logging) {
	var level slog.Level
	_ = level.UnmarshalText([]byte(next.level)) // validated
	l.least.Set(level)
}

package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/fencelock/fencelock/internal/supervise"
)

// newLogger writes text to a terminal and JSON to anything else, unless the
// configuration says which.
func newLogger(cfg config, w io.Writer) *slog.Logger { return loggerFrom(cfg, cfg.logLevel, w) }

// newAudit is the same log for administrative acts, which no level hides.
func newAudit(cfg config, w io.Writer) *slog.Logger {
	return loggerFrom(cfg, min(cfg.logLevel, slog.LevelInfo), w)
}

func loggerFrom(cfg config, level slog.Level, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if cfg.logFormat == "text" || cfg.logFormat == "" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

// isTerminal reports whether a person sees what is written to w, or types what
// is read from it.
func isTerminal(w any) bool {
	file, ok := w.(*os.File)
	return ok && supervise.IsTerminal(file)
}

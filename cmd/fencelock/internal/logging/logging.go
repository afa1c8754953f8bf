// Package logging makes the logs of servers and of the tools that work on their nodes.
package logging

import (
	"io"
	"log/slog"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

// New is a log that writes text to a terminal and JSON to anything else, unless the
// configuration says which.
func New(cfg config.Config, w io.Writer) *slog.Logger { return loggerFrom(cfg, cfg.LogLevel, w) }

// NewAudit is the same log for administrative acts, which no level hides.
func NewAudit(cfg config.Config, w io.Writer) *slog.Logger {
	return loggerFrom(cfg, min(cfg.LogLevel, slog.LevelInfo), w)
}

func loggerFrom(cfg config.Config, level slog.Level, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if cfg.LogFormat == "text" || cfg.LogFormat == "" && cli.IsTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

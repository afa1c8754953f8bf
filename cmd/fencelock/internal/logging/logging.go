// Package logging makes the logs of servers and of the tools that work on their nodes.
package logging

import (
	"io"
	"log/slog"

	"github.com/fencelock/fencelock/cmd/fencelock/internal/cli"
	"github.com/fencelock/fencelock/cmd/fencelock/internal/config"
)

// New returns a log that writes text to a terminal and JSON to anything else, unless the configuration
// sets the format.
func New(cfg config.Config, w io.Writer) *slog.Logger { return loggerFrom(cfg, cfg.LogLevel, w) }

// NewAudit returns the same kind of log for administrative acts. The configured level does not hide them.
func NewAudit(cfg config.Config, w io.Writer) *slog.Logger {
	return loggerFrom(cfg, min(cfg.LogLevel, slog.LevelInfo), w)
}

// IsText reports whether the log is text for people, not JSON for programs.
func IsText(cfg config.Config, w io.Writer) bool {
	return cfg.LogFormat == "text" || cfg.LogFormat == "" && cli.IsTerminal(w)
}

func loggerFrom(cfg config.Config, level slog.Level, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if IsText(cfg, w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

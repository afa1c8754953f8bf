package rowlog

import (
	"context"
	"log/slog"
	"time"
)

// Patiently runs load under a time limit. If the limit ends a run that read more than the run before,
// Patiently runs it again. So a start survives a log that takes long to read, and fails on a store that sends
// nothing. read returns how many entries were read so far, and their total.
func Patiently(ctx context.Context, patience time.Duration, logger *slog.Logger, read func() (entries, of int), load func(context.Context) error) error {
	for before := 0; ; {
		limited, cancel := context.WithTimeout(ctx, patience)
		err := load(limited)
		over := limited.Err() != nil
		cancel()
		now, of := read()
		if err == nil || !over || ctx.Err() != nil || now == before {
			return err
		}
		logger.Info("reading the locks takes long", "entries", now, "of", of)
		before = now
	}
}

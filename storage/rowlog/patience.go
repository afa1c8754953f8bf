package rowlog

import (
	"context"
	"log/slog"
	"time"
)

// Patiently runs load under a time limit, and runs it again while the time limit ends and
// more was read meanwhile. So a start survives a log that takes long to read, and a store
// that sends nothing ends it. Read says how many entries were read so far, and of how many.
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

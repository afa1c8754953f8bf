// Package pause waits between attempts, longer each time.
package pause

import (
	"context"
	"time"
)

// For waits for d. It returns early with the context's error if ctx ends.
func For(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Grow doubles the pause within the bounds first and longest, and returns it.
func Grow(pause *time.Duration, first, longest time.Duration) time.Duration {
	*pause = min(max(first, 2**pause), longest)
	return *pause
}

// Package pause waits between attempts, longer each time.
package pause

import (
	"context"
	"time"
)

// For waits for d. It returns false, early, if ctx ends before.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Grow doubles the pause within the bounds first and longest, and returns it.
func Grow(pause *time.Duration, first, longest time.Duration) time.Duration {
	*pause = min(max(first, 2**pause), longest)
	return *pause
}

package client

import (
	"context"
	"fmt"
)

// workContext is the context of work under a lease. Its Err reads the clock, so that it is right as soon as a
// paused process continues. Timers, and the goroutine that keeps the lease alive, run only a moment later.
type workContext struct {
	context.Context

	cancel context.CancelCauseFunc // cancels the embedded Context
	lost   func() error            // returns why the lease is lost by the clock; nil if it is not
}

// Err returns an error from the moment at which the margin before the end of the lease's validity begins, on
// the monotonic clock.
func (c workContext) Err() error {
	if err := c.Context.Err(); err != nil {
		return err
	}
	if lost := c.lost(); lost != nil {
		c.cancel(lost)
	}
	return c.Context.Err()
}

func (c workContext) String() string { return fmt.Sprint(c.Context) + ".UnderLease" }

package client

import (
	"context"
	"fmt"
)

// workContext is the context of work under a lease. Its Err looks at the clock, so that
// it is right at once when the process was paused: timers and the goroutine that keeps
// the lease alive run a moment later.
type workContext struct {
	context.Context

	cancel context.CancelCauseFunc // of the Context
	lost   func() error            // why the lease is lost by the clock, or nil
}

// Err is not nil from the moment on in which the lease's validity, less the margin, is
// over on the monotonic clock.
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

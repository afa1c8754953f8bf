package membership

import (
	"context"
	"time"
)

// Observe observes every node now, each within a time limit, and has those prove that they
// take writes whose last one is older than an interval. Status then describes the nodes as
// they were after the call began. Calls that come together share one observation.
func (c *Controller) Observe(ctx context.Context) {
	called := time.Now()
	var last time.Time
	select {
	case last = <-c.refreshed: // no other call observes until it is put back
	case <-ctx.Done():
		return
	}
	defer func() { c.refreshed <- last }()
	if last.After(called) {
		return
	}
	began := time.Now()
	sideBySide(c.all(), func(i int) { c.observeNode(ctx, i, c.cfg.WatchInterval) })
	if ctx.Err() == nil {
		last = began
	}
}

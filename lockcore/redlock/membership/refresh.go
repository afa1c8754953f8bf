package membership

import (
	"context"
	"time"
)

// Observe observes every node now, each within a time limit. Nodes whose last write is older than an interval
// must also prove that they can be written. Status then describes the nodes as they were after the call began.
// Concurrent calls share one observation.
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

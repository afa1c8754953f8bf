package api

import (
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// publishWaitAfter is how long a request waits before an event says so: most
// requests are granted sooner.
const publishWaitAfter = 50 * time.Millisecond

// waiting is a request that waits while events are read; nil for any other.
type waiting struct {
	hub   *events.Hub
	timer *time.Timer
	event wire.Event

	mu        sync.Mutex
	published bool
	ended     bool
}

func beginWaiting(hub *events.Hub, req *lockcore.AcquireRequest) *waiting {
	if req.Wait == 0 || req.Resource == "" || !hub.Listened() { // a request for several resources waits for each
		return nil
	}
	w := &waiting{hub: hub, event: wire.Event{Resource: req.Resource, Holder: req.Holder}}
	w.timer = time.AfterFunc(publishWaitAfter, w.publish)
	return w
}

func (w *waiting) publish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.published = true
		w.hub.Publish(events.Event{Kind: wire.EventWaiting, Event: w.event})
	}
}

// end publishes that a wait ended without a grant; a grant has an event of its own.
func (w *waiting) end(granted bool) {
	if w == nil {
		return
	}
	w.timer.Stop()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended = true; w.published && !granted {
		w.hub.Publish(events.Event{Kind: wire.EventLeft, Event: w.event})
	}
}

package events

import (
	"time"

	"github.com/fencelock/fencelock/api/internal/deadlines"
	"github.com/fencelock/fencelock/api/wire"
)

// maxHolders bounds a holders: events of the ends of further leases name no holder.
const maxHolders = 50_000

// holders are the labels of the leases that events told of, since who ends a lease may not
// know its holder. It has no clock.
type holders struct {
	labels deadlines.Map[grant, string] // until the lease's TTL has passed, and late
}

// grant identifies a lease of one resource.
type grant struct {
	resource string
	token    int64
}

// late is how long after the end of a TTL an event may say so.
const late = 5 * time.Second

// name takes an event, and adds the holder to one of a lease that ends.
func (h *holders) name(e *Event, now time.Time) {
	of := grant{e.Resource, e.FencingToken}
	switch e.Kind {
	case wire.EventGranted, wire.EventExtended:
		if e.Holder != "" && h.labels.Len() < maxHolders {
			h.labels.Put(of, e.Holder, now.Add(time.Duration(e.TTLMS)*time.Millisecond+late))
		}
	case wire.EventReleased, wire.EventBroken, wire.EventExpired:
		if label, ok := h.labels.Delete(of); ok && e.Holder == "" {
			e.Holder = label
		}
	}
}

// forget drops the labels of leases that are over.
func (h *holders) forget(now time.Time) {
	for range h.labels.TakeDue(now) { // drops them
	}
}

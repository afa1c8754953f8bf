package events

import (
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Granted publishes that a lease was granted, resource by resource.
func (h *Hub) Granted(lease *lockcore.Lease) { h.lives(wire.EventGranted, lease) }

// Extended publishes that a lease was extended, resource by resource.
func (h *Hub) Extended(lease *lockcore.Lease) { h.lives(wire.EventExtended, lease) }

func (h *Hub) lives(kind wire.EventKind, lease *lockcore.Lease) {
	if !h.Recording() {
		return
	}
	e := Event{Kind: kind, Event: wire.Event{
		Resource: lease.Resource, FencingToken: int64(lease.Token), Holder: lease.Holder, TTLMS: lease.TTL.Milliseconds(),
	}}
	if len(lease.Parts) == 0 {
		h.Publish(e)
	}
	for _, part := range lease.Parts {
		e.Resource, e.FencingToken = part.Resource, int64(part.Token)
		h.Publish(e)
	}
}

// Released publishes that one resource of a lease was released. It is for sets.Config.Released:
// of several resources the Service alone knows which have ended, and when, also where an extend,
// or a cancel, has ended them.
func (h *Hub) Released(resource string, token fencing.Token) {
	if h.Recording() {
		h.Publish(Event{Kind: wire.EventReleased, Event: wire.Event{Resource: resource, FencingToken: int64(token)}})
	}
}

// Expired publishes that a lease expired, resource by resource. The server that granted it or
// extended it last has seen so on the nodes.
func (h *Hub) Expired(terms lockcore.LeaseTerms) {
	if !h.Recording() {
		return
	}
	for _, part := range terms.Parts {
		h.Publish(Event{Kind: wire.EventExpired, Event: wire.Event{Resource: part.Resource, FencingToken: int64(part.Token)}})
	}
}

// Broken publishes that the lease of a resource was broken. The token is 0 and the holder ""
// where they are not known.
func (h *Hub) Broken(resource string, token fencing.Token, holder string) {
	h.Publish(Event{Kind: wire.EventBroken, Event: wire.Event{Resource: resource, FencingToken: int64(token), Holder: holder}})
}

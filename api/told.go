package api

import (
	"context"
	"encoding/json"
	"errors"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/api/events"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// tellEvents has everything that the handlers do told to the events' hub.
// lockcore tells of releases (Config.Released), which come here with a lease id
// and not with a resource and a token.
func (s *Server) tellEvents() {
	if s.Events == nil {
		return
	}
	s.Leases = toldLeases{Leases: s.Leases, hub: s.Events}
	s.Locks = toldLocks{Locks: s.Locks, hub: s.Events}
	if s.Guard != nil {
		s.Guard = toldGuard{Guard: s.Guard, hub: s.Events}
	}
}

type toldLeases struct {
	Leases
	hub *events.Hub
}

// Extend tells of the extension.
func (t toldLeases) Extend(ctx context.Context, leaseID string, ttl time.Duration) (lockcore.Lease, error) {
	lease, err := t.Leases.Extend(ctx, leaseID, ttl)
	if err == nil && t.hub.Recording() {
		tellLease(t.hub, wire.EventExtended, &lease)
	}
	return lease, err
}

// Acquire tells of a grant, and of a request that waits for long.
func (t toldLeases) Acquire(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
	waits := req.Wait > 0 && req.Resource != "" && t.hub.Listened() // for several resources it waits one by one
	var w *waiting
	if waits {
		w = beginWaiting(t.hub, req.Resource, req.Holder)
	}
	lease, err := t.Leases.Acquire(ctx, req)
	if waits {
		w.end(err == nil)
	}
	if err == nil && !lease.Existing && t.hub.Recording() {
		tellLease(t.hub, wire.EventGranted, &lease)
	}
	return lease, err
}

func tellLease(hub *events.Hub, kind wire.EventKind, lease *lockcore.Lease) {
	e := events.Event{Kind: kind, Event: wire.Event{
		Resource: lease.Resource, FencingToken: int64(lease.Token), Holder: lease.Holder, TTLMS: lease.TTL.Milliseconds(),
	}}
	if len(lease.Parts) == 0 {
		hub.Publish(e)
	}
	for _, part := range lease.Parts {
		e.Resource, e.FencingToken = part.Resource, int64(part.Token)
		hub.Publish(e)
	}
}

// worthTelling is how long a request stands in line before that is told: most
// are granted at once.
const worthTelling = 50 * time.Millisecond

// waiting is a request in line.
type waiting struct {
	hub   *events.Hub
	told  atomic.Bool
	ended atomic.Bool
	timer *time.Timer
	event wire.Event
}

func beginWaiting(hub *events.Hub, resource, holder string) *waiting {
	w := &waiting{hub: hub, event: wire.Event{Resource: resource, Holder: holder}}
	w.timer = time.AfterFunc(worthTelling, w.tell)
	return w
}

func (w *waiting) tell() {
	if w.told.CompareAndSwap(false, true) && !w.ended.Load() {
		w.hub.Publish(events.Event{Kind: wire.EventWaiting, Event: w.event})
	}
}

// end tells of a wait that came to nothing; a grant is told by itself.
func (w *waiting) end(granted bool) {
	w.ended.Store(true)
	w.timer.Stop()
	if !granted && w.told.Load() {
		w.hub.Publish(events.Event{Kind: wire.EventLeft, Event: w.event})
	}
}

type toldLocks struct {
	Locks
	hub *events.Hub
}

// Break tells whose lease it ended.
func (t toldLocks) Break(ctx context.Context, resource string) error {
	broken, unknown := t.Inspect(ctx, resource)
	err := t.Locks.Break(ctx, resource)
	if err == nil {
		e := events.Event{Kind: wire.EventBroken, Event: wire.Event{Resource: resource}}
		if unknown == nil && broken.Held {
			e.FencingToken, e.Holder = int64(broken.Token), broken.Holder
		}
		t.hub.Publish(e)
	}
	return err
}

type toldGuard struct {
	fencing.Guard
	hub *events.Hub
}

// Write tells of a write that was refused.
func (t toldGuard) Write(ctx context.Context, resource string, token fencing.Token, value json.RawMessage) (fencing.Record, error) {
	record, err := t.Guard.Write(ctx, resource, token, value)
	t.tell(resource, string(fencing.KindWrite), err)
	return record, err
}

// Claim tells of a claim that was refused.
func (t toldGuard) Claim(ctx context.Context, resource string, token fencing.Token) (fencing.Record, error) {
	record, err := t.Guard.Claim(ctx, resource, token)
	t.tell(resource, string(fencing.KindClaim), err)
	return record, err
}

func (t toldGuard) tell(resource, attempt string, err error) {
	var stale *fencing.StaleTokenError
	if !errors.As(err, &stale) || !t.hub.Recording() {
		return
	}
	t.hub.Publish(events.Event{Kind: wire.EventStaleToken, Event: wire.Event{
		Resource: resource, FencingToken: int64(stale.Presented), Highest: int64(stale.Highest), Attempt: attempt,
	}})
}

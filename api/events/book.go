package events

import (
	"time"

	"github.com/fencelock/fencelock/api/internal/deadlines"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// Bounds of a book.
const (
	maxFollowed = 50_000 // leases whose end is watched
	maxEnded    = 20_000
	// grace is how long an event of another server may be in flight: the book infers
	// nothing before.
	grace = 700 * time.Millisecond
	// nearly: a lease that ended so shortly before its deadline has expired; deadlines
	// are counted from when an event arrived.
	nearly    = 300 * time.Millisecond
	lookAgain = time.Second
	forgotten = 3 * time.Second // how long a listing may be behind
)

// book is the present leases of the cluster, from the events of all servers and from
// what a Follower sees on the nodes. It names the holders of leases that end, and
// infers the events that no server published. It is not the table of what this server
// granted (package leases): it is incomplete, and used only while events are read.
// It does no I/O and has no clock.
type book struct {
	held    deadlines.Map[string, lease]              // by resource; due when the lock is to be inspected
	ended   deadlines.Map[string, int64]              // the largest token that has ended lately, by resource
	missing deadlines.Map[grant, ending]              // leases that ended, and no event said how; due when that is published
	found   deadlines.Map[string, lockcore.LockState] // leases without a granted event; due when that is published
}

// lease is a lease that is held as far as is known.
type lease struct {
	resource, holder string
	token            int64
	until            time.Time // when it ends unless it is extended
	touched          time.Time // when the last event or inspection was
}

func (l *lease) grant() grant { return grant{l.resource, l.token} }

// grant identifies a lease of one resource.
type grant struct {
	resource string
	token    int64
}

// ending is a lease that has ended.
type ending struct {
	lease
	gone time.Time
}

// hear takes an event, and adds the holder to one of a lease that ends.
func (b *book) hear(e *Event, now time.Time) {
	ttl := time.Duration(e.TTLMS) * time.Millisecond
	switch e.Kind {
	case wire.EventGranted, wire.EventExtended:
		b.hold(lease{resource: e.Resource, holder: e.Holder, token: e.FencingToken, until: now.Add(ttl), touched: now})
	case wire.EventReleased, wire.EventBroken, wire.EventExpired, wire.EventEnded:
		if e.Holder == "" {
			e.Holder = b.holder(grant{e.Resource, e.FencingToken})
		}
		b.end(e.Resource, e.FencingToken, now)
	}
}

// holder is the label of the lease's holder; "" if it is not known.
func (b *book) holder(g grant) string {
	if l, ok := b.held.Get(g.resource); ok && l.token == g.token {
		return l.holder
	}
	gone, _ := b.missing.Get(g) // the next lease's event came first
	return gone.holder
}

func (b *book) hasEnded(g grant) bool {
	last, _ := b.ended.Get(g.resource)
	return g.token <= last
}

// hold notes a lease, and that an earlier one of the resource must have ended.
func (b *book) hold(l lease) {
	if b.hasEnded(l.grant()) {
		return // the event is late
	}
	b.forgetFound(l.resource, l.token)
	switch before, known := b.held.Get(l.resource); {
	case !known && b.held.Len() >= maxFollowed, before.token > l.token:
		return
	case known && before.token < l.token:
		b.miss(before, l.touched, l.touched.Add(grace))
	case l.holder == "":
		l.holder = before.holder
	}
	b.held.Put(l.resource, l, l.until)
}

func (b *book) forgetFound(resource string, token int64) {
	if f, ok := b.found.Get(resource); ok && int64(f.Token) <= token {
		b.found.Delete(resource)
	}
}

// end notes how a lease ended; of an unknown token (0) whatever is held.
func (b *book) end(resource string, token int64, now time.Time) {
	held, known := b.held.Get(resource)
	if known && token == 0 {
		token = held.token
	}
	if known && held.token <= token {
		b.held.Delete(resource)
	}
	b.forgetFound(resource, token)
	b.missing.Delete(grant{resource, token})
	b.bury(grant{resource, token}, now)
}

// bury remembers for a while that a lease has ended, since a listing may be behind.
func (b *book) bury(g grant, now time.Time) {
	if b.ended.Len() < maxEnded && !b.hasEnded(g) {
		b.ended.Put(g.resource, g.token, now.Add(forgotten))
	}
}

// miss notes that a lease has ended, which is published at the time unless an event says how.
func (b *book) miss(l lease, gone, publishAt time.Time) {
	if b.missing.Len() < maxEnded {
		b.missing.Put(l.grant(), ending{lease: l, gone: gone}, publishAt)
	}
}

// leaseOf is the lease that the nodes show.
func leaseOf(s *lockcore.LockState, now time.Time) lease {
	return lease{resource: s.Resource, holder: s.Holder, token: int64(s.Token), until: now.Add(s.Remaining), touched: now}
}

// see takes what the nodes show of a resource that is held. known: a lease that the
// book does not have may be an old one.
func (b *book) see(s lockcore.LockState, known bool, now time.Time) {
	seen := leaseOf(&s, now)
	held, heard := b.held.Get(s.Resource)
	switch {
	case seen.token == 0, heard && held.token > seen.token: // no quorum agrees on one, or the listing is behind
	case heard && held.token == seen.token, !heard && known:
		b.hold(seen)
	default:
		if heard {
			held.touched = now
			b.held.Put(s.Resource, held, held.until)
		}
		if f, ok := b.found.Get(s.Resource); !ok || f.Token < s.Token {
			b.found.Put(s.Resource, s, now.Add(grace))
		}
	}
}

// swept ends a listing that began at the time: the locks that it did not show are inspected.
func (b *book) swept(began, now time.Time) {
	var unseen []lease
	for _, l := range b.held.All() {
		if l.touched.Before(began) {
			unseen = append(unseen, l)
		}
	}
	for _, l := range unseen {
		b.held.Put(l.resource, l, now)
	}
}

// next returns a lease whose lock is to be inspected now; looked takes the result.
func (b *book) next(now time.Time) (l lease, ok bool) {
	resource, l, ok := b.held.Due(now)
	if ok {
		b.held.Put(resource, l, now.Add(lookAgain))
	}
	return l, ok
}

// looked takes the result of inspecting the lease's lock.
func (b *book) looked(l lease, s lockcore.LockState, err error, now time.Time) {
	held, ok := b.held.Get(l.resource)
	if !ok || held.token != l.token {
		return // an event came meanwhile
	}
	switch token := int64(s.Token); {
	case err != nil || s.Held && token < l.token: // no quorum now, or the votes are split: it is inspected again (lookAgain)
	case s.Held && token == l.token:
		held.until, held.touched = now.Add(s.Remaining), now
		b.held.Put(l.resource, held, now.Add(max(s.Remaining, nearly/2)))
	default:
		b.held.Delete(l.resource)
		publishAt := now
		if held.until.After(now) {
			publishAt = now.Add(grace) // another server's event may be in flight
		}
		b.miss(held, now, publishAt)
		if s.Held {
			b.see(s, false, now)
		}
	}
}

// tick returns the events that are inferred by now.
func (b *book) tick(now time.Time) (inferred []Event) {
	for g, gone := range b.missing.TakeDue(now) {
		inferred = append(inferred, gone.event())
		b.bury(g, now)
	}
	for resource, f := range b.found.TakeDue(now) {
		l := leaseOf(&f, now)
		if held, ok := b.held.Get(resource); ok && held.token >= l.token || b.hasEnded(l.grant()) {
			continue
		}
		b.hold(l)
		inferred = append(inferred, Event{Kind: wire.EventGranted, Event: wire.Event{
			Resource: resource, FencingToken: l.token, Holder: l.holder, TTLMS: f.TTL.Milliseconds(), Inferred: true,
		}})
	}
	for range b.ended.TakeDue(now) { // drops them
	}
	return inferred
}

// forget drops what is due, for when there is no reader.
func (b *book) forget(now time.Time) {
	b.tick(now)
	for range b.held.TakeDue(now) { // drops them
	}
}

// event says how a lease ended, as far as can be inferred: expired, if it was near
// its deadline.
func (gone *ending) event() Event {
	e := Event{Kind: wire.EventExpired, Event: wire.Event{
		At: gone.until, Resource: gone.resource, FencingToken: gone.token, Holder: gone.holder, Inferred: true,
	}}
	if gone.until.Sub(gone.gone) > nearly {
		e.Kind = wire.EventEnded
	}
	if gone.until.After(gone.gone) {
		e.At = gone.gone
	}
	return e
}

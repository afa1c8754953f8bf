package events

import (
	"time"

	"github.com/fencelock/fencelock/api/internal/deadlines"
	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// Bounds of a book.
const (
	maxFollowed = 50_000 // leases whose end is watched for
	maxEnded    = 20_000
	// grace is how long an event of another server may be under way: nothing is
	// inferred before.
	grace = 700 * time.Millisecond
	// nearly: a lease that is gone so shortly before its deadline has expired;
	// deadlines are counted from when an event was heard of.
	nearly    = 300 * time.Millisecond
	lookAgain = time.Second
	forgotten = 3 * time.Second // how long a listing may be behind
)

// book is the present leases of the cluster as a listener would know them: from the
// events of all servers and from what a Follower sees on the nodes. It names the
// holders of what ends, and infers the events that no server published. It is not
// the table of what this server granted (package leases): it is incomplete, and of
// use only while somebody listens. It does no I/O and has no clock.
type book struct {
	held    deadlines.Map[string, lease]              // by resource; due when the lock is to be looked at
	ended   deadlines.Map[string, int64]              // the largest token that has ended lately, by resource
	missing deadlines.Map[grant, ending]              // leases that are gone, and no event said how; due when that is told
	found   deadlines.Map[string, lockcore.LockState] // leases that were seen and not heard of; due when that is told
}

// lease is a lease that is held as far as is known.
type lease struct {
	resource, holder string
	token            int64
	until            time.Time // when it ends unless it is extended
	touched          time.Time // when it was last heard of or seen
}

func (l *lease) grant() grant { return grant{l.resource, l.token} }

// grant identifies a lease of one resource.
type grant struct {
	resource string
	token    int64
}

// ending is a lease that was found to be gone.
type ending struct {
	lease
	gone time.Time
}

// hear takes an event, and names the holder of a lease that ends.
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

// holder is whose lease it is or was; "" if that is not known.
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
		return // the event came late
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

// miss notes that a lease is gone, which is told at the time unless an event says how.
func (b *book) miss(l lease, gone, tellAt time.Time) {
	if b.missing.Len() < maxEnded {
		b.missing.Put(l.grant(), ending{lease: l, gone: gone}, tellAt)
	}
}

// leaseOf is the lease that the nodes show.
func leaseOf(s *lockcore.LockState, now time.Time) lease {
	return lease{resource: s.Resource, holder: s.Holder, token: int64(s.Token), until: now.Add(s.Remaining), touched: now}
}

// see takes what the nodes show of a resource that is held. known: it may be
// new to this book without being new.
func (b *book) see(s lockcore.LockState, known bool, now time.Time) {
	seen := leaseOf(&s, now)
	held, heard := b.held.Get(s.Resource)
	switch {
	case seen.token == 0, heard && held.token > seen.token: // no quorum agrees on one, or it is behind
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

// swept ends a listing that began at the time: what it did not show is looked at.
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

// next returns a lease whose lock is to be looked at now; looked takes what that showed.
func (b *book) next(now time.Time) (l lease, ok bool) {
	resource, l, ok := b.held.Due(now)
	if ok {
		b.held.Put(resource, l, now.Add(lookAgain))
	}
	return l, ok
}

// looked takes what a look at the lease's lock showed.
func (b *book) looked(l lease, s lockcore.LockState, err error, now time.Time) {
	held, ok := b.held.Get(l.resource)
	if !ok || held.token != l.token {
		return // something was heard of it meanwhile
	}
	switch token := int64(s.Token); {
	case err != nil || s.Held && token < l.token: // the nodes cannot tell now, or votes are split: next has put it off
	case s.Held && token == l.token:
		held.until, held.touched = now.Add(s.Remaining), now
		b.held.Put(l.resource, held, now.Add(max(s.Remaining, nearly/2)))
	default:
		b.held.Delete(l.resource)
		tellAt := now
		if held.until.After(now) {
			tellAt = now.Add(grace) // another server's event may be under way
		}
		b.miss(held, now, tellAt)
		if s.Held {
			b.see(s, false, now)
		}
	}
}

// tick returns what no event said within its time.
func (b *book) tick(now time.Time) (tell []Event) {
	for g, gone := range b.missing.TakeDue(now) {
		tell = append(tell, gone.event())
		b.bury(g, now)
	}
	for resource, f := range b.found.TakeDue(now) {
		l := leaseOf(&f, now)
		if held, ok := b.held.Get(resource); ok && held.token >= l.token || b.hasEnded(l.grant()) {
			continue
		}
		b.hold(l)
		tell = append(tell, Event{Kind: wire.EventGranted, Event: wire.Event{
			Resource: resource, FencingToken: l.token, Holder: l.holder, TTLMS: f.TTL.Milliseconds(), Inferred: true,
		}})
	}
	for range b.ended.TakeDue(now) { // is forgotten
	}
	return tell
}

// forget drops what is due, for when nobody listens who would be told.
func (b *book) forget(now time.Time) {
	b.tick(now)
	for range b.held.TakeDue(now) { // how it ended nobody asks
	}
}

// event says how a lease ended, as far as can be found out: by itself, if it
// was near its end.
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

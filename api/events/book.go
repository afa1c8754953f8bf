package events

import (
	"container/heap"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/lockcore"
)

// Bounds of a book.
const (
	mostFollowed = 50_000 // locks whose end is watched for
	mostEnded    = 20_000
	// grace is how long the word of another server may be under way: nothing is
	// told as found out before.
	grace = 700 * time.Millisecond
	// nearly: a lease that is gone so shortly before its deadline has expired;
	// deadlines are counted from when an event was heard of.
	nearly    = 300 * time.Millisecond
	lookAgain = time.Second
	forgotten = 3 * time.Second // how long a listing may be behind
)

// book is what a Follower knows of the locks: it is told events and what was
// seen on the nodes, and says what nobody else has told. It does no I/O and
// has no clock.
type book struct {
	held    map[string]*entry
	due     dueHeap
	ended   map[string]int64 // the largest token that has ended lately, by resource
	endings []ending         // the same in the order of their times
	open    []orphan         // leases that are gone, and nobody has told how yet
	found   map[string]finding
}

// entry is a lease that is held as far as is known.
type entry struct {
	resource, holder string
	token            int64
	until            time.Time // when it ends unless it is extended
	lookAt           time.Time // when to look at the lock
	touched          time.Time // when it was last heard of or seen
	looking          bool      // a look is under way
	index            int       // in the heap; -1 while looking
}

type ending struct {
	resource string
	token    int64
	at       time.Time
}

type orphan struct {
	entry
	gone   time.Time // when it was found to be
	tellAt time.Time
}

// finding is a lease that was seen and not told.
type finding struct {
	lockcore.LockState
	tellAt time.Time
}

func newBook() *book {
	return &book{held: make(map[string]*entry), ended: make(map[string]int64), found: make(map[string]finding)}
}

// hear takes an event.
func (b *book) hear(e *Event, now time.Time) {
	ttl := time.Duration(e.TTLMS) * time.Millisecond
	switch e.Kind {
	case wire.EventGranted, wire.EventExtended:
		b.hold(e.Resource, e.Holder, e.FencingToken, now.Add(ttl), now)
	case wire.EventReleased, wire.EventBroken, wire.EventExpired, wire.EventEnded:
		b.end(e.Resource, e.FencingToken, now)
	}
}

// hold notes a lease, and that an earlier one of the resource must have ended.
func (b *book) hold(resource, holder string, token int64, until, now time.Time) {
	if token <= b.ended[resource] {
		return // the word came late
	}
	if f, ok := b.found[resource]; ok && int64(f.Token) <= token {
		delete(b.found, resource)
	}
	cur := b.held[resource]
	switch {
	case cur != nil && cur.token > token:
		return
	case cur != nil && cur.token < token:
		b.remove(cur)
		b.orphan(cur, now, now.Add(grace))
		cur = nil
	}
	if cur == nil {
		if len(b.held) >= mostFollowed {
			return
		}
		cur = &entry{resource: resource, token: token, index: -1}
		b.held[resource] = cur
	}
	if holder != "" {
		cur.holder = holder
	}
	cur.until, cur.touched = until, now
	b.schedule(cur, until)
}

func (b *book) schedule(e *entry, at time.Time) {
	e.lookAt = at
	switch {
	case e.looking:
	case e.index >= 0:
		heap.Fix(&b.due, e.index)
	default:
		heap.Push(&b.due, e)
	}
}

func (b *book) remove(e *entry) {
	delete(b.held, e.resource)
	if e.index >= 0 {
		heap.Remove(&b.due, e.index)
	}
}

// end notes how a lease ended; of an unknown token (0) whatever is held.
func (b *book) end(resource string, token int64, now time.Time) {
	cur := b.held[resource]
	if token == 0 && cur != nil {
		token = cur.token
	}
	if cur != nil && cur.token <= token {
		b.remove(cur)
	}
	if f, ok := b.found[resource]; ok && int64(f.Token) <= token {
		delete(b.found, resource)
	}
	kept := b.open[:0]
	for _, o := range b.open {
		if o.resource != resource || token != 0 && o.token != token {
			kept = append(kept, o)
		}
	}
	b.open = kept
	b.bury(resource, token, now)
}

// bury remembers for a while that a lease has ended, since a listing may be behind.
func (b *book) bury(resource string, token int64, now time.Time) {
	if len(b.endings) < mostEnded && token > b.ended[resource] {
		b.ended[resource] = token
		b.endings = append(b.endings, ending{resource: resource, token: token, at: now})
	}
}

func (b *book) orphan(e *entry, gone, tellAt time.Time) {
	b.open = append(b.open, orphan{entry: *e, gone: gone, tellAt: tellAt})
}

// see takes what the nodes show of a resource that is held. known: it may be
// new to this book without being new.
func (b *book) see(s lockcore.LockState, known bool, now time.Time) {
	token := int64(s.Token)
	if token == 0 {
		return // no quorum agrees on one
	}
	cur := b.held[s.Resource]
	switch {
	case cur != nil && cur.token == token:
		cur.until, cur.touched = now.Add(s.Remaining), now
		b.schedule(cur, cur.until)
	case cur != nil && cur.token > token:
	case cur == nil && known:
		b.hold(s.Resource, s.Holder, token, now.Add(s.Remaining), now)
	default:
		if cur != nil {
			cur.touched = now
		}
		if f, ok := b.found[s.Resource]; !ok || int64(f.Token) < token {
			b.found[s.Resource] = finding{LockState: s, tellAt: now.Add(grace)}
		}
	}
}

// swept ends a listing that began at the time: what it did not show is looked at.
func (b *book) swept(began, now time.Time) {
	var unseen []*entry
	for _, e := range b.held {
		if e.touched.Before(began) {
			unseen = append(unseen, e)
		}
	}
	for _, e := range unseen {
		b.schedule(e, now)
	}
}

// next takes the entry that is to be looked at now, nil if there is none.
// looked must follow.
func (b *book) next(now time.Time) *entry {
	if len(b.due) == 0 || b.due[0].lookAt.After(now) {
		return nil
	}
	e, _ := heap.Pop(&b.due).(*entry)
	e.looking = true
	return e
}

// looked takes what a look at the entry's lock showed.
func (b *book) looked(e *entry, s lockcore.LockState, err error, now time.Time) {
	e.looking = false
	if b.held[e.resource] != e {
		return // something was heard of it meanwhile
	}
	token := int64(s.Token)
	switch {
	case err != nil || s.Held && token < e.token: // cannot be told now, or votes are split
		b.schedule(e, now.Add(lookAgain))
	case s.Held && token == e.token:
		e.until, e.touched = now.Add(s.Remaining), now
		b.schedule(e, now.Add(max(s.Remaining, nearly/2)))
	default:
		b.remove(e)
		tellAt := now
		if e.until.After(now) {
			tellAt = now.Add(grace) // somebody's word may be under way
		}
		b.orphan(e, now, tellAt)
		if s.Held {
			b.see(s, false, now)
		}
	}
}

// tick tells what was not told by anybody within its time.
func (b *book) tick(now time.Time) (tell []Event) {
	kept := b.open[:0]
	for _, o := range b.open {
		if o.tellAt.After(now) {
			kept = append(kept, o)
			continue
		}
		tell = append(tell, o.event())
		b.bury(o.resource, o.token, now)
	}
	b.open = kept
	for resource, f := range b.found {
		if f.tellAt.After(now) {
			continue
		}
		delete(b.found, resource)
		if cur := b.held[resource]; cur != nil && cur.token >= int64(f.Token) || int64(f.Token) <= b.ended[resource] {
			continue
		}
		b.hold(resource, f.Holder, int64(f.Token), now.Add(f.Remaining), now)
		tell = append(tell, Event{Kind: wire.EventGranted, Event: wire.Event{
			Resource: resource, FencingToken: int64(f.Token), Holder: f.Holder, TTLMS: f.TTL.Milliseconds(), Inferred: true,
		}})
	}
	for len(b.endings) > 0 && now.Sub(b.endings[0].at) > forgotten {
		if first := b.endings[0]; b.ended[first.resource] == first.token {
			delete(b.ended, first.resource)
		}
		b.endings = b.endings[1:]
	}
	return tell
}

// event says how a lease ended, as far as can be found out: by itself, if it
// was near its end.
func (o *orphan) event() Event {
	e := Event{Kind: wire.EventExpired, Event: wire.Event{
		At: o.until, Resource: o.resource, FencingToken: o.token, Holder: o.holder, Inferred: true,
	}}
	if o.until.Sub(o.gone) > nearly {
		e.Kind = wire.EventEnded
	}
	if o.until.After(o.gone) {
		e.At = o.gone
	}
	return e
}

// dueHeap orders entries by when they are to be looked at.
type dueHeap []*entry

// Len is for container/heap, as the other methods.
func (h *dueHeap) Len() int { return len(*h) }

func (h *dueHeap) Less(i, j int) bool { return (*h)[i].lookAt.Before((*h)[j].lookAt) }

func (h *dueHeap) Swap(i, j int) {
	d := *h
	d[i], d[j] = d[j], d[i]
	d[i].index, d[j].index = i, j
}

// Push is for container/heap.
func (h *dueHeap) Push(x any) {
	e, _ := x.(*entry) // nothing else is put in
	e.index = len(*h)
	*h = append(*h, e)
}

// Pop is for container/heap.
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	e.index = -1
	return e
}

// Package leases has the one table of live leases that a server keeps.
//
// No server needs a table to extend or release a lease: the lease id is enough. The
// table is for metrics (how many leases are held, how many expired) and for the limit
// of leases a caller holds. It has only the leases that were granted or extended
// through this server, and counts a lease as held until it is released through this
// server or its TTL has passed. Another server may have extended, released or broken
// it meanwhile: only the nodes know that.
package leases

import (
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/internal/deadlines"
)

// MaxLeases bounds the table. More leases are not followed, but for those that
// count against a limit (Lease.Limited): the limits bound how many these are.
const MaxLeases = 1 << 19

// Grace is how long a lease whose TTL has passed is kept before Expired returns
// it: its release may be under way.
const Grace = 100 * time.Millisecond

// Lease is what the table knows of a lease.
type Lease struct {
	ID       string
	Owner    string // on whose behalf it was acquired; "" without access control
	Resource string // of several the first
	Granted  time.Time
	// Limited: the lease counts against its owner's limit.
	Limited bool
}

// Table is the live leases that this server knows. It is safe for concurrent
// use; its zero value is empty.
type Table struct {
	mu      sync.Mutex
	held    deadlines.Map[string, Lease] // by lease id, until the TTL has passed
	over    deadlines.Map[string, Lease] // the same, then for Grace
	taken   deadlines.Map[string, Lease] // released and limited, by lease id, until their resources are free
	limited map[string]int               // limited leases that are held, taken or reserved, by owner; no zeros
	ids     map[string]string            // by resource, of the limited lease that was noted last, held or taken
}

// Put notes that a lease was granted or extended, and is held until the time
// unless it is extended again. A lease that the table knows keeps its Granted. It
// reports false for a lease that is not followed, see MaxLeases.
func (t *Table) Put(l Lease, until time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over.Delete(l.ID)
	known, ok := t.held.Get(l.ID)
	switch {
	case ok:
		l.Granted = known.Granted
	case !l.Limited && t.held.Len() >= MaxLeases:
		return false
	}
	t.count(known, -1)
	t.count(l, +1)
	t.held.Put(l.ID, l, until)
	if l.Limited {
		if t.ids == nil {
			t.ids = make(map[string]string)
		}
		t.ids[l.Resource] = l.ID
	}
	return true
}

// Remove takes out a lease that has ended. It reports false for a lease that the
// table does not know.
func (t *Table) Remove(id string) (Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l, ok := t.over.Delete(id); ok {
		return l, true
	}
	l, ok := t.held.Delete(id)
	t.count(l, -1)
	return l, ok
}

// Release removes a lease whose release has succeeded. Its resources stay taken until that
// time (lockcore.AcquireRequest.MinHold), and so long it counts against its owner's limit,
// whatever becomes of its id.
func (t *Table) Release(id string, taken, now time.Time) (Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l, ok := t.over.Delete(id); ok {
		return l, true
	}
	l, ok := t.held.Delete(id)
	if !l.Limited || !now.Before(taken) {
		t.count(l, -1)
		return l, ok
	}
	t.taken.Put(id, l, taken)
	return l, ok
}

// LimitedOf is the limited lease of a resource, held or taken; its zero value for none.
func (t *Table) LimitedOf(resource string) Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := t.ids[resource]
	if l, ok := t.held.Get(id); ok {
		return l
	}
	l, _ := t.taken.Get(id)
	return l
}

// Free takes out a lease whose resources are free now, also if they were taken.
func (t *Table) Free(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.held.Delete(id)
	if !ok {
		l, _ = t.taken.Delete(id)
	}
	t.count(l, -1)
}

// Expired takes out the leases whose TTL had passed Grace before now. How they
// ended only the nodes know.
func (t *Table) Expired(now time.Time) (expired []Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settle(now)
	for _, l := range t.over.TakeDue(now) {
		expired = append(expired, l)
	}
	return expired
}

// settle counts the leases no more whose TTL has passed.
func (t *Table) settle(now time.Time) {
	for id, l := range t.held.TakeDue(now) {
		t.count(l, -1)
		t.over.Put(id, l, now.Add(Grace))
	}
	for _, l := range t.taken.TakeDue(now) {
		t.count(l, -1)
	}
}

// Held is how many leases the table takes to be held.
func (t *Table) Held() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held.Len()
}

// Reserve counts an acquire that is about to be made against its owner's limit.
// It reports false, and counts nothing, if the limit is reached. Otherwise Unreserve
// must follow when the lease was put into the table, or was not granted.
func (t *Table) Reserve(owner string, limit int, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limited[owner] >= limit {
		if t.settle(now); t.limited[owner] >= limit {
			return false
		}
	}
	t.count(Lease{Owner: owner, Limited: true}, +1)
	return true
}

// Unreserve ends what Reserve began.
func (t *Table) Unreserve(owner string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(Lease{Owner: owner, Limited: true}, -1)
}

// count adds to what counts against the limit of a lease's owner, if it does.
func (t *Table) count(l Lease, n int) {
	if !l.Limited {
		return
	}
	if t.limited == nil {
		t.limited = make(map[string]int)
	}
	if t.limited[l.Owner] += n; t.limited[l.Owner] == 0 {
		delete(t.limited, l.Owner)
	}
	if n < 0 && t.ids[l.Resource] == l.ID {
		delete(t.ids, l.Resource)
	}
}

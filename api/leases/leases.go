// Package leases has the one table of live leases that a server keeps.
//
// A server needs no table to extend or release a lease, because the lease id is enough. The table serves
// metrics (how many leases are held, how many expired) and the limit of resources that a caller holds. It
// contains only leases that were granted or extended through this server. A lease counts as held until it
// is released through this server or its TTL has passed. In the meantime another server may have extended,
// released or broken it: only the nodes know that.
package leases

import (
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/internal/deadlines"
	"github.com/fencelock/fencelock/lockcore"
)

// MaxLeases bounds the table. Further leases are not added, except those that count against a limit
// (Lease.Counts), because limits bound their number.
const MaxLeases = 1 << 19

// Grace is how long after its TTL a lease is kept before Expired returns it, because its release may be
// under way.
const Grace = 100 * time.Millisecond

// Lease is what the table knows about a lease.
type Lease struct {
	ID       string
	Caller   lockcore.Caller // whose lease it is
	Resource string          // of several resources, the first
	Granted  time.Time
	// Counts is the number of resources that count against the caller's limit, which is all of the lease's
	// resources; 0 if the caller has no limit.
	Counts int
}

// limited reports whether the lease counts against its caller's limit.
func (l Lease) limited() bool { return l.Counts > 0 }

// Table is the live leases that this server knows. It is safe for concurrent
// use; its zero value is empty.
type Table struct {
	mu      sync.Mutex
	held    deadlines.Map[string, Lease] // by lease id, until the TTL has passed
	over    deadlines.Map[string, Lease] // by lease id, for Grace after the TTL has passed
	taken   deadlines.Map[string, Lease] // released limited leases, by lease id, until their resources are free
	limited map[lockcore.Caller]int      // the number of resources of limited leases that are held, taken or reserved; no zeros
	ids     map[string]string            // by resource, the id of the limited lease that was added last, held or taken
}

// Put adds a lease that was granted or extended, and that ends at until unless it is extended again. A
// lease that is already in the table keeps its Granted. Put returns false if the table is full, see
// MaxLeases.
func (t *Table) Put(l Lease, until time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over.Delete(l.ID)
	known, ok := t.held.Get(l.ID)
	switch {
	case ok:
		l.Granted = known.Granted
	case !l.limited() && t.held.Len() >= MaxLeases:
		return false
	}
	t.count(known, -1)
	t.count(l, +1)
	t.held.Put(l.ID, l, until)
	if l.limited() {
		if t.ids == nil {
			t.ids = make(map[string]string)
		}
		t.ids[l.Resource] = l.ID
	}
	return true
}

// Remove removes a lease that has ended. It returns false if the lease is not in the table.
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

// Release removes a lease that was released. Its resources stay taken until taken
// (lockcore.Request.MinHold). Until then it counts against its caller's limit, whatever happens to its id.
func (t *Table) Release(id string, taken, now time.Time) (Lease, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l, ok := t.over.Delete(id); ok {
		return l, true
	}
	l, ok := t.held.Delete(id)
	if !l.limited() || !now.Before(taken) {
		t.count(l, -1)
		return l, ok
	}
	t.taken.Put(id, l, taken)
	return l, ok
}

// LimitedOf returns the limited lease of a resource, held or taken; the zero value if there is none.
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

// Free removes a lease whose resources are free now, even if they were still taken.
func (t *Table) Free(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l, ok := t.held.Delete(id)
	if !ok {
		l, _ = t.taken.Delete(id)
	}
	t.count(l, -1)
}

// Expired removes and returns the leases whose TTL passed at least Grace before now. Only the nodes know
// how they ended.
func (t *Table) Expired(now time.Time) (expired []Lease) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settle(now)
	for _, l := range t.over.TakeDue(now) {
		expired = append(expired, l)
	}
	return expired
}

// settle stops counting the leases whose TTL has passed.
func (t *Table) settle(now time.Time) {
	for id, l := range t.held.TakeDue(now) {
		t.count(l, -1)
		t.over.Put(id, l, now.Add(Grace))
	}
	for _, l := range t.taken.TakeDue(now) {
		t.count(l, -1)
	}
}

// Held returns the number of leases that count as held.
func (t *Table) Held() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.held.Len()
}

// Reserve counts resources against their caller's limit before they are acquired. If they exceed the limit,
// it returns false and counts nothing. Otherwise call Unreserve when the lease is in the table, or was not
// granted.
func (t *Table) Reserve(caller lockcore.Caller, resources, limit int, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.limited[caller]+resources > limit {
		if t.settle(now); t.limited[caller]+resources > limit {
			return false
		}
	}
	t.count(Lease{Caller: caller, Counts: resources}, +1)
	return true
}

// Unreserve ends a reservation by Reserve.
func (t *Table) Unreserve(caller lockcore.Caller, resources int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.count(Lease{Caller: caller, Counts: resources}, -1)
}

// count adds the lease to its caller's count (sign +1), or subtracts it (-1), if it is limited.
func (t *Table) count(l Lease, sign int) {
	if !l.limited() {
		return
	}
	if t.limited == nil {
		t.limited = make(map[lockcore.Caller]int)
	}
	if t.limited[l.Caller] += sign * l.Counts; t.limited[l.Caller] == 0 {
		delete(t.limited, l.Caller)
	}
	if sign < 0 && t.ids[l.Resource] == l.ID {
		delete(t.ids, l.Resource)
	}
}

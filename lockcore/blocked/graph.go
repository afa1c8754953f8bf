// Package blocked tells who waits for whom. From the held resources and their queues it follows the chain from a
// name to whoever is in the way, and finds deadlocks: holders that wait for each other in a circle.
//
// The nodes know a holder only by its label. So one label is taken for one process, or thread, that does one thing
// at a time. Leases and waits without a label cannot be followed, and are counted instead (Report.Unlabelled). A
// request that does not wait in the queue leaves no trace on the nodes.
package blocked

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Hold is one held resource of a holder.
type Hold struct {
	Resource  string
	Token     fencing.Token
	For       time.Duration // since the grant
	Remaining time.Duration // until the lease expires, unless it is extended
	Waiters   int           // requests in the queue of the resource
}

// Wait says that Holder waits for Resource, which HeldBy holds.
type Wait struct {
	Holder   string // never ""
	Resource string
	Position int           // in the queue; the first is 1
	For      time.Duration // since it joined the queue
	HeldBy   string        // "" if the lease has no label
	Token    fencing.Token // of the lease in the way
}

// Party is a holder, with everything that it holds and waits for.
type Party struct {
	Holder string // never ""
	Holds  []Hold // sorted by resource
	Waits  []Wait // sorted by resource
}

// Lease names one lease. Resource and Token are what lockcore.Service.Break takes.
type Lease struct {
	Resource string
	Token    fencing.Token
	Holder   string
}

// Deadlock is a set of two or more holders, each of which waits for another one of them. None can continue
// before the lease of one of them ends.
type Deadlock struct {
	For time.Duration // since the last of the waits began and closed the circle
	// Waits are the waits between the members, in the order of the circle. The wait that began last comes
	// first.
	Waits []Wait
	// Break is the lease that an administrator should break. Its holder is the one whose wait began last,
	// because that holder has waited least. Its resource is the one for which another member has waited
	// longest.
	Break Lease
}

// want is what one request waits for: one resource, or any one of several slots.
type want []Wait

// graph is who holds and who waits, by label.
type graph struct {
	holds      map[string][]Hold
	wants      map[string][]want
	unlabelled int  // leases and waits without a label
	cut        bool // a queue is longer than the list of its waiters that the nodes return
}

// newGraph makes the graph of held locks. It ignores free ones: their first waiter is about to get them.
func newGraph(locks map[string]lockcore.LockState) *graph {
	g := &graph{holds: make(map[string][]Hold), wants: make(map[string][]want)}
	slots := make(map[[2]string]int) // by waiter and slotted resource, the index of the want
	for _, resource := range slices.Sorted(maps.Keys(locks)) {
		lock := locks[resource]
		if !lock.Held {
			continue
		}
		g.hold(lock)
		for _, wait := range waitsFor(lock) {
			key := [2]string{wait.Holder, resource}
			key[1], _ = lockcore.SlotOf(resource)
			i, known := slots[key]
			if !known {
				i = len(g.wants[wait.Holder])
				slots[key] = i
				g.wants[wait.Holder] = append(g.wants[wait.Holder], nil)
			}
			g.wants[wait.Holder][i] = append(g.wants[wait.Holder][i], wait)
		}
	}
	return g
}

// hold adds the lease of a lock, and counts the leases and waits of the lock that have no label.
func (g *graph) hold(lock lockcore.LockState) {
	g.cut = g.cut || lock.Waiting > len(lock.Waiters)
	for _, waiter := range lock.Waiters {
		if waiter.Holder == "" {
			g.unlabelled++
		}
	}
	if lock.Holder == "" {
		g.unlabelled++
		return
	}
	g.holds[lock.Holder] = append(g.holds[lock.Holder], Hold{
		Resource: lock.Resource, Token: lock.Token, For: lock.HeldFor, Remaining: lock.Remaining, Waiters: lock.Waiting,
	})
}

// waitsFor returns the labelled waits for a lock; if a label waits several times, only its first wait.
func waitsFor(lock lockcore.LockState) (waits []Wait) {
	seen := map[string]bool{"": true}
	for i, waiter := range lock.Waiters {
		if seen[waiter.Holder] {
			continue
		}
		seen[waiter.Holder] = true
		waits = append(waits, Wait{
			Holder: waiter.Holder, Resource: lock.Resource, Position: i + 1, For: waiter.WaitingFor,
			HeldBy: lock.Holder, Token: lock.Token,
		})
	}
	return waits
}

// waits returns all waits of a holder, sorted by resource.
func (g *graph) waits(holder string) []Wait {
	waits := slices.Concat(g.wants[holder]...)
	slices.SortFunc(waits, func(a, b Wait) int { return cmp.Compare(a.Resource, b.Resource) })
	return waits
}

// chain returns the first holders, then the holders for which these wait, and so on: at most limit of them.
// more is true if there are others.
func (g *graph) chain(first []string, limit int) (parties []Party, more bool) {
	seen := map[string]bool{"": true}
	for next := first; len(next) > 0; {
		holder := next[0]
		next = next[1:]
		if seen[holder] || len(g.holds[holder])+len(g.wants[holder]) == 0 {
			continue
		}
		if len(parties) == limit {
			return parties, true
		}
		seen[holder] = true
		party := Party{Holder: holder, Holds: g.holds[holder], Waits: g.waits(holder)}
		parties = append(parties, party)
		for _, wait := range party.Waits {
			next = append(next, wait.HeldBy)
		}
	}
	return parties, false
}

// waiting returns all holders that wait, the one that has waited longest first.
func (g *graph) waiting() []string {
	longest := func(holder string) (d time.Duration) {
		for _, wait := range g.waits(holder) {
			d = max(d, wait.For)
		}
		return d
	}
	since := make(map[string]time.Duration, len(g.wants))
	for holder := range g.wants {
		since[holder] = longest(holder)
	}
	return slices.SortedFunc(maps.Keys(g.wants), func(a, b string) int {
		return cmp.Or(cmp.Compare(since[b], since[a]), cmp.Compare(a, b))
	})
}

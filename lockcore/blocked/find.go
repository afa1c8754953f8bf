package blocked

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// The bounds of one Find. If Find reaches one of them, the report is Truncated.
const (
	maxLocks   = 10_000 // held resources that it reads
	maxHolders = 1000   // holders that it reports
	maxChecked = 1000   // resources of deadlocks that it reads again
	budget     = time.Second
)

// Source reads locks; it is a part of lockcore.Service.
type Source interface {
	// List is lockcore.Service.List.
	List(ctx context.Context, req lockcore.ListRequest) (lockcore.LockPage, error)
	// Inspect is lockcore.Service.Inspect.
	Inspect(ctx context.Context, resource string) (lockcore.LockState, error)
}

// Question is a question for Find.
type Question struct {
	Caller lockcore.Caller
	// Name is a resource or the label of a holder; "" asks for every holder that waits.
	Name string
	// Show reports whether a resource may be shown; nil shows all. Other resources are as if they did not exist.
	Show func(resource string) bool
}

// Report is the result of Find.
type Report struct {
	// Locks are the resource with the name and its slots, each if it is held or waited for. The slots are in their order.
	Locks     []lockcore.LockState
	Chain     []Party    // the holder with the name, or those of Locks, then the holders for which they wait, and so on
	Deadlocks []Deadlock // the deadlocks into which the chain leads; all deadlocks for the name ""
	// Unlabelled counts leases and waits that have no label, among those that were read. They cannot be followed.
	Unlabelled int
	// Truncated means that a bound was reached: more locks, waits or holders than this exist.
	Truncated bool
}

// Find reads the held resources, at most maxLocks of them and for about a second, and reports who is in the
// way of the name. The reads are not one snapshot. So Find reads the locks of a deadlock a second time, and
// reports the deadlock only if no lease and no wait in it has changed in the meantime. Errors:
// *lockcore.QuorumError, lockcore.ErrNoCaller, ctx.Err(). Find changes nothing, and is safe to repeat.
func Find(ctx context.Context, from Source, q Question) (Report, error) {
	var r Report
	locks, err := q.read(ctx, from, &r)
	if err != nil {
		return Report{}, err
	}
	g := newGraph(locks)
	first := []string{q.Name}
	if q.Name == "" {
		first = g.waiting()
	}
	for _, lock := range r.Locks {
		first = append(first, lock.Holder)
	}
	chain, more := g.chain(first, maxHolders)
	r.Chain, r.Unlabelled = chain, g.unlabelled
	r.Truncated = r.Truncated || more || g.cut
	again, err := readAgain(ctx, from, locks, g.stuck(), &r)
	if err != nil {
		return Report{}, err
	}
	r.Deadlocks = within(newGraph(again).deadlocks(), q.Name, r.Chain)
	return r, nil
}

// read returns the held locks that may be shown, by resource, and notes those of the name.
func (q *Question) read(ctx context.Context, from Source, r *Report) (map[string]lockcore.LockState, error) {
	locks := make(map[string]lockcore.LockState)
	req := lockcore.ListRequest{Caller: q.Caller, Limit: lockcore.MaxPage, Show: q.Show}
	for until := time.Now().Add(budget); ; {
		page, err := from.List(ctx, req)
		if err != nil {
			return nil, err
		}
		for _, lock := range page.Locks {
			locks[lock.Resource] = lock
		}
		if req.Cursor = page.NextCursor; req.Cursor == "" {
			break
		}
		if len(locks) >= maxLocks || time.Now().After(until) {
			r.Truncated = true
			break
		}
	}
	if !q.mayBeShown() {
		return locks, nil
	}
	lock, err := from.Inspect(ctx, q.Name)
	if err != nil {
		return nil, err
	}
	locks[q.Name] = lock
	for _, name := range append([]string{q.Name}, lockcore.SlotNames(q.Name, lockcore.MaxSlots)...) {
		if lock := locks[name]; lock.Held || lock.Waiting > 0 {
			r.Locks = append(r.Locks, lock)
		}
	}
	return locks, nil
}

// mayBeShown reports whether the name is valid for a resource, and the caller may read that resource.
func (q *Question) mayBeShown() bool {
	return lockcore.ValidateResource(q.Name) == nil && (q.Show == nil || q.Show(q.Name))
}

// readAgain reads the locks for which holders are stuck a second time, and returns the part of them that has
// not changed.
func readAgain(ctx context.Context, from Source, locks map[string]lockcore.LockState, stuck map[string][]Wait, r *Report) (map[string]lockcore.LockState, error) {
	const atOnce = 32
	again := make(map[string]lockcore.LockState)
	var failure error
	var mu sync.Mutex
	var reading sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	asked := make(map[string]bool)
	for _, waits := range stuck {
		for _, wait := range waits {
			if asked[wait.Resource] {
				continue
			}
			if len(asked) == maxChecked {
				r.Truncated = true
				break
			}
			asked[wait.Resource] = true
			turns <- struct{}{}
			reading.Go(func() {
				defer func() { <-turns }()
				lock, err := from.Inspect(ctx, wait.Resource)
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failure = err
					return
				}
				again[wait.Resource] = unchanged(locks[wait.Resource], lock)
			})
		}
	}
	reading.Wait()
	return again, failure
}

// unchanged returns the later state of a lock without its new parts: a lease with another token, and waits
// that are younger than the wait of the same label was before.
func unchanged(before, now lockcore.LockState) lockcore.LockState {
	now.Held = now.Held && before.Held && now.Token == before.Token
	old := make(map[string]Wait)
	for _, wait := range waitsFor(before) {
		old[wait.Holder] = wait
	}
	waiters := now.Waiters
	now.Waiters = make([]lockcore.Waiter, len(waiters))
	for i, waiter := range waiters { // a waiter that is left out becomes an empty one, so that the others keep their positions
		if was, waited := old[waiter.Holder]; waited && waiter.WaitingFor >= was.For {
			now.Waiters[i] = waiter
		}
	}
	return now
}

// within returns the deadlocks that have a member in the chain; all deadlocks for the name "".
func within(deadlocks []Deadlock, name string, chain []Party) (found []Deadlock) {
	reached := make(map[string]bool, len(chain))
	for _, party := range chain {
		reached[party.Holder] = true
	}
	for _, deadlock := range deadlocks {
		inChain := func(wait Wait) bool { return reached[wait.Holder] }
		if name == "" || slices.ContainsFunc(deadlock.Waits, inChain) {
			found = append(found, deadlock)
		}
	}
	return found
}

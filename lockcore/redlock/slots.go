package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// A request for one of n slots takes one of n locks, whose names lockcore.SlotName makes.
// Votes counted by node would not bound the holders, and so nothing is shared by the slots
// but their node set: each has its own votes, tokens and queue. A request that waits has a
// ticket in the queue of every slot; its server tries them one at a time, as they are
// freed, and dequeues the others with the grant. Under an idempotency key all slots share
// the owner, of which a node grants one lock only (rule 29).

// acquireSlot acquires one of the request's slots: at once, or waiting in all their queues.
func (l *Mapped) acquireSlot(ctx context.Context, req *Request) (*Part, error) {
	names := lockcore.SlotNames(req.Resource, req.Slots)
	if req.Wait == 0 {
		for _, name := range names {
			l.giveUpPlace(ctx, req.ofSlot(name))
		}
	}
	for look := 1; ; look++ {
		taken, err := l.takeFree(ctx, req, names)
		switch {
		case errors.Is(err, lockcore.ErrIdempotencyMismatch) && look < maxLooks: // the key got a slot since the look
			continue
		case req.Wait > 0 && ctx.Err() == nil && (errors.Is(err, lockcore.ErrHeld) || errors.Is(err, lockcore.ErrNoQuorum)):
			return l.awaitSlot(ctx, req, names)
		}
		return taken, err
	}
}

// maxLooks bounds how often a request looks for the slot that its key may have got.
const maxLooks = 3

// takeFree takes a slot that is free, or the one that the key has. Of the slots that are
// held it returns the *lockcore.HeldError of the lease that ends first.
func (l *Mapped) takeFree(ctx context.Context, req *Request, names []string) (*Part, error) {
	candidates, held, err := l.lookAtSlots(ctx, req, names)
	if err != nil {
		return nil, err
	}
	for _, name := range candidates {
		taken, err := l.acquireNow(ctx, req.ofSlot(name))
		if !errors.Is(err, lockcore.ErrHeld) {
			return taken, err
		}
		held = sooner(held, err)
	}
	return nil, held
}

// ofSlot is the request for one slot alone.
func (r *Request) ofSlot(name string) *Request {
	one := *r
	one.Resource, one.Scope, one.Slots, one.isSlot = name, r.ScopeFor(name), 0, true
	return &one
}

// lookAtSlots reads all slots. The candidates are those that are free, in an order that
// requests at the same time rarely share; or the one that the idempotency key has. held is
// the *lockcore.HeldError of the lease in the way that ends first, nil if none is. The
// error is a *QuorumError.
func (l *Mapped) lookAtSlots(ctx context.Context, req *Request, names []string) (candidates []string, held, err error) {
	owners, err := l.ownersOf(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	ballots, errs := make([]ballot, len(names)), make([]error, len(names))
	var looks sync.WaitGroup
	for i, name := range names {
		looks.Go(func() { ballots[i], errs[i] = l.read(ctx, name, (*ballot).holderDecided) })
	}
	looks.Wait()
	own, votes := "", 0
	first := int(l.random.Below(int64(len(names))))
	for i := range names {
		at := (first + i) % len(names)
		if errs[at] != nil {
			return nil, nil, errs[at]
		}
		if n := ballots[at].locksOf(owners); n > votes { // fewer may be of an attempt that failed
			own, votes = names[at], n
		}
		if owner, locks := ballots[at].leader(); locks > 0 {
			held = sooner(held, ballots[at].heldError(names[at], owner))
		} else {
			candidates = append(candidates, names[at])
		}
	}
	if own != "" {
		candidates = []string{own}
	}
	return candidates, held, nil
}

// ownersOf are the ownership values of the request's idempotency key, none without one.
func (l *Locker) ownersOf(ctx context.Context, req *Request) ([]string, error) {
	if req.IdempotencyKey == "" {
		return nil, nil
	}
	keys, err := l.CurrentRing(ctx)
	if err != nil {
		return nil, err
	}
	return l.owners(req, keys), nil
}

// locksOf is how many nodes show a lock of one of the owners.
func (b *ballot) locksOf(owners []string) int {
	return b.countIf(func(r *node.Reply) bool { return slices.Contains(owners, r.Owner) })
}

// sooner is, of two errors, that of the lease that ends first; either may be nil.
func sooner(a, b error) error {
	switch {
	case b == nil, a != nil && endsIn(a) <= endsIn(b):
		return a
	}
	return b
}

// endsIn is when the lease in the way ends that the error is about.
func endsIn(err error) time.Duration {
	if held, ok := errors.AsType[*lockcore.HeldError](err); ok {
		return held.Remaining
	}
	if timeout, ok := errors.AsType[*lockcore.WaitTimeoutError](err); ok {
		return timeout.Remaining
	}
	return 0
}

// awaitSlot waits in the queues of all slots until one is granted.
func (l *Mapped) awaitSlot(ctx context.Context, req *Request, names []string) (*Part, error) {
	slots := make([]*Request, len(names))
	for i, name := range names {
		slots[i] = req.ofSlot(name)
	}
	return l.acquireQueued(ctx, slots...)
}

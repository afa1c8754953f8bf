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

// A request for one of n slots takes one of n locks, whose names lockcore.SlotName makes. Counting votes per
// node would not bound the number of holders, so slots share nothing except their node set: each has its own
// votes, tokens and queue. A request that waits has a ticket in the queue of every slot. Its server tries the
// slots one at a time, as they are freed, and dequeues the other tickets after the grant. Under an idempotency
// key all slots have the same owner, and a node grants an owner only one lock (rule 29).

// acquireSlot acquires one of the request's slots: at once, or waiting in all their queues.
func (l *Mapped) acquireSlot(ctx context.Context, req *lockcore.Request) (*Grant, error) {
	names, end := lockcore.SlotNames(req.Resource, req.Slots), time.Now().Add(req.AnswerWithin())
	if req.Wait == 0 {
		for _, name := range names {
			one := req.Slot(name)
			l.giveUpPlace(ctx, &one)
		}
	}
	for look := 1; ; look++ {
		taken, err := l.takeFree(ctx, req, names)
		switch {
		case errors.Is(err, lockcore.ErrIdempotencyMismatch) && look < maxLooks: // the key has got a slot since the last look
			continue
		case req.Wait > 0 && ctx.Err() == nil && (errors.Is(err, lockcore.ErrHeld) || errors.Is(err, lockcore.ErrNoQuorum)):
			return l.awaitSlot(ctx, end, req, names)
		}
		return taken, err
	}
}

// maxLooks bounds how often a request looks for the slot that its key may have got.
const maxLooks = 3

// takeFree takes a free slot, or the slot that the key has. If all are held, it returns the
// *lockcore.HeldError of the lease that ends first.
func (l *Mapped) takeFree(ctx context.Context, req *lockcore.Request, names []string) (*Grant, error) {
	candidates, held, err := l.lookAtSlots(ctx, req, names)
	if err != nil {
		return nil, err
	}
	for _, name := range candidates {
		one := req.Slot(name)
		taken, err := l.acquireNow(ctx, &one)
		if !errors.Is(err, lockcore.ErrHeld) {
			return taken, err
		}
		held = sooner(held, err)
	}
	return nil, held
}

// lookAtSlots reads all slots. The candidates are the free slots, in an order that differs between concurrent
// requests, or the slot that the idempotency key has. held is the *lockcore.HeldError of the lease that ends
// first, nil if no slot is held. The error is a *QuorumError.
func (l *Mapped) lookAtSlots(ctx context.Context, req *lockcore.Request, names []string) (candidates []string, held, err error) {
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
		if n := ballots[at].locksOf(owners); n > votes { // fewer may belong to an attempt that failed
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

// ownersOf returns the ownership values of the request's idempotency key; none without a key.
func (l *Locker) ownersOf(ctx context.Context, req *lockcore.Request) ([]string, error) {
	if req.IdempotencyKey == "" {
		return nil, nil
	}
	keys, err := l.CurrentRing(ctx)
	if err != nil {
		return nil, err
	}
	return l.owners(req, keys), nil
}

// locksOf returns the number of nodes that show a lock of one of the owners.
func (b *ballot) locksOf(owners []string) int {
	return b.countIf(func(r *node.Reply) bool { return slices.Contains(owners, r.Owner) })
}

// sooner returns the error of the lease that ends first; either argument may be nil.
func sooner(a, b error) error {
	switch {
	case b == nil, a != nil && endsIn(a) <= endsIn(b):
		return a
	}
	return b
}

// endsIn returns when the lease in the error ends.
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
func (l *Mapped) awaitSlot(ctx context.Context, end time.Time, req *lockcore.Request, names []string) (*Grant, error) {
	slots := make([]*lockcore.Request, len(names))
	for i, name := range names {
		one := req.Slot(name)
		slots[i] = &one
	}
	return l.acquireQueued(ctx, end, slots...)
}

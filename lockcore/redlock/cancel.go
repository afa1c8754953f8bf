package redlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Cancel is lockcore.Service's. It ends what the idempotency key has of each resource by
// itself: a request that was lost half-way leaves some of them.
func (l *Locker) Cancel(ctx context.Context, req lockcore.AcquireRequest) ([]lockcore.LeasePart, error) {
	wanted, err := l.underKey(ctx, req)
	if err != nil {
		return nil, err
	}
	tokens, errs := eachWanted(ctx, l, wanted, (*set).cancel)
	var ended []lockcore.LeasePart
	for i, token := range tokens {
		if token == 0 {
			continue
		}
		ended = append(ended, lockcore.LeasePart{Resource: wanted[i].Resource, Token: token})
		if l.cfg.Released != nil {
			l.cfg.Released(wanted[i].Resource, token)
		}
	}
	return ended, first(errs, lockcore.ErrNoQuorum)
}

// ForgetPlace is lockcore.Service's.
func (l *Locker) ForgetPlace(ctx context.Context, req lockcore.AcquireRequest) error {
	wanted, err := l.underKey(ctx, req)
	if err != nil {
		return err
	}
	_, errs := eachWanted(ctx, l, wanted, (*set).forgetPlace)
	return first(errs, lockcore.ErrNoQuorum)
}

// Find is lockcore.Service's. It acquires only once it has seen that the key has a lease,
// and gives back what it was granted instead, if that lease has ended meanwhile.
func (l *Locker) Find(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
	wanted, err := l.underKey(ctx, req)
	if err != nil {
		return lockcore.Lease{}, err
	}
	held, errs := eachWanted(ctx, l, wanted, (*set).heldByKey)
	if err := first(errs, lockcore.ErrNoQuorum); err != nil {
		return lockcore.Lease{}, err
	}
	n := 0
	for _, yes := range held {
		if yes {
			n++
		}
	}
	if n < max(1, len(req.Resources)) {
		return lockcore.Lease{}, lockcore.ErrNotHeld
	}
	req.Wait, req.Poll = 0, 0
	lease, err := l.Acquire(ctx, req)
	switch {
	case errors.Is(err, lockcore.ErrHeld):
		return lockcore.Lease{}, lockcore.ErrNotHeld
	case err == nil && !lease.Existing:
		if err := l.Release(ctx, lease.ID); err != nil {
			return lockcore.Lease{}, err
		}
		return lockcore.Lease{}, lockcore.ErrNotHeld
	}
	return lease, err
}

// underKey gives the requests for one resource, or slot, each that a request under an
// idempotency key is made of. The error is a *FieldError.
func (l *Locker) underKey(ctx context.Context, req lockcore.AcquireRequest) (wanted []*request, err error) {
	if req.IdempotencyKey == "" {
		return nil, &lockcore.FieldError{Field: "Idempotency-Key", Reason: "is required"}
	}
	if err := l.cfg.checkAcquire(&req); err != nil {
		return nil, err
	}
	names, whole := []string{req.Resource}, request{AcquireRequest: req, caller: lockcore.CallerOf(ctx), began: time.Now()}
	switch {
	case req.Resources != nil:
		names = req.Resources
	case req.Slots > 0:
		names = lockcore.SlotNames(req.Resource, req.Slots)
	}
	for i, name := range names {
		one := whole
		one.Resource, one.Resources, one.Slots = name, nil, 0
		if req.Resources != nil {
			one.IdempotencyKey = keyOfPart(req.IdempotencyKey, i, name)
		}
		wanted = append(wanted, &one)
	}
	return wanted, nil
}

// eachWanted calls f for every request side by side, with the set of its resource.
func eachWanted[T any](ctx context.Context, l *Locker, wanted []*request, f func(*set, context.Context, *request) (T, error)) ([]T, []error) {
	results, errs := make([]T, len(wanted)), make([]error, len(wanted))
	var wg sync.WaitGroup
	for i, one := range wanted {
		wg.Go(func() {
			// One after the other: all would ask the nodes at once, and no simulated run repeat.
			time.Sleep(time.Duration(i) * time.Microsecond)
			results[i], errs[i] = at(ctx, l, one.Resource, func(s *set) (T, error) { return f(s, ctx, one) })
		})
	}
	wg.Wait()
	return results, errs
}

// cancel ends the wait of a key for a resource and releases its lock, whichever attempt
// has it. It returns the token up to which that was granted, 0 for none. The error is a
// *QuorumError.
func (s *set) cancel(ctx context.Context, req *request) (ended fencing.Token, err error) {
	keys, err := s.currentKeys(ctx)
	if err != nil {
		return 0, err
	}
	s.queue.Cancel(req.Resource, keys.ticketID(req.caller, req.IdempotencyKey, req.Resource))
	b, err := s.read(ctx, req.Resource, (*ballot).holderDecided)
	if err != nil {
		return 0, err
	}
	for _, owner := range s.owners(req, keys) {
		if b.locksOf([]string{owner}) == 0 {
			continue
		}
		id := leaseID{resource: req.Resource, owner: owner, token: b.largestGrant(owner)}
		released := s.releaseRound(ctx, id, 0)
		switch err := s.releaseResult(id, &released); {
		case err == nil:
			ended = id.token
		case !errors.Is(err, lockcore.ErrNotHeld): // fewer votes than a lease needs
			return ended, err
		}
	}
	return ended, nil
}

// forgetPlace forgets the place of a request that waited at this server and waits no more.
func (s *set) forgetPlace(ctx context.Context, req *request) (struct{}, error) {
	id, err := s.ticketID(ctx, req)
	if err == nil {
		s.queue.Forget(req.Resource, id, req.Holder)
	}
	return struct{}{}, err
}

// heldByKey reports whether a quorum has a lock of the request's idempotency key. The
// error is a *QuorumError.
func (s *set) heldByKey(ctx context.Context, req *request) (bool, error) {
	owners, err := s.ownersOf(ctx, req)
	if err != nil {
		return false, err
	}
	b, err := s.read(ctx, req.Resource, (*ballot).holderDecided)
	return b.locksOf(owners) >= s.quorum, err
}

package compose

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// Cancel is lockcore.Service's. It ends what the idempotency key has of each resource by
// itself: a request that was lost half-way leaves some of them.
func (s *Service) Cancel(ctx context.Context, req lockcore.AcquireRequest) ([]lockcore.LeasePart, error) {
	wanted, err := s.underKey(ctx, req)
	if err != nil {
		return nil, err
	}
	tokens, errs := eachWanted(ctx, s, wanted, func(r Resource, one *redlock.Request) (fencing.Token, error) { return r.Cancel(ctx, one) })
	var ended []lockcore.LeasePart
	for i, token := range tokens {
		if token == 0 {
			continue
		}
		ended = append(ended, lockcore.LeasePart{Resource: wanted[i].Resource, Token: token})
		s.released(wanted[i].Resource, token)
	}
	return ended, first(errs, lockcore.ErrNoQuorum)
}

// ForgetPlace is lockcore.Service's.
func (s *Service) ForgetPlace(ctx context.Context, req lockcore.AcquireRequest) error {
	wanted, err := s.underKey(ctx, req)
	if err != nil {
		return err
	}
	_, errs := eachWanted(ctx, s, wanted, func(r Resource, one *redlock.Request) (struct{}, error) { return struct{}{}, r.ForgetPlace(ctx, one) })
	return first(errs, lockcore.ErrNoQuorum)
}

// Find is lockcore.Service's. It acquires only once it has seen that the key has a lease,
// and gives back what it was granted instead, if that lease has ended meanwhile.
func (s *Service) Find(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
	wanted, err := s.underKey(ctx, req)
	if err != nil {
		return lockcore.Lease{}, err
	}
	held, errs := eachWanted(ctx, s, wanted, func(r Resource, one *redlock.Request) (bool, error) { return r.HeldByKey(ctx, one) })
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
	lease, err := s.Acquire(ctx, req)
	switch {
	case errors.Is(err, lockcore.ErrHeld):
		return lockcore.Lease{}, lockcore.ErrNotHeld
	case err == nil && !lease.Existing:
		if err := s.Release(ctx, lease.ID); err != nil {
			return lockcore.Lease{}, err
		}
		return lockcore.Lease{}, lockcore.ErrNotHeld
	}
	return lease, err
}

// underKey gives the requests for one resource, or slot, each that a request under an
// idempotency key is made of. The error is a *FieldError.
func (s *Service) underKey(ctx context.Context, req lockcore.AcquireRequest) (wanted []*redlock.Request, err error) {
	if req.IdempotencyKey == "" {
		return nil, &lockcore.FieldError{Field: "Idempotency-Key", Reason: "is required"}
	}
	if err := s.limits.Check(&req); err != nil {
		return nil, err
	}
	names, whole := []string{req.Resource}, redlock.Request{AcquireRequest: req, Caller: lockcore.CallerOf(ctx), Began: time.Now()}
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

// eachWanted calls f for every request side by side, with what locks its resource.
func eachWanted[T any](ctx context.Context, s *Service, wanted []*redlock.Request, f func(Resource, *redlock.Request) (T, error)) ([]T, []error) {
	results, errs := make([]T, len(wanted)), make([]error, len(wanted))
	var wg sync.WaitGroup
	for i, one := range wanted {
		wg.Go(func() {
			// One after the other: all would ask the nodes at once, and no simulated run repeat.
			time.Sleep(time.Duration(i) * time.Microsecond)
			results[i], errs[i] = at(ctx, s, one.Resource, func(r Resource) (T, error) { return f(r, one) })
		})
	}
	wg.Wait()
	return results, errs
}

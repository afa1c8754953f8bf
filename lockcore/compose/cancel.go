package compose

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// Cancel implements lockcore.Service. It ends each resource of the idempotency key separately, because a
// request that was lost half-way may have taken only some of them.
func (s *Service) Cancel(ctx context.Context, req lockcore.Request) ([]lockcore.LeasePart, error) {
	wanted, err := s.underKey(&req)
	if err != nil {
		return nil, err
	}
	tokens, errs := eachWanted(ctx, s, wanted, func(r Resource, one *lockcore.Request) (fencing.Token, error) { return r.Cancel(ctx, one) })
	var ended []lockcore.LeasePart
	for i, token := range tokens {
		if token > 0 {
			ended = append(ended, lockcore.LeasePart{Resource: wanted[i].Resource, Token: token})
		}
	}
	return ended, first(errs, lockcore.ErrNoQuorum)
}

// ForgetPlace implements lockcore.Service.
func (s *Service) ForgetPlace(ctx context.Context, req lockcore.Request) error {
	wanted, err := s.underKey(&req)
	if err != nil {
		return err
	}
	_, errs := eachWanted(ctx, s, wanted, func(r Resource, one *lockcore.Request) (struct{}, error) { return struct{}{}, r.ForgetPlace(ctx, one) })
	return first(errs, lockcore.ErrNoQuorum)
}

// Find implements lockcore.Service. It first checks that the key has a lease, and only then acquires. If that
// lease has ended in between, the acquire creates a new one, which Find releases.
func (s *Service) Find(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	wanted, err := s.underKey(&req)
	if err != nil {
		return lockcore.Lease{}, err
	}
	held, errs := eachWanted(ctx, s, wanted, func(r Resource, one *lockcore.Request) (bool, error) { return r.HeldByKey(ctx, one) })
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
		return lockcore.Lease{}, s.giveBack(ctx, req.Caller, lease.ID)
	}
	return lease, err
}

// giveBack releases an unwanted lease. It returns ErrNotHeld, or the reason why the lease may still exist.
func (s *Service) giveBack(ctx context.Context, caller lockcore.Caller, leaseID string) error {
	granted, err := s.Open(ctx, caller, leaseID)
	if err == nil {
		_, err = granted.Release(ctx)
	}
	return cmp.Or(err, lockcore.ErrNotHeld)
}

// underKey returns the requests of which a request under an idempotency key consists, each for one resource
// or slot. The error is a *FieldError.
func (s *Service) underKey(req *lockcore.Request) (wanted []*lockcore.Request, err error) {
	if req.IdempotencyKey == "" {
		return nil, &lockcore.FieldError{Field: "Idempotency-Key", Reason: "is required"}
	}
	if err := s.limits.Check(req); err != nil {
		return nil, err
	}
	switch {
	case req.Resources != nil:
		for i := range req.Resources {
			one := req.Part(i)
			wanted = append(wanted, &one)
		}
	case req.Slots > 0:
		for _, name := range lockcore.SlotNames(req.Resource, req.Slots) {
			one := req.Slot(name)
			wanted = append(wanted, &one)
		}
	default:
		wanted = []*lockcore.Request{req}
	}
	return wanted, nil
}

// eachWanted calls f concurrently for every request, with the Resource that locks it.
func eachWanted[T any](ctx context.Context, s *Service, wanted []*lockcore.Request, f func(Resource, *lockcore.Request) (T, error)) ([]T, []error) {
	results, errs := make([]T, len(wanted)), make([]error, len(wanted))
	var wg sync.WaitGroup
	for i, one := range wanted {
		wg.Go(func() {
			// Staggered: if all queried the nodes at once, simulated runs would not be repeatable.
			time.Sleep(time.Duration(i) * time.Microsecond)
			results[i], errs[i] = at(ctx, s, one.Resource, func(r Resource) (T, error) { return f(r, one) })
		})
	}
	wg.Wait()
	return results, errs
}

// Package compose makes a lock service of something that locks one resource: it checks
// requests, seals and opens lease ids, and takes several resources as one lease, all or
// none. It has no knowledge of nodes or of how a resource finds them.
package compose

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// Resource is what locks one resource; *redlock.Mapped is one.
type Resource interface {
	Acquire(ctx context.Context, req *redlock.Request) (*redlock.Part, error)
	Extend(ctx context.Context, id keyring.LeaseID, ttl time.Duration) (lockcore.Lease, error)
	Renew(ctx context.Context, id keyring.LeaseID, token fencing.Token, ttl time.Duration) error
	Release(ctx context.Context, id keyring.LeaseID, keep time.Duration) error
	Lease(ctx context.Context, id keyring.LeaseID) (lockcore.Lease, error)
	EndOf(ctx context.Context, id keyring.LeaseID) (lockcore.End, error)
	Inspect(ctx context.Context, resource string) (lockcore.LockState, error)
	Break(ctx context.Context, resource string, token fencing.Token) error
	Cancel(ctx context.Context, req *redlock.Request) (fencing.Token, error)
	ForgetPlace(ctx context.Context, req *redlock.Request) error
	HeldByKey(ctx context.Context, req *redlock.Request) (bool, error)
}

// Resources find the Resource of a name.
type Resources interface {
	// At calls f with what locks the resource, and again with something else if the resource
	// has moved in the meantime. The error is f's, or a *QuorumError.
	At(ctx context.Context, resource string, f func(Resource) error) error
	// Rings are the keys that are known, of every quorum.
	Rings() []*keyring.Ring
	// ReadRings reads the keys from the nodes. The error is a *QuorumError.
	ReadRings(ctx context.Context) error
	// Ring is the present keys of the quorum that granted a part.
	Ring(p *redlock.Part) *keyring.Ring
	// Retract retracts the votes that won a part, wherever its resource is now. RetractLater
	// does it when the place of a request that was broken off is given up, too.
	Retract(p *redlock.Part)
	RetractLater(p *redlock.Part)
}

// Service takes leases of one or several resources. It is safe for concurrent use.
type Service struct {
	limits    Limits
	resources Resources
	dropLimit time.Duration
	released  func(resource string, token fencing.Token)
}

// New makes a Service within the limits, which are valid. What a failed request has taken is
// released within dropLimit. Released, if not nil, is called for every resource of a lease
// that a Release or a Cancel has ended; it must not block.
func New(limits Limits, resources Resources, dropLimit time.Duration, released func(resource string, token fencing.Token)) *Service {
	if released == nil {
		released = func(string, fencing.Token) {}
	}
	return &Service{limits: limits, resources: resources, dropLimit: dropLimit, released: released}
}

// at is Resources.At for a call with a result.
func at[T any](ctx context.Context, s *Service, resource string, f func(Resource) (T, error)) (result T, err error) {
	err = s.resources.At(ctx, resource, func(r Resource) (err error) {
		result, err = f(r)
		return err
	})
	return result, err
}

// Acquire is lockcore.Service's. After an error it retracts in the background what
// nodes granted.
func (s *Service) Acquire(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error) {
	terms := redlock.TermsOf(&req)
	if err := s.limits.checkAcquire(&req); err != nil {
		return lockcore.Lease{}, err
	}
	one := &redlock.Request{AcquireRequest: req, Caller: lockcore.CallerOf(ctx), Terms: terms, Began: time.Now()}
	one.Scope = one.ScopeFor(req.Resource)
	if req.Resources != nil {
		return s.acquireSeveral(ctx, one)
	}
	taken, err := s.acquire(ctx, one)
	if err != nil {
		return lockcore.Lease{}, err
	}
	return s.seal(one.Caller, []*redlock.Part{taken}), nil
}

// acquire acquires one resource, wherever it is. What moves while it waits is waited for
// again, at the end of its new queue.
func (s *Service) acquire(ctx context.Context, req *redlock.Request) (*redlock.Part, error) {
	began := time.Now()
	return at(ctx, s, req.Resource, func(r Resource) (*redlock.Part, error) {
		if req.Wait == 0 || time.Since(began) < time.Millisecond {
			return r.Acquire(ctx, req)
		}
		again := *req
		again.Wait = left(req.Wait, began)
		if req.Polls() {
			again.Poll = left(req.Poll, began)
		}
		return r.Acquire(ctx, &again)
	})
}

// left is what is left of a wait that began then, at least a millisecond.
func left(wait time.Duration, began time.Time) time.Duration {
	return max(time.Millisecond, wait-time.Since(began))
}

// Extend is lockcore.Service's. When it succeeds, no acquisition with a larger
// token had completed when it was sent.
func (s *Service) Extend(ctx context.Context, lease string, ttl time.Duration) (lockcore.Lease, error) {
	parts, err := s.openLease(ctx, lease)
	if err != nil {
		return lockcore.Lease{}, err
	}
	if ttl == 0 {
		last, err := s.look(ctx, lease, parts)
		if errors.Is(err, lockcore.ErrNotHeld) { // its TTL is no longer known
			return lockcore.Lease{}, s.endAll(ctx, parts)
		}
		if err != nil {
			return lockcore.Lease{}, err
		}
		ttl = min(last.TTL, s.limits.MaxTTL)
	}
	if ttl, err = s.limits.checkTTL(ttl); err != nil {
		return lockcore.Lease{}, err
	}
	extended, err := s.extendAll(ctx, lease, parts, ttl)
	if errors.Is(err, lockcore.ErrNotHeld) && len(parts) > 1 {
		err = s.endAll(ctx, parts)
	}
	return extended, err
}

// extendAll extends the parts of a lease. A part that has ended
// counts more than one without a quorum: the lease has ended.
func (s *Service) extendAll(ctx context.Context, lease string, parts []keyring.LeaseID, ttl time.Duration) (lockcore.Lease, error) {
	leases, errs := s.eachPart(ctx, parts, func(r Resource, id keyring.LeaseID) (lockcore.Lease, error) { return r.Extend(ctx, id, ttl) })
	if err := first(errs, lockcore.ErrNotHeld, lockcore.ErrMaxHold, lockcore.ErrNoQuorum); err != nil {
		return lockcore.Lease{}, err
	}
	return together(lease, leases), nil
}

// endAll ends what is left of a lease, before its holder is told that it has ended:
// no part of it stays locked, and none can be extended (rule 5). It returns ErrNotHeld, or
// a *QuorumError while a part may be left.
func (s *Service) endAll(ctx context.Context, parts []keyring.LeaseID) error {
	if err := s.releaseAll(ctx, parts); err != nil {
		return err
	}
	return lockcore.ErrNotHeld
}

// Release is lockcore.Service's. After a *QuorumError the release continues in the
// background; the lease ends with its TTL at the latest.
func (s *Service) Release(ctx context.Context, lease string) error {
	parts, err := s.openLease(ctx, lease)
	if err != nil {
		return err
	}
	return s.releaseAll(ctx, parts)
}

// releaseAll releases the parts of a lease. One without a quorum counts more
// than one that has ended: the release is to be repeated.
func (s *Service) releaseAll(ctx context.Context, parts []keyring.LeaseID) error {
	_, errs := eachOf(parts, func(id keyring.LeaseID) (struct{}, error) { return struct{}{}, s.releasePart(ctx, id) })
	return first(errs, lockcore.ErrNoQuorum, lockcore.ErrNotHeld)
}

func (s *Service) releasePart(ctx context.Context, id keyring.LeaseID) error {
	tried := false
	err := s.resources.At(ctx, id.Resource, func(r Resource) error {
		err := r.Release(ctx, id, keepTaken(id))
		if tried && errors.Is(err, lockcore.ErrNotHeld) {
			return nil // the lease was ended where it was before it moved
		}
		tried = true
		return err
	})
	if err == nil {
		s.released(id.Resource, id.Token)
	}
	return err
}

// keepTaken is for how long a resource that is released now stays taken (rule 27).
func keepTaken(id keyring.LeaseID) time.Duration {
	return min(max(0, id.MinHold-time.Since(id.Acquired)), id.MinHold).Truncate(time.Millisecond)
}

// Lease is lockcore.Service's. The validity counts from now.
func (s *Service) Lease(ctx context.Context, lease string) (lockcore.Lease, error) {
	parts, err := s.openLease(ctx, lease)
	if err != nil {
		return lockcore.Lease{}, err
	}
	return s.look(ctx, lease, parts)
}

// look reads the parts of a lease.
func (s *Service) look(ctx context.Context, lease string, parts []keyring.LeaseID) (lockcore.Lease, error) {
	leases, errs := s.eachPart(ctx, parts, func(r Resource, id keyring.LeaseID) (lockcore.Lease, error) { return r.Lease(ctx, id) })
	if err := first(errs, lockcore.ErrNotHeld, lockcore.ErrNoQuorum); err != nil {
		return lockcore.Lease{}, err
	}
	return together(lease, leases), nil
}

// EndOf is lockcore.Service's. Of a lease of several resources it looks at the first.
func (s *Service) EndOf(ctx context.Context, lease string) (lockcore.End, error) {
	parts, err := s.openLease(ctx, lease)
	if err != nil {
		return lockcore.EndUnknown, err
	}
	return at(ctx, s, parts[0].Resource, func(r Resource) (lockcore.End, error) { return r.EndOf(ctx, parts[0]) })
}

// Inspect is lockcore.Service's. A resource is held when a quorum holds one lease,
// or may hold it as far as the nodes that answered show.
func (s *Service) Inspect(ctx context.Context, resource string) (lockcore.LockState, error) {
	if err := lockcore.ValidateResource(resource); err != nil {
		return lockcore.LockState{}, err
	}
	return at(ctx, s, resource, func(r Resource) (lockcore.LockState, error) { return r.Inspect(ctx, resource) })
}

// Break is lockcore.Service's. It also removes votes without a quorum.
func (s *Service) Break(ctx context.Context, resource string, token fencing.Token) error {
	if err := lockcore.ValidateResource(resource); err != nil {
		return err
	}
	return s.resources.At(ctx, resource, func(r Resource) error { return r.Break(ctx, resource, token) })
}

// eachPart calls f for every part side by side, with what locks it.
func (s *Service) eachPart(ctx context.Context, parts []keyring.LeaseID, f func(Resource, keyring.LeaseID) (lockcore.Lease, error)) ([]lockcore.Lease, []error) {
	return eachOf(parts, func(id keyring.LeaseID) (lockcore.Lease, error) {
		return at(ctx, s, id.Resource, func(r Resource) (lockcore.Lease, error) { return f(r, id) })
	})
}

// eachOf calls f for all of them side by side.
func eachOf[E, T any](all []E, f func(E) (T, error)) (results []T, errs []error) {
	results, errs = make([]T, len(all)), make([]error, len(all))
	if len(all) == 1 {
		results[0], errs[0] = f(all[0])
		return results, errs
	}
	var wg sync.WaitGroup
	for i, one := range all {
		wg.Go(func() { results[i], errs[i] = f(one) })
	}
	wg.Wait()
	return results, errs
}

// first returns the error that is one of the kinds, the first kind that there is; any
// other error if there is none of these, nil without errors.
func first(errs []error, kinds ...error) error {
	for _, kind := range kinds {
		for _, err := range errs {
			if errors.Is(err, kind) {
				return err
			}
		}
	}
	return errors.Join(errs...)
}

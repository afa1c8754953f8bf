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
	limits    lockcore.Limits
	resources Resources
	dropLimit time.Duration
	released  func(resource string, token fencing.Token)
}

// New makes a Service within the limits, which are valid. What a failed request has taken is
// released within dropLimit. Released, if not nil, is called for every resource of a lease
// that a Release or a Cancel has ended; it must not block.
func New(limits lockcore.Limits, resources Resources, dropLimit time.Duration, released func(resource string, token fencing.Token)) *Service {
	if released == nil {
		released = func(string, fencing.Token) {}
	}
	return &Service{limits: limits, resources: resources, dropLimit: dropLimit, released: released}
}

// Limits is lockcore.Service's.
func (s *Service) Limits() lockcore.Limits { return s.limits }

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
	if err := s.limits.Check(&req); err != nil {
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
	taken.Lease.ID = s.resources.Ring(taken).SealLease(one.Caller, []keyring.LeaseID{taken.ID})
	return taken.Lease, nil
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

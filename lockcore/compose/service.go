// Package compose builds a lock service from a component that locks one resource. It checks requests, seals
// and opens lease ids, and takes several resources as one lease, all or none. It knows nothing of nodes or of
// how a resource finds them.
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

// Resource locks one resource; *redlock.Mapped implements it.
type Resource interface {
	Acquire(ctx context.Context, req *lockcore.Request) (*redlock.Grant, error)
	Extend(ctx context.Context, id keyring.LeaseID, ttl time.Duration) (lockcore.Lease, error)
	Renew(ctx context.Context, id keyring.LeaseID, token fencing.Token, ttl time.Duration) error
	Release(ctx context.Context, id keyring.LeaseID, keep time.Duration) error
	Lease(ctx context.Context, id keyring.LeaseID) (lockcore.Lease, error)
	EndOf(ctx context.Context, id keyring.LeaseID) (lockcore.End, error)
	Inspect(ctx context.Context, resource string) (lockcore.LockState, error)
	Break(ctx context.Context, resource string, token fencing.Token) error
	Cancel(ctx context.Context, req *lockcore.Request) (fencing.Token, error)
	ForgetPlace(ctx context.Context, req *lockcore.Request) error
	HeldByKey(ctx context.Context, req *lockcore.Request) (bool, error)
}

// Resources finds the Resource for a name.
type Resources interface {
	// At calls f with the Resource that locks the name. If the resource moves to another node set meanwhile,
	// it calls f again with the new one. The error is f's, or a *QuorumError.
	At(ctx context.Context, resource string, f func(Resource) error) error
	// Rings returns the known keys of every quorum.
	Rings() []*keyring.Ring
	// ReadRings reads the keys from the nodes. The error is a *QuorumError.
	ReadRings(ctx context.Context) error
	// Ring returns the present keys of the quorum that granted a part.
	Ring(p *redlock.Grant) *keyring.Ring
	// Retract retracts the votes that won a part, wherever its resource is now. RetractLater does so when the
	// kept place of an interrupted request is given up.
	Retract(p *redlock.Grant)
	RetractLater(p *redlock.Grant)
}

// Service grants leases of one or several resources. It is safe for concurrent use.
type Service struct {
	limits    lockcore.Limits
	resources Resources
	dropLimit time.Duration
}

// New makes a Service with these limits, which must be valid. After a failed request, the service releases the
// parts that the request had taken, within dropLimit.
func New(limits lockcore.Limits, resources Resources, dropLimit time.Duration) *Service {
	return &Service{limits: limits, resources: resources, dropLimit: dropLimit}
}

// Limits implements lockcore.Service.
func (s *Service) Limits() lockcore.Limits { return s.limits }

// at is Resources.At for an f with a result.
func at[T any](ctx context.Context, s *Service, resource string, f func(Resource) (T, error)) (result T, err error) {
	err = s.resources.At(ctx, resource, func(r Resource) (err error) {
		result, err = f(r)
		return err
	})
	return result, err
}

// Acquire implements lockcore.Service. After an error it retracts the nodes' grants in the background.
func (s *Service) Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error) {
	if err := s.limits.Check(&req); err != nil {
		return lockcore.Lease{}, err
	}
	if req.Resources != nil {
		return s.acquireSeveral(ctx, &req)
	}
	taken, err := s.acquire(ctx, &req)
	if err != nil {
		return lockcore.Lease{}, err
	}
	taken.Lease.ID = s.resources.Ring(taken).SealLease(req.Caller.Name(), []keyring.LeaseID{taken.ID})
	return taken.Lease, nil
}

// acquire acquires one resource, wherever it is. If the resource moves while the request waits, the request
// waits again, at the end of the new queue.
func (s *Service) acquire(ctx context.Context, req *lockcore.Request) (*redlock.Grant, error) {
	began := time.Now()
	return at(ctx, s, req.Resource, func(r Resource) (*redlock.Grant, error) {
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

// left returns the rest of a wait that began at began, at least a millisecond.
func left(wait time.Duration, began time.Time) time.Duration {
	return max(time.Millisecond, wait-time.Since(began))
}

// Inspect implements lockcore.Service. It reports a resource as held if a quorum holds one lease, or if it
// may, as far as the responding nodes show.
func (s *Service) Inspect(ctx context.Context, resource string) (lockcore.LockState, error) {
	if err := lockcore.ValidateResource(resource); err != nil {
		return lockcore.LockState{}, err
	}
	return at(ctx, s, resource, func(r Resource) (lockcore.LockState, error) { return r.Inspect(ctx, resource) })
}

// Break implements lockcore.Service. It also removes votes without a quorum.
func (s *Service) Break(ctx context.Context, resource string, token fencing.Token) error {
	if err := lockcore.ValidateResource(resource); err != nil {
		return err
	}
	return s.resources.At(ctx, resource, func(r Resource) error { return r.Break(ctx, resource, token) })
}

// eachPart calls f concurrently for every part, with the Resource that locks it.
func (s *Service) eachPart(ctx context.Context, parts []keyring.LeaseID, f func(Resource, keyring.LeaseID) (lockcore.Lease, error)) ([]lockcore.Lease, []error) {
	return eachOf(parts, func(id keyring.LeaseID) (lockcore.Lease, error) {
		return at(ctx, s, id.Resource, func(r Resource) (lockcore.Lease, error) { return f(r, id) })
	})
}

// eachOf calls f concurrently for every element.
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

// first returns an error of the first kind in kinds that occurs. If none occurs, it returns any other error;
// without errors it returns nil.
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

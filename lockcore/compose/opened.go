package compose

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
)

// opened is a lease whose id was opened. It has one part for each resource.
type opened struct {
	*Service
	id    string
	parts []keyring.LeaseID
}

// ID implements lockcore.OpenedLease.
func (l *opened) ID() string { return l.id }

// Terms implements lockcore.OpenedLease.
func (l *opened) Terms() lockcore.LeaseTerms {
	terms := lockcore.LeaseTerms{Granted: l.parts[0].Acquired, MinHold: l.parts[0].MinHold}
	for i := range l.parts {
		terms.Parts = append(terms.Parts, lockcore.LeasePart{Resource: l.parts[i].Resource, Token: l.parts[i].Token})
	}
	return terms
}

// Extend implements lockcore.OpenedLease. If it succeeds, no acquisition with a larger token had completed
// when Extend was called.
func (l *opened) Extend(ctx context.Context, ttl time.Duration) (lockcore.Lease, error) {
	if ttl == 0 {
		last, err := l.Now(ctx)
		if errors.Is(err, lockcore.ErrNotHeld) { // the last TTL is no longer known
			return lockcore.Lease{}, l.endAll(ctx)
		}
		if err != nil {
			return lockcore.Lease{}, err
		}
		ttl = min(last.TTL, l.limits.MaxTTL)
	}
	ttl, err := l.limits.CheckTTL(ttl)
	if err != nil {
		return lockcore.Lease{}, err
	}
	extended, err := l.extendAll(ctx, l.parts, ttl)
	switch {
	case errors.Is(err, lockcore.ErrNotHeld) && len(l.parts) > 1:
		return lockcore.Lease{}, l.endAll(ctx)
	case err != nil:
		return lockcore.Lease{}, err
	}
	extended.ID = l.id
	return extended, nil
}

// endAll releases the remaining parts of a lease before its holder learns that the lease has ended. Afterwards
// no part is locked, and none can be extended (rule 5). It returns an *EndedError.
func (l *opened) endAll(ctx context.Context) error {
	ended, err := l.Release(ctx)
	return &lockcore.EndedError{Ended: ended, Err: cmp.Or(err, lockcore.ErrNotHeld)}
}

// Release implements lockcore.OpenedLease. After a *QuorumError the release continues in the background, and
// the lease ends at its TTL at the latest. If one part has no quorum and another has ended, Release returns
// the *QuorumError, so that the caller repeats it.
func (l *opened) Release(ctx context.Context) ([]lockcore.LeasePart, error) {
	parts, errs := eachOf(l.parts, func(id keyring.LeaseID) (lockcore.LeasePart, error) {
		return lockcore.LeasePart{Resource: id.Resource, Token: id.Token}, l.releasePart(ctx, id)
	})
	ended := parts[:0]
	for i, part := range parts {
		if errs[i] == nil {
			ended = append(ended, part)
		}
	}
	return ended, first(errs, lockcore.ErrNoQuorum, lockcore.ErrNotHeld)
}

// Now implements lockcore.OpenedLease. The validity counts from now.
func (l *opened) Now(ctx context.Context) (lockcore.Lease, error) {
	leases, errs := l.eachPart(ctx, l.parts, func(r Resource, id keyring.LeaseID) (lockcore.Lease, error) { return r.Lease(ctx, id) })
	if err := first(errs, lockcore.ErrNotHeld, lockcore.ErrNoQuorum); err != nil {
		return lockcore.Lease{}, err
	}
	return together(l.id, leases), nil
}

// End implements lockcore.OpenedLease. For a lease of several resources it inspects the first one.
func (l *opened) End(ctx context.Context) (lockcore.End, error) {
	return at(ctx, l.Service, l.parts[0].Resource, func(r Resource) (lockcore.End, error) { return r.EndOf(ctx, l.parts[0]) })
}

// extendAll extends the parts of a lease, and returns the lease without its id. If one part has ended and
// another has no quorum, it returns the error of the ended part, because the lease has ended.
func (s *Service) extendAll(ctx context.Context, parts []keyring.LeaseID, ttl time.Duration) (lockcore.Lease, error) {
	leases, errs := s.eachPart(ctx, parts, func(r Resource, id keyring.LeaseID) (lockcore.Lease, error) { return r.Extend(ctx, id, ttl) })
	if err := first(errs, lockcore.ErrNotHeld, lockcore.ErrMaxHold, lockcore.ErrNoQuorum); err != nil {
		return lockcore.Lease{}, err
	}
	return together("", leases), nil
}

func (s *Service) releasePart(ctx context.Context, id keyring.LeaseID) error {
	tried := false
	return s.resources.At(ctx, id.Resource, func(r Resource) error {
		err := r.Release(ctx, id, keepTaken(id))
		if tried && errors.Is(err, lockcore.ErrNotHeld) {
			return nil // the lease ended at its old node set before its resource moved
		}
		tried = true
		return err
	})
}

// keepTaken returns for how long a resource that is released now stays locked (rule 27), in whole milliseconds. The
// lease id has the time of the grant without its fraction of a millisecond, so the rest may be one longer than it
// seems; and it is rounded up.
func keepTaken(id keyring.LeaseID) time.Duration {
	const lost, unit = time.Millisecond, time.Millisecond
	rest := id.MinHold - time.Since(id.Acquired) + lost
	return min(max(0, rest+unit-1), id.MinHold).Truncate(unit)
}

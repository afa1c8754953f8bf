package compose

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
)

// opened is a lease whose id was opened. Of several resources it has as many parts.
type opened struct {
	*Service
	id    string
	parts []keyring.LeaseID
}

// ID is lockcore.OpenedLease's.
func (l *opened) ID() string { return l.id }

// Terms is lockcore.OpenedLease's.
func (l *opened) Terms() lockcore.LeaseTerms {
	terms := lockcore.LeaseTerms{Granted: l.parts[0].Acquired, MinHold: l.parts[0].MinHold}
	for i := range l.parts {
		terms.Parts = append(terms.Parts, lockcore.LeasePart{Resource: l.parts[i].Resource, Token: l.parts[i].Token})
	}
	return terms
}

// Extend is lockcore.OpenedLease's. When it succeeds, no acquisition with a larger
// token had completed when it was sent.
func (l *opened) Extend(ctx context.Context, ttl time.Duration) (lockcore.Lease, error) {
	if ttl == 0 {
		last, err := l.Now(ctx)
		if errors.Is(err, lockcore.ErrNotHeld) { // its TTL is no longer known
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

// endAll ends what is left of a lease, before its holder is told that it has ended:
// no part of it stays locked, and none can be extended (rule 5). It returns ErrNotHeld, or
// a *QuorumError while a part may be left.
func (l *opened) endAll(ctx context.Context) error {
	if err := l.Release(ctx); err != nil {
		return err
	}
	return lockcore.ErrNotHeld
}

// Release is lockcore.OpenedLease's. After a *QuorumError the release continues in the
// background; the lease ends with its TTL at the latest. A part without a quorum counts more
// than one that has ended: the release is to be repeated.
func (l *opened) Release(ctx context.Context) error {
	_, errs := eachOf(l.parts, func(id keyring.LeaseID) (struct{}, error) { return struct{}{}, l.releasePart(ctx, id) })
	return first(errs, lockcore.ErrNoQuorum, lockcore.ErrNotHeld)
}

// Now is lockcore.OpenedLease's. The validity counts from now.
func (l *opened) Now(ctx context.Context) (lockcore.Lease, error) {
	leases, errs := l.eachPart(ctx, l.parts, func(r Resource, id keyring.LeaseID) (lockcore.Lease, error) { return r.Lease(ctx, id) })
	if err := first(errs, lockcore.ErrNotHeld, lockcore.ErrNoQuorum); err != nil {
		return lockcore.Lease{}, err
	}
	return together(l.id, leases), nil
}

// End is lockcore.OpenedLease's. Of a lease of several resources it looks at the first.
func (l *opened) End(ctx context.Context) (lockcore.End, error) {
	return at(ctx, l.Service, l.parts[0].Resource, func(r Resource) (lockcore.End, error) { return r.EndOf(ctx, l.parts[0]) })
}

// extendAll extends the parts of a lease, and returns it without its id. A part that has
// ended counts more than one without a quorum: the lease has ended.
func (s *Service) extendAll(ctx context.Context, parts []keyring.LeaseID, ttl time.Duration) (lockcore.Lease, error) {
	leases, errs := s.eachPart(ctx, parts, func(r Resource, id keyring.LeaseID) (lockcore.Lease, error) { return r.Extend(ctx, id, ttl) })
	if err := first(errs, lockcore.ErrNotHeld, lockcore.ErrMaxHold, lockcore.ErrNoQuorum); err != nil {
		return lockcore.Lease{}, err
	}
	return together("", leases), nil
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

// Extend opens the lease id, and extends its lease. Errors: of Open and of OpenedLease.Extend.
func (s *Service) Extend(ctx context.Context, leaseID string, ttl time.Duration) (lockcore.Lease, error) {
	l, err := s.Open(ctx, leaseID)
	if err != nil {
		return lockcore.Lease{}, err
	}
	return l.Extend(ctx, ttl)
}

// Release opens the lease id, and releases its lease. Errors: of Open and of OpenedLease.Release.
func (s *Service) Release(ctx context.Context, leaseID string) error {
	l, err := s.Open(ctx, leaseID)
	if err != nil {
		return err
	}
	return l.Release(ctx)
}

// Lease opens the lease id, and returns its lease as it is now. Errors: of Open and of OpenedLease.Now.
func (s *Service) Lease(ctx context.Context, leaseID string) (lockcore.Lease, error) {
	l, err := s.Open(ctx, leaseID)
	if err != nil {
		return lockcore.Lease{}, err
	}
	return l.Now(ctx)
}

// EndOf opens the lease id, and returns how its lease ended. Errors: of Open and of OpenedLease.End.
func (s *Service) EndOf(ctx context.Context, leaseID string) (lockcore.End, error) {
	l, err := s.Open(ctx, leaseID)
	if err != nil {
		return lockcore.EndUnknown, err
	}
	return l.End(ctx)
}

package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/pause"
)

// A bundle is one lease of several resources: all or none. They are taken one
// after the other in the order of their names, whatever the order in which a
// caller gives them, so that two callers never wait for each other in a ring.
// Every resource has a token of its own (rule 25).

// checkBundle sorts the resources and refuses what a bundle cannot be.
func checkBundle(req *lockcore.AcquireRequest) error {
	if req.Resource != "" {
		return &lockcore.FieldError{Field: "resources", Reason: "must not be given together with resource"}
	}
	if n := len(req.Resources); n < lockcore.MinBundle || n > lockcore.MaxBundle {
		return &lockcore.FieldError{Field: "resources", Reason: fmt.Sprintf("must name %d to %d resources", lockcore.MinBundle, lockcore.MaxBundle)}
	}
	req.Resources = slices.Clone(req.Resources)
	slices.Sort(req.Resources)
	for i, resource := range req.Resources {
		if err := lockcore.ValidateText("resources", resource, 1); err != nil {
			return err
		}
		if i > 0 && resource == req.Resources[i-1] {
			return &lockcore.FieldError{Field: "resources", Reason: "must not name a resource twice"}
		}
	}
	return nil
}

// errPartLost: somebody broke a lease that was taken already, or it was held
// for as long as one may be.
var errPartLost = errors.New("a part of the bundle was lost")

// acquireBundle takes all or none, and begins again when a part was lost
// meanwhile and there is time left.
func (l *Locker) acquireBundle(ctx context.Context, req *request) (lockcore.Lease, error) {
	began := time.Now()
	until := began.Add(req.Wait)
	for {
		taken, validity, err := l.takeAll(ctx, req, until)
		if timeout := (*lockcore.WaitTimeoutError)(nil); errors.As(err, &timeout) {
			timeout.Waited = time.Since(began) // for all of them
		}
		switch {
		case err == nil:
			lease := l.sealed(req.caller, taken)
			lease.Validity = validity
			return lease, nil
		case !errors.Is(err, errPartLost) || ctx.Err() != nil:
			return lockcore.Lease{}, err
		case !time.Now().Before(until):
			return lockcore.Lease{}, &lockcore.HeldError{Resource: req.Resources[0]}
		}
	}
}

// takeAll takes one after the other. What is taken is kept alive while it waits
// for the rest.
func (l *Locker) takeAll(ctx context.Context, req *request, until time.Time) (taken []*part, validity time.Duration, err error) {
	scope := strings.Join(req.Resources, "\n")
	for i, resource := range req.Resources {
		one := *req
		one.Resources, one.Resource, one.scope = nil, resource, scope
		if i > 0 && req.IdempotencyKey != "" {
			one.IdempotencyKey += "\n" + resource
		}
		if req.Wait > 0 {
			one.Wait = max(time.Millisecond, time.Until(until))
		}
		next, err := l.acquireKeeping(ctx, &one, taken)
		if err != nil {
			l.dropAll(ctx, taken)
			return nil, 0, err
		}
		taken = append(taken, next)
	}
	if validity, err = l.complete(ctx, taken, req.TTL); err != nil {
		l.dropAll(ctx, taken)
	}
	return taken, validity, err
}

// acquireKeeping acquires one more part while it extends those that are taken.
// Losing one of them ends the wait.
func (l *Locker) acquireKeeping(ctx context.Context, req *request, taken []*part) (*part, error) {
	if req.Wait == 0 || len(taken) == 0 {
		return l.of(req.Resource).acquire(ctx, req)
	}
	waiting, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	var keeper sync.WaitGroup
	keeper.Go(func() {
		const often = 3
		for pause.For(waiting, req.TTL/often) == nil {
			if _, err := l.extendAll(waiting, taken, req.TTL); errors.Is(err, lockcore.ErrNotHeld) || errors.Is(err, lockcore.ErrMaxHold) {
				lose(err)
			}
		}
	})
	next, err := l.of(req.Resource).acquire(waiting, req)
	lose(nil)
	keeper.Wait()
	if lost := context.Cause(waiting); err != nil && ctx.Err() == nil && !errors.Is(lost, context.Canceled) {
		err = fmt.Errorf("%w while waiting for %q: %w", errPartLost, req.Resource, lost)
	}
	return next, err
}

// complete returns for how long the lease of all parts is valid. Unless all were
// taken in a moment, and something is left of each, they get their full TTL again:
// an idempotency key may have found one that is about to end.
func (l *Locker) complete(ctx context.Context, taken []*part, ttl time.Duration) (time.Duration, error) {
	const moment = 20
	validity := taken[0].lease.Validity
	for _, p := range taken {
		validity = min(validity, p.lease.Validity-time.Since(p.at))
	}
	if time.Since(taken[0].at) <= ttl/moment && validity > 0 {
		return validity, nil
	}
	validity, err := l.extendAll(ctx, taken, ttl)
	if errors.Is(err, lockcore.ErrNotHeld) || errors.Is(err, lockcore.ErrMaxHold) {
		err = fmt.Errorf("%w: %w", errPartLost, err)
	}
	return validity, err
}

// sealed makes the owner's lease of what was taken.
func (l *Locker) sealed(owner string, taken []*part) lockcore.Lease {
	ids, leases := make([]leaseID, len(taken)), make([]lockcore.Lease, len(taken))
	for i, p := range taken {
		ids[i], leases[i] = p.id, p.lease
	}
	return together(l.seal(owner, ids), leases)
}

// extendAll extends every part side by side and returns the least validity.
func (l *Locker) extendAll(ctx context.Context, taken []*part, ttl time.Duration) (time.Duration, error) {
	parts := make([]leaseID, len(taken))
	for i := range taken {
		parts[i] = taken[i].id
	}
	leases, err := l.eachPart(parts, func(s *set, id leaseID) (lockcore.Lease, error) { return s.extend(ctx, id, ttl) })
	if err != nil {
		return 0, err
	}
	least := leases[0].Validity
	for _, lease := range leases {
		least = min(least, lease.Validity)
	}
	return least, nil
}

// dropAll gives back, in the background of a caller that may be gone, what was taken.
// Under an idempotency key only this attempt's own votes go: another attempt at
// the same bundle may hold the part, and count on it.
func (l *Locker) dropAll(ctx context.Context, taken []*part) {
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.NodeTimeout)
	defer cancel()
	parts := make([]leaseID, 0, len(taken))
	for _, p := range taken {
		if p.attempt != "" {
			l.of(p.id.resource).retract(p.id, p.attempt, p.lease.TTL)
			continue
		}
		parts = append(parts, p.id)
	}
	_, _ = l.eachPart(parts, func(s *set, id leaseID) (lockcore.Lease, error) {
		return lockcore.Lease{}, s.release(dropping, id.resource, id.value, id.token, 0)
	})
}

// together makes one lease of this id of the leases of its parts.
func together(id string, parts []lockcore.Lease) lockcore.Lease {
	lease := parts[0]
	lease.ID = id
	if len(parts) == 1 {
		return lease
	}
	lease.Resource, lease.Token = "", 0
	for _, p := range parts {
		lease.Parts = append(lease.Parts, lockcore.LeasePart{Resource: p.Resource, Token: p.Token})
		lease.Existing = lease.Existing && p.Existing
		if p.Acquired.Before(lease.Acquired) {
			lease.Acquired = p.Acquired
		}
		lease.Validity = min(lease.Validity, p.Validity)
		lease.MaxHoldRemaining = min(lease.MaxHoldRemaining, p.MaxHoldRemaining)
	}
	return lease
}

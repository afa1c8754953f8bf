package lockcore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A bundle is one lease of several resources: all or none. They are taken one
// after the other in the order of their names, whatever the order in which a
// caller gives them, so that two callers never wait for each other in a ring.
// Every resource has a token of its own (rule 25).

// Bounds of a bundle.
const (
	LeastBundle = 2
	MostBundle  = 16
)

// checkBundle sorts the resources and refuses what a bundle cannot be.
func (req *AcquireRequest) checkBundle() error {
	if req.Resource != "" {
		return &FieldError{Field: "resources", Reason: "must not be given together with resource"}
	}
	if n := len(req.Resources); n < LeastBundle || n > MostBundle {
		return &FieldError{Field: "resources", Reason: fmt.Sprintf("must name %d to %d resources", LeastBundle, MostBundle)}
	}
	req.Resources = slices.Clone(req.Resources)
	slices.Sort(req.Resources)
	for i, resource := range req.Resources {
		if err := validateText("resources", resource, 1); err != nil {
			return err
		}
		if i > 0 && resource == req.Resources[i-1] {
			return &FieldError{Field: "resources", Reason: "must not name a resource twice"}
		}
	}
	return nil
}

// errPartLost: somebody broke a lease that was taken already, or it was held
// for as long as one may be.
var errPartLost = errors.New("a part of the bundle was lost")

// acquireBundle takes all or none, and begins anew when a part was lost
// meanwhile and there is time left.
func (l *Locker) acquireBundle(ctx context.Context, req *AcquireRequest) (*Lease, error) {
	began := time.Now()
	until := began.Add(req.Wait)
	for {
		lease, err := l.takeAll(ctx, req, until)
		if timeout := (*WaitTimeoutError)(nil); errors.As(err, &timeout) {
			timeout.Waited = time.Since(began) // for all of them
		}
		switch {
		case !errors.Is(err, errPartLost) || ctx.Err() != nil:
			return lease, err
		case !time.Now().Before(until):
			return nil, &HeldError{Resource: req.Resources[0]}
		}
	}
}

// takeAll takes one after the other. What is taken is kept alive while it waits
// for the rest.
func (l *Locker) takeAll(ctx context.Context, req *AcquireRequest, until time.Time) (*Lease, error) {
	scope := strings.Join(req.Resources, "\n")
	var taken []held
	for i, resource := range req.Resources {
		one := *req
		one.Resources, one.Resource, one.scope = nil, resource, scope
		if i > 0 && req.IdempotencyKey != "" {
			one.IdempotencyKey += "\n" + resource
		}
		if req.Wait > 0 {
			one.Wait = max(time.Millisecond, time.Until(until))
		}
		lease, err := l.acquireKeeping(ctx, &one, taken)
		if err != nil {
			l.dropAll(ctx, taken)
			return nil, err
		}
		taken = append(taken, held{id: lease.ids[0], lease: *lease, at: time.Now()})
	}
	lease, err := l.completeBundle(ctx, taken, req.TTL)
	if err != nil {
		l.dropAll(ctx, taken)
		return nil, err
	}
	return &lease, nil
}

// held is a part of a bundle that has been taken.
type held struct {
	id    leaseID
	lease Lease
	at    time.Time
}

// acquireKeeping acquires one more part while it extends those that are taken.
// Losing one of them ends the wait.
func (l *Locker) acquireKeeping(ctx context.Context, req *AcquireRequest, taken []held) (*Lease, error) {
	if req.Wait == 0 || len(taken) == 0 {
		return l.route(req.Resource).acquireOne(ctx, req)
	}
	waiting, lose := context.WithCancelCause(ctx)
	defer lose(nil)
	var keeper sync.WaitGroup
	keeper.Go(func() {
		const often = 3
		for sleep(waiting, req.TTL/often) == nil {
			if _, err := l.extendAll(waiting, taken, req.TTL); errors.Is(err, ErrNotHeld) || errors.Is(err, ErrMaxHold) {
				lose(err)
			}
		}
	})
	lease, err := l.route(req.Resource).acquireOne(waiting, req)
	lose(nil)
	keeper.Wait()
	if lost := context.Cause(waiting); err != nil && ctx.Err() == nil && !errors.Is(lost, context.Canceled) {
		err = fmt.Errorf("%w while waiting for %q: %w", errPartLost, req.Resource, lost)
	}
	return lease, err
}

// completeBundle makes one lease of the parts. Unless all were taken in a moment, and
// something is left of each, they get their full TTL again: an idempotency key may
// have found one that is about to end.
func (l *Locker) completeBundle(ctx context.Context, taken []held, ttl time.Duration) (Lease, error) {
	const moment = 20
	validity := taken[0].lease.Validity
	for _, part := range taken {
		validity = min(validity, part.lease.Validity-time.Since(part.at))
	}
	if time.Since(taken[0].at) <= ttl/moment && validity > 0 {
		return bundleOf(taken, validity), nil
	}
	validity, err := l.extendAll(ctx, taken, ttl)
	switch {
	case errors.Is(err, ErrNotHeld) || errors.Is(err, ErrMaxHold):
		return Lease{}, fmt.Errorf("%w: %w", errPartLost, err)
	case err != nil:
		return Lease{}, err
	}
	return bundleOf(taken, validity), nil
}

func bundleOf(taken []held, validity time.Duration) Lease {
	lease := taken[0].lease
	lease.Resource, lease.Token, lease.Validity = "", 0, validity
	lease.ids = make([]leaseID, len(taken))
	for i, part := range taken {
		lease.ids[i] = part.id
		lease.Parts = append(lease.Parts, LeasePart{Resource: part.id.resource, Token: part.id.token})
		lease.Existing = lease.Existing && part.lease.Existing
		if part.lease.Acquired.Before(lease.Acquired) {
			lease.Acquired = part.lease.Acquired
		}
		lease.MaxHoldRemaining = min(lease.MaxHoldRemaining, part.lease.MaxHoldRemaining)
	}
	return lease
}

// extendAll extends every part side by side and returns the least validity.
func (l *Locker) extendAll(ctx context.Context, taken []held, ttl time.Duration) (time.Duration, error) {
	parts := make([]leaseID, len(taken))
	for i := range taken {
		parts[i] = taken[i].id
	}
	leases, err := l.eachPart(parts, func(l *Locker, id leaseID) (Lease, error) { return l.extendOne(ctx, id, ttl) })
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
func (l *Locker) dropAll(ctx context.Context, taken []held) {
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.NodeTimeout)
	defer cancel()
	parts := make([]leaseID, 0, len(taken))
	for _, part := range taken {
		if part.lease.attempt != "" {
			l.route(part.id.resource).retract(part.id, part.lease.attempt, part.lease.TTL)
			continue
		}
		parts = append(parts, part.id)
	}
	_, _ = l.eachPart(parts, func(l *Locker, id leaseID) (Lease, error) {
		return Lease{}, l.release(dropping, id.resource, id.value, id.token)
	})
}

// eachPart calls f for every part side by side, with the Locker of its node set. Of several errors the gravest
// is returned: a lost part over a part that nobody can tell about.
func (l *Locker) eachPart(parts []leaseID, f func(*Locker, leaseID) (Lease, error)) ([]Lease, error) {
	leases, errs := make([]Lease, len(parts)), make([]error, len(parts))
	if len(parts) == 1 {
		leases[0], errs[0] = f(l.route(parts[0].resource), parts[0])
		return leases, errs[0]
	}
	var wg sync.WaitGroup
	for i, id := range parts {
		wg.Go(func() { leases[i], errs[i] = f(l.route(id.resource), id) })
	}
	wg.Wait()
	for _, grave := range []error{ErrNotHeld, ErrMaxHold, ErrNoQuorum} {
		for _, err := range errs {
			if errors.Is(err, grave) {
				return leases, err
			}
		}
	}
	return leases, errors.Join(errs...)
}

// together makes one answer, about the lease of this id, of the parts' answers.
func together(id string, parts []leaseID, leases []Lease) Lease {
	if len(parts) == 1 {
		leases[0].ID = id
		return leases[0]
	}
	taken := make([]held, len(parts))
	validity := leases[0].Validity
	for i := range parts {
		taken[i] = held{id: parts[i], lease: leases[i]}
		validity = min(validity, leases[i].Validity)
	}
	lease := bundleOf(taken, validity)
	lease.ID = id
	return lease
}

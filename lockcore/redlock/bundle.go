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
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/pause"
)

// A bundle is one lease of several resources: all or none. They are acquired one
// after the other in the order of their names, whatever their order in the request,
// so that two callers never wait for each other in a ring. Every resource has a
// token of its own (rule 25).

// checkBundle sorts the resources and refuses a wrong list.
func checkBundle(req *lockcore.AcquireRequest) error {
	if req.Resource != "" {
		return &lockcore.FieldError{Field: "resources", Reason: "must not be given together with resource"}
	}
	if req.Slots != 0 {
		return &lockcore.FieldError{Field: "slots", Reason: "must not be given together with resources"}
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

// errPartEnded: a part that was acquired already was broken, or has reached its
// longest hold.
var errPartEnded = errors.New("a part of the bundle has ended")

// partEnded wraps the error in errPartEnded if it means that a part has ended.
func partEnded(err error) error {
	if errors.Is(err, lockcore.ErrNotHeld) || errors.Is(err, lockcore.ErrMaxHold) {
		return fmt.Errorf("%w: %w", errPartEnded, err)
	}
	return err
}

// acquireBundle acquires all or none. It begins again when a part has ended in the
// meantime and there is time left.
func (l *Locker) acquireBundle(ctx context.Context, req *request) (lockcore.Lease, error) {
	began := time.Now()
	for {
		lease, err := l.acquireAll(ctx, req, began)
		if timeout := (*lockcore.WaitTimeoutError)(nil); errors.As(err, &timeout) {
			timeout.Waited = time.Since(began) // for all of them
		}
		if !errors.Is(err, errPartEnded) || ctx.Err() != nil {
			return lease, err
		}
		if time.Since(began) >= req.answerWithin() {
			return lockcore.Lease{}, &lockcore.HeldError{Resource: req.Resources[0]}
		}
	}
}

// acquireAll acquires one part after the other.
func (l *Locker) acquireAll(ctx context.Context, req *request, began time.Time) (lease lockcore.Lease, err error) {
	taken := make([]*part, 0, len(req.Resources))
	defer func() {
		switch {
		case err == nil:
		case errors.Is(err, lockcore.ErrWaitTimeout) && req.polls():
			l.dropLater(ctx, taken)
		default:
			l.dropAll(ctx, taken)
		}
	}()
	scope := strings.Join(req.Resources, "\n")
	for i, resource := range req.Resources {
		one := *req
		one.Resources, one.Resource, one.scope = nil, resource, scope
		if i > 0 && req.IdempotencyKey != "" {
			one.IdempotencyKey += "\n" + resource
		}
		if req.Wait > 0 {
			one.Wait = max(time.Millisecond, req.Wait-time.Since(began))
		}
		if req.polls() {
			one.Poll = max(time.Millisecond, req.Poll-time.Since(began))
		}
		next, err := l.acquireKeeping(ctx, &one, taken)
		if err != nil {
			return lockcore.Lease{}, err
		}
		taken = append(taken, next)
	}
	validity, err := l.complete(ctx, taken, req.TTL)
	if err != nil {
		return lockcore.Lease{}, err
	}
	lease = seal(req.caller, taken)
	lease.Validity = validity
	return lease, nil
}

// acquireKeeping acquires one more part while it extends those that are taken. It
// gives up when one of them has ended.
func (l *Locker) acquireKeeping(ctx context.Context, req *request, taken []*part) (*part, error) {
	if req.Wait == 0 || len(taken) == 0 {
		return l.acquire(ctx, req)
	}
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var keeper sync.WaitGroup
	keeper.Go(func() {
		next := req.TTL / 3
		if slices.ContainsFunc(taken, func(p *part) bool { return p.lease.Existing }) {
			next = 0 // an earlier request under the key took it, some time ago
		}
		for ; pause.For(waiting, next) == nil; next = req.TTL / 3 {
			if _, err := l.extend(waiting, "", idsOf(taken), req.TTL); errors.Is(partEnded(err), errPartEnded) {
				stop(partEnded(err))
			}
		}
	})
	next, err := l.acquire(waiting, req)
	stop(nil)
	keeper.Wait()
	if cause := context.Cause(waiting); err != nil && ctx.Err() == nil && errors.Is(cause, errPartEnded) {
		err = fmt.Errorf("waiting for %q: %w", req.Resource, cause)
	}
	return next, err
}

// complete returns for how long the lease of all parts is valid. Unless all were
// acquired in a twentieth of the TTL, and each is still valid, it extends them to
// the full TTL: an idempotency key may have found one that is about to expire.
func (l *Locker) complete(ctx context.Context, taken []*part, ttl time.Duration) (time.Duration, error) {
	validity := taken[0].lease.Validity
	for _, p := range taken {
		validity = min(validity, p.lease.Validity-time.Since(p.at))
	}
	if time.Since(taken[0].at) <= ttl/20 && validity > 0 {
		return validity, nil
	}
	lease, err := l.extend(ctx, "", idsOf(taken), ttl)
	return lease.Validity, partEnded(err)
}

func idsOf(taken []*part) []leaseID {
	ids := make([]leaseID, 0, 1) // nearly always one, and then not on the heap
	for _, p := range taken {
		ids = append(ids, p.id)
	}
	return ids
}

// seal makes the caller's lease of the parts.
func seal(caller string, taken []*part) lockcore.Lease {
	leases := make([]lockcore.Lease, 0, 1)
	for _, p := range taken {
		leases = append(leases, p.lease)
	}
	keys := taken[0].set.keysNow()
	return together(keys.sealLease(caller, idsOf(taken)), leases)
}

// dropAll releases the parts, also for a caller that went away. Under an idempotency
// key it retracts only this attempt's votes: another attempt at the same bundle may
// hold the part.
func (l *Locker) dropAll(ctx context.Context, taken []*part) {
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.cfg.NodeTimeout)
	defer cancel()
	var ids []leaseID
	for _, p := range taken {
		if p.id.attempt == "" {
			ids = append(ids, p.id)
			continue
		}
		l.retract(p)
	}
	_, _ = l.eachPart(dropping, ids, func(s *set, id leaseID) (lockcore.Lease, error) {
		return lockcore.Lease{}, s.release(dropping, id, 0)
	})
}

// retract retracts the votes for a part, also where its resource has moved meanwhile.
func (l *Locker) retract(p *part) {
	p.set.retract(p.acquire(), p.lease.TTL)
	if s := l.atlas.of(p.id.resource); s != nil && s.setState != p.set.setState {
		s.retract(p.acquire(), p.lease.TTL)
	}
}

// dropLater drops the parts of a request that ends before its wait: the next one under
// the key finds them until then, and keeps them, since the lock notes its attempt, too.
func (l *Locker) dropLater(ctx context.Context, taken []*part) {
	for _, p := range taken {
		if p.id.attempt == "" {
			l.dropAll(ctx, taken)
			return
		}
	}
	for _, p := range taken {
		p.set.retractLater(p.acquire(), p.lease.TTL)
	}
}

// acquire is the operation that took the part, as far as a retraction needs it.
func (p *part) acquire() *node.Op {
	return &node.Op{Resource: p.id.resource, Owner: p.id.owner, Attempt: p.id.attempt, TTL: p.asked}
}

// together makes the lease of that id from the leases of its parts.
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
		lease.Waited = max(lease.Waited, p.Waited)
		lease.MaxHoldRemaining = min(lease.MaxHoldRemaining, p.MaxHoldRemaining)
	}
	return lease
}

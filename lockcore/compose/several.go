package compose

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/internal/pause"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// A lease of several resources is all or none. They are acquired one
// after the other in the order of their names, whatever their order in the request,
// so that two callers never wait for each other in a ring. Every resource has a
// token of its own (rule 25).

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

// acquireSeveral acquires all or none. It begins again when a part has ended in the
// meantime and there is time left.
func (s *Service) acquireSeveral(ctx context.Context, req *redlock.Request) (lockcore.Lease, error) {
	began := time.Now()
	for {
		r := &reservation{Service: s, req: req, began: began}
		lease, err := r.takeAll(ctx)
		if err != nil {
			r.drop(ctx, err)
		}
		if !errors.Is(err, errPartEnded) || ctx.Err() != nil {
			return lease, err
		}
		if time.Since(began) >= req.AnswerWithin() {
			return lockcore.Lease{}, &lockcore.HeldError{Resource: req.Resources[0]}
		}
	}
}

// reservation is what a request for several resources has taken of them so far. Its
// parts are kept while the others are waited for, and no lease yet: that begins for all
// of them when the last one is taken.
type reservation struct {
	*Service
	req   *redlock.Request
	began time.Time
	parts []*redlock.Part
	kept  time.Time // since when every part lasts for the TTL
}

// takeAll takes one part after the other, and makes a lease of them.
func (r *reservation) takeAll(ctx context.Context) (lockcore.Lease, error) {
	scope := r.req.ScopeFor(strings.Join(r.req.Resources, "\n"))
	for i, resource := range r.req.Resources {
		one := *r.req
		one.Resources, one.Resource, one.Scope = nil, resource, scope
		one.IdempotencyKey = keyOfPart(r.req.IdempotencyKey, i, resource)
		if r.req.Wait > 0 {
			one.Wait = left(r.req.Wait, r.began)
		}
		if r.req.Polls() {
			one.Poll = left(r.req.Poll, r.began)
		}
		next, err := r.takeKeeping(ctx, &one)
		if err != nil {
			return lockcore.Lease{}, err
		}
		r.add(next)
	}
	return r.grant(ctx)
}

// keyOfPart is the idempotency key of part i of several resources; "" without a key.
func keyOfPart(key string, i int, resource string) string {
	if i == 0 || key == "" {
		return key
	}
	return key + "\n" + resource
}

// add adds a part. One that an earlier request under the key took may be about to expire.
func (r *reservation) add(p *redlock.Part) {
	kept := p.At.Add(p.Lease.Validity - r.req.TTL)
	if len(r.parts) == 0 || kept.Before(r.kept) {
		r.kept = kept
	}
	r.parts = append(r.parts, p)
}

// takeKeeping takes one more part while it keeps those that are taken. It gives up when
// one of them has ended.
func (r *reservation) takeKeeping(ctx context.Context, req *redlock.Request) (*redlock.Part, error) {
	if req.Wait == 0 || len(r.parts) == 0 {
		return r.acquire(ctx, req)
	}
	waiting, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var keeper sync.WaitGroup
	keeper.Go(func() { stop(r.keep(waiting)) })
	next, err := r.acquire(waiting, req)
	stop(nil)
	keeper.Wait()
	if cause := context.Cause(waiting); err != nil && ctx.Err() == nil && errors.Is(cause, errPartEnded) {
		err = fmt.Errorf("waiting for %q: %w", req.Resource, cause)
	}
	return next, err
}

// keep extends the parts whenever a third of the TTL has passed since all of them were
// last given it, however many others were taken since. It returns why it ended: a part
// has ended, or ctx.
func (r *reservation) keep(ctx context.Context) error {
	for {
		if err := pause.For(ctx, time.Until(r.kept.Add(r.req.TTL/3))); err != nil {
			return err
		}
		_, err := r.extend(ctx)
		if err = partEnded(err); errors.Is(err, errPartEnded) {
			return err
		}
		if err != nil && pause.For(ctx, r.req.TTL/20) != nil {
			return ctx.Err()
		}
	}
}

// extend gives every part the whole TTL, and returns for how long all of them are valid.
// No maximum hold bounds a part: it counts from the grant.
func (r *reservation) extend(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	ids := idsOf(r.parts)
	for i := range ids {
		ids[i].Acquired = began
	}
	lease, err := r.extendAll(ctx, ids, r.req.TTL)
	if err == nil {
		r.kept = began
	}
	return lease.Validity, err
}

// grant makes one lease of the parts, now that all are taken.
func (r *reservation) grant(ctx context.Context) (lockcore.Lease, error) {
	validity := r.parts[0].Lease.Validity
	found := 0
	for _, p := range r.parts {
		validity = min(validity, p.Lease.Validity-time.Since(p.At))
		if p.Lease.Existing {
			found++
		}
	}
	var err error
	switch {
	case found == len(r.parts) && validity > 0: // an earlier request under the key was granted them
	case found == len(r.parts): // that lease is about to expire
		var lease lockcore.Lease
		lease, err = r.extendAll(ctx, idsOf(r.parts), r.req.TTL)
		validity = lease.Validity
	case found > 0:
		if err = r.renew(ctx); err == nil {
			validity, err = r.extend(ctx)
		}
	case time.Since(r.parts[0].At) > r.req.TTL/20 || validity <= 0:
		validity, err = r.extend(ctx)
	}
	if err != nil {
		return lockcore.Lease{}, partEnded(err)
	}
	lease := r.lease()
	lease.Validity = validity
	return lease, nil
}

// renew gives the parts that an earlier request under the key took a new token. They may
// be what is left of a lease that has ended since another of its parts did: its id must
// not end, or extend, a part of the new one (rule 25).
func (r *reservation) renew(ctx context.Context) error {
	for _, p := range r.parts {
		if !p.Lease.Existing {
			continue
		}
		token := p.ID.Token + 1
		if !token.Valid() {
			return lockcore.ErrTokensExhausted
		}
		if err := r.resources.At(ctx, p.ID.Resource, func(one Resource) error { return one.Renew(ctx, p.ID, token, r.req.TTL) }); err != nil {
			return err
		}
		p.ID.Token, p.Lease.Token = token, token
	}
	return nil
}

// drop drops the parts after an error. Those of a poll are kept for the next one.
func (r *reservation) drop(ctx context.Context, err error) {
	if errors.Is(err, lockcore.ErrWaitTimeout) && r.req.Polls() {
		r.dropLater(ctx, r.parts)
	} else {
		r.dropAll(ctx, r.parts)
	}
}

func idsOf(taken []*redlock.Part) []keyring.LeaseID {
	ids := make([]keyring.LeaseID, len(taken))
	for i, p := range taken {
		ids[i] = p.ID
	}
	return ids
}

// lease makes the caller's lease of the parts.
func (r *reservation) lease() lockcore.Lease {
	leases := make([]lockcore.Lease, len(r.parts))
	for i, p := range r.parts {
		leases[i] = p.Lease
	}
	return together(r.resources.Ring(r.parts[0]).SealLease(r.req.Caller, idsOf(r.parts)), leases)
}

// dropAll releases the parts, also for a caller that went away. Under an idempotency
// key it retracts only this attempt's votes: another attempt at the same bundle may
// hold the part.
func (s *Service) dropAll(ctx context.Context, taken []*redlock.Part) {
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.dropLimit)
	defer cancel()
	var ids []keyring.LeaseID
	for _, p := range taken {
		if p.ID.Attempt == "" {
			ids = append(ids, p.ID)
			continue
		}
		s.resources.Retract(p)
	}
	_, _ = s.eachPart(dropping, ids, func(r Resource, id keyring.LeaseID) (lockcore.Lease, error) {
		return lockcore.Lease{}, r.Release(dropping, id, 0)
	})
}

// dropLater drops the parts of a request that ends before its wait: the next one under
// the key finds them until then, and keeps them, since the lock notes its attempt, too.
func (s *Service) dropLater(ctx context.Context, taken []*redlock.Part) {
	for _, p := range taken {
		if p.ID.Attempt == "" {
			s.dropAll(ctx, taken)
			return
		}
	}
	for _, p := range taken {
		s.resources.RetractLater(p)
	}
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
		if p.Acquired.After(lease.Acquired) { // the lease begins with its last part
			lease.Acquired = p.Acquired
		}
		lease.Validity = min(lease.Validity, p.Validity)
		lease.Waited = max(lease.Waited, p.Waited)
		lease.MaxHoldRemaining = max(lease.MaxHoldRemaining, p.MaxHoldRemaining)
	}
	return lease
}

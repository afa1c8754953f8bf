package compose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/redlock"
)

// A lease of several resources is all or none. They are acquired one
// after the other in the order of their names, whatever their order in the request,
// so that two callers never wait for each other in a ring. Every resource has a
// token of its own (rule 25).

// errPartEnded means that a part that was already acquired was broken, or has reached its longest hold.
var errPartEnded = errors.New("a part of the bundle has ended")

// partEnded wraps the error in errPartEnded if it means that a part has ended.
func partEnded(err error) error {
	if errors.Is(err, lockcore.ErrNotHeld) || errors.Is(err, lockcore.ErrMaxHold) {
		return fmt.Errorf("%w: %w", errPartEnded, err)
	}
	return err
}

// acquireSeveral acquires all resources or none. If a part has ended in the meantime and there is time left,
// it begins again.
func (s *Service) acquireSeveral(ctx context.Context, req *lockcore.Request) (lockcore.Lease, error) {
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

// reservation is a bundle that is being taken: the grants that a request for several resources
// has so far, and no lease yet. The lease begins, for all of them, when the last one is taken.
//
//	takeAll: take a ─ take b ─ … ─ grant ─▶ lease
//	           └── keep: extend a, b, … ──┘
//	           └── a part has ended, or an error ─▶ drop ─▶ nothing is left
//
// Parts are taken in the order of their names, so that two bundles never wait for each other in
// a ring. While one is waited for, those before it are extended (keep), so all of them are held
// when the lease begins. If one has ended (it was broken, or reached its longest hold) the
// reservation is dropped, and acquireSeveral begins another one. Under an idempotency key a
// part may be one that an earlier request took: then it gets a new token (renew), and a drop
// retracts only the votes of this attempt. How a part is granted is the Resource's business.
type reservation struct {
	*Service
	req   *lockcore.Request
	began time.Time        // when the request began: all parts share its wait
	parts []*redlock.Grant // the parts taken so far: a prefix of req.Resources
	kept  time.Time        // the last moment at which every part had its full TTL; zero without parts
}

// takeAll takes the parts one by one, and makes a lease of them.
func (r *reservation) takeAll(ctx context.Context) (lockcore.Lease, error) {
	for i := range r.req.Resources {
		one := r.req.Part(i)
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

// add adds a part. A part of an earlier request under the same key may be about to expire.
func (r *reservation) add(p *redlock.Grant) {
	kept := p.At.Add(p.Lease.Validity - r.req.TTL)
	if len(r.parts) == 0 || kept.Before(r.kept) {
		r.kept = kept
	}
	r.parts = append(r.parts, p)
}

// takeKeeping takes another part while it extends the parts taken so far. It gives up if one of those has
// ended.
func (r *reservation) takeKeeping(ctx context.Context, req *lockcore.Request) (*redlock.Grant, error) {
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

// keep extends the parts. It does so whenever a third of the TTL has passed since the last moment at which all
// of them had their full TTL. It returns why it stopped: a part has ended, or ctx.
func (r *reservation) keep(ctx context.Context) error {
	for {
		if !pause.For(ctx, time.Until(r.kept.Add(r.req.TTL/3))) {
			return ctx.Err()
		}
		_, err := r.extend(ctx)
		if err = partEnded(err); errors.Is(err, errPartEnded) {
			return err
		}
		if err != nil && !pause.For(ctx, r.req.TTL/20) {
			return ctx.Err()
		}
	}
}

// extend gives every part its full TTL, and returns the shortest validity of all parts. No maximum hold limits
// a part here: it counts from the grant of the lease.
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

// grant makes one lease of the parts after all are taken.
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

// renew gives new tokens to the parts that an earlier request under the key took. They may be the rest of a
// lease that ended when another of its parts did. The id of that lease must not be able to release or extend a
// part of the new lease (rule 25).
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

// drop releases the parts after an error. After a poll they are kept for the next request. After a wait that
// has run out, the response does not wait for nodes that do not reply; they still get the release later.
func (r *reservation) drop(ctx context.Context, err error) {
	if errors.Is(err, lockcore.ErrWaitTimeout) && r.req.Polls() && r.keyed() {
		r.dropLater(r.parts)
		return
	}
	limit := r.dropLimit
	if wait := r.req.AnswerWithin(); wait > 0 {
		limit = min(limit, time.Until(r.began.Add(wait+redlock.ResponseSlack)))
	}
	r.dropAll(ctx, r.parts, limit)
}

// keyed reports whether the next request can find the parts.
func (r *reservation) keyed() bool {
	return !slices.ContainsFunc(r.parts, func(p *redlock.Grant) bool { return p.ID.Attempt == "" })
}

func idsOf(taken []*redlock.Grant) []keyring.LeaseID {
	ids := make([]keyring.LeaseID, len(taken))
	for i, p := range taken {
		ids[i] = p.ID
	}
	return ids
}

// lease makes the caller's lease from the parts.
func (r *reservation) lease() lockcore.Lease {
	leases := make([]lockcore.Lease, len(r.parts))
	for i, p := range r.parts {
		leases[i] = p.Lease
	}
	return together(r.resources.Ring(r.parts[0]).SealLease(r.req.Caller.Name(), idsOf(r.parts)), leases)
}

// dropAll releases the parts, even if the caller has gone, and waits for that until the limit. Under an
// idempotency key it retracts only the votes of this attempt, because another attempt at the same bundle may
// hold the part.
func (s *Service) dropAll(ctx context.Context, taken []*redlock.Grant, limit time.Duration) {
	dropping, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
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

// dropLater drops the parts of a poll after a delay. If the next request under the key comes before that, it
// finds the parts and keeps them, because the locks then note its attempt as well.
func (s *Service) dropLater(taken []*redlock.Grant) {
	for _, p := range taken {
		s.resources.RetractLater(p)
	}
}

// together makes the lease with this id from the leases of its parts.
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

package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
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
		r := &reservation{Locker: l, req: req, began: began}
		lease, err := r.takeAll(ctx)
		if err != nil {
			r.drop(ctx, err)
		}
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

// reservation is what a request for several resources has taken of them so far. Its
// parts are kept while the others are waited for, and no lease yet: that begins for all
// of them when the last one is taken.
type reservation struct {
	*Locker
	req   *request
	began time.Time
	parts []*part
	kept  time.Time // since when every part lasts for the TTL
}

// takeAll takes one part after the other, and makes a lease of them.
func (r *reservation) takeAll(ctx context.Context) (lockcore.Lease, error) {
	scope := r.req.scopeFor(strings.Join(r.req.Resources, "\n"))
	for i, resource := range r.req.Resources {
		one := *r.req
		one.Resources, one.Resource, one.scope = nil, resource, scope
		one.IdempotencyKey = keyOfPart(r.req.IdempotencyKey, i, resource)
		if r.req.Wait > 0 {
			one.Wait = max(time.Millisecond, r.req.Wait-time.Since(r.began))
		}
		if r.req.polls() {
			one.Poll = max(time.Millisecond, r.req.Poll-time.Since(r.began))
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
func (r *reservation) add(p *part) {
	kept := p.at.Add(p.lease.Validity - r.req.TTL)
	if len(r.parts) == 0 || kept.Before(r.kept) {
		r.kept = kept
	}
	r.parts = append(r.parts, p)
}

// takeKeeping takes one more part while it keeps those that are taken. It gives up when
// one of them has ended.
func (r *reservation) takeKeeping(ctx context.Context, req *request) (*part, error) {
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
		ids[i].acquired = began
	}
	lease, err := r.extendAll(ctx, "", ids, r.req.TTL)
	if err == nil {
		r.kept = began
	}
	return lease.Validity, err
}

// grant makes one lease of the parts, now that all are taken.
func (r *reservation) grant(ctx context.Context) (lockcore.Lease, error) {
	validity := r.parts[0].lease.Validity
	found := 0
	for _, p := range r.parts {
		validity = min(validity, p.lease.Validity-time.Since(p.at))
		if p.lease.Existing {
			found++
		}
	}
	var err error
	switch {
	case found == len(r.parts) && validity > 0: // an earlier request under the key was granted them
	case found == len(r.parts): // that lease is about to expire
		var lease lockcore.Lease
		lease, err = r.extendAll(ctx, "", idsOf(r.parts), r.req.TTL)
		validity = lease.Validity
	case found > 0:
		if err = r.renew(ctx); err == nil {
			validity, err = r.extend(ctx)
		}
	case time.Since(r.parts[0].at) > r.req.TTL/20 || validity <= 0:
		validity, err = r.extend(ctx)
	}
	if err != nil {
		return lockcore.Lease{}, partEnded(err)
	}
	lease := seal(r.req.caller, r.parts)
	lease.Validity = validity
	return lease, nil
}

// renew gives the parts that an earlier request under the key took a new token. They may
// be what is left of a lease that has ended since another of its parts did: its id must
// not end, or extend, a part of the new one (rule 25).
func (r *reservation) renew(ctx context.Context) error {
	for _, p := range r.parts {
		if !p.lease.Existing {
			continue
		}
		token := p.id.token + 1
		if !token.Valid() {
			return lockcore.ErrTokensExhausted
		}
		_, err := at(ctx, r.Locker, p.id.resource, func(s *set) (struct{}, error) { return struct{}{}, s.renew(ctx, p.id, token, r.req.TTL) })
		if err != nil {
			return err
		}
		p.id.token, p.lease.Token = token, token
	}
	return nil
}

// renew gives a lock that a quorum has under the id a larger token. Errors: ErrNotHeld,
// *QuorumError.
func (s *set) renew(ctx context.Context, id leaseID, token fencing.Token, ttl time.Duration) error {
	b := s.roundInEpoch(ctx, node.Op{Kind: node.OpConfirm, Map: s.mapName, Resource: id.resource, Owner: id.owner, Token: token, TTL: ttl})
	switch {
	case b.count(node.Granted) >= s.quorum:
		return nil
	case b.count(node.NotHeld) >= quorum.Readers(len(s.nodes)):
		return lockcore.ErrNotHeld
	}
	return s.quorumError(id.resource, &b)
}

// drop drops the parts after an error. Those of a poll are kept for the next one.
func (r *reservation) drop(ctx context.Context, err error) {
	if errors.Is(err, lockcore.ErrWaitTimeout) && r.req.polls() {
		r.dropLater(ctx, r.parts)
	} else {
		r.dropAll(ctx, r.parts)
	}
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
		if p.Acquired.After(lease.Acquired) { // the lease begins with its last part
			lease.Acquired = p.Acquired
		}
		lease.Validity = min(lease.Validity, p.Validity)
		lease.Waited = max(lease.Waited, p.Waited)
		lease.MaxHoldRemaining = max(lease.MaxHoldRemaining, p.MaxHoldRemaining)
	}
	return lease
}

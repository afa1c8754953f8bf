package redlock

import (
	"context"
	"errors"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
)

// Cancel ends the wait of a key for a resource and releases its lock, whichever attempt
// has it. It returns the token up to which that was granted, 0 for none. The error is a
// *QuorumError.
func (l *Mapped) Cancel(ctx context.Context, req *Request) (ended fencing.Token, err error) {
	keys, err := l.CurrentRing(ctx)
	if err != nil {
		return 0, err
	}
	l.queue.Cancel(req.Resource, keys.TicketID(req.Caller, req.IdempotencyKey, req.Resource))
	b, err := l.read(ctx, req.Resource, (*ballot).holderDecided)
	if err != nil {
		return 0, err
	}
	for _, owner := range l.owners(req, keys) {
		if b.locksOf([]string{owner}) == 0 {
			continue
		}
		id := keyring.LeaseID{Resource: req.Resource, Owner: owner, Token: b.largestGrant(owner)}
		released := l.releaseRound(ctx, id, 0)
		switch err := l.releaseResult(id, &released); {
		case err == nil:
			ended = id.Token
		case !errors.Is(err, lockcore.ErrNotHeld): // fewer votes than a lease needs
			return ended, err
		}
	}
	return ended, nil
}

// ForgetPlace forgets the place of a request that waited at this server and waits no more.
func (l *Locker) ForgetPlace(ctx context.Context, req *Request) error {
	id, err := l.ticketID(ctx, req)
	if err == nil {
		l.queue.Forget(req.Resource, id, req.Holder)
	}
	return err
}

// HeldByKey reports whether a quorum has a lock of the request's idempotency key. The
// error is a *QuorumError.
func (l *Mapped) HeldByKey(ctx context.Context, req *Request) (bool, error) {
	owners, err := l.ownersOf(ctx, req)
	if err != nil {
		return false, err
	}
	b, err := l.read(ctx, req.Resource, (*ballot).holderDecided)
	return b.locksOf(owners) >= l.quorum, err
}

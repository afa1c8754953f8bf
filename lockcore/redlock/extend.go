package redlock

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// Extend gives a lease a new TTL, limited by the rest of its maximum hold. If it succeeds, no acquisition
// with a larger token had completed when the extend was sent. Errors: ErrNotHeld (final), ErrMaxHold,
// *QuorumError (safe to repeat).
func (l *Mapped) Extend(ctx context.Context, id keyring.LeaseID, ttl time.Duration) (lockcore.Lease, error) {
	if left := l.maxHoldRemaining(id); left >= 0 {
		ttl = min(ttl, left.Truncate(time.Millisecond))
	}
	if ttl < lockcore.MinTTL {
		return lockcore.Lease{}, lockcore.ErrMaxHold
	}
	op := node.Op{Kind: node.OpExtend, Map: l.name, Resource: id.Resource, Owner: id.Owner, Attempt: id.Attempt, Token: id.Token, TTL: ttl}
	earlier := l.grants.Before(id.Resource)
	b := l.roundInEpoch(ctx, op)
	if b.count(node.Granted) < l.quorum {
		return lockcore.Lease{}, l.endUnextended(ctx, id, &b)
	}
	left := quorum.Validity(ttl, ttl, b.elapsed)
	if left <= 0 {
		return lockcore.Lease{}, l.quorumError(id.Resource, &b)
	}
	l.grants.Extended(earlier, id.Resource, id.Token)
	return l.leaseOf(id, b.firstMeta(), ttl, left), nil
}

// endUnextended distinguishes a lease that has ended from a missing quorum. A node that refused the lease
// refuses it for good (rule 5), so the lease has ended if a quorum refused. Its locks on the other nodes are
// released, so that they block no one.
func (l *Mapped) endUnextended(ctx context.Context, id keyring.LeaseID, b *ballot) error {
	if b.count(node.NotHeld) < l.quorum {
		return l.quorumError(id.Resource, b)
	}
	if id.Attempt == "" { // an attempt retracts its own votes
		l.releaseRound(ctx, id, 0)
	}
	return lockcore.ErrNotHeld
}

// roundInEpoch runs a round of an operation that carries the epoch. If a node is in a newer epoch, it
// repeats the round in that epoch (rule 8).
func (l *Locker) roundInEpoch(ctx context.Context, op node.Op) ballot {
	for try := 1; ; try++ {
		op.Epoch = l.members.Epoch()
		b := runRound(ctx, l.nodes, op, roundLimit(&l.cfg, len(l.nodes), op.TTL), (*ballot).grantDecided)
		stale := l.learnFrom(&b)
		if !stale || b.count(node.Granted) >= b.quorum || try == maxTries || ctx.Err() != nil {
			return b
		}
	}
}

// learnFrom adopts the epochs in the replies, and requests an observation of nodes that are not admitted. It
// reports whether a node refused the epoch as too old.
func (l *Locker) learnFrom(b *ballot) (stale bool) {
	for i := range b.replies[:b.n] {
		switch b.replies[i].Outcome {
		case node.StaleEpoch:
			l.members.Learn(b.replies[i].Epoch)
			stale = true
		case node.NotAdmitted:
			l.members.Refused(i)
		}
	}
	return stale
}

// Renew gives a lock that a quorum holds under the id a larger token. Errors: ErrNotHeld, *QuorumError.
func (l *Mapped) Renew(ctx context.Context, id keyring.LeaseID, token fencing.Token, ttl time.Duration) error {
	b := l.roundInEpoch(ctx, node.Op{Kind: node.OpConfirm, Map: l.name, Resource: id.Resource, Owner: id.Owner, Token: token, TTL: ttl})
	switch {
	case b.count(node.Granted) >= l.quorum:
		return nil
	case b.count(node.NotHeld) >= quorum.Readers(len(l.nodes)):
		return lockcore.ErrNotHeld
	}
	return l.quorumError(id.Resource, &b)
}

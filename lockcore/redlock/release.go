package redlock

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// release ends the owner's lease of a resource on every node. With keep the resource
// stays taken for so long (rule 27).
func (l *set) release(ctx context.Context, resource, owner string, token fencing.Token, keep time.Duration) error {
	op := node.Op{Kind: node.OpRelease, Resource: resource, Owner: owner, Token: token}
	if keep > 0 {
		op.Kind, op.TTL = node.OpReleaseAfter, keep
	}
	p := startRound(l.nodes, op, l.cfg.NodeTimeout, (*ballot).releaseDecided, func(b *ballot, i int, reply node.Reply) {
		l.afterRelease(op, b, i, reply)
	})
	if keep == 0 {
		l.queue.Released(resource)
	}
	b := p.wait(ctx)
	for i := range l.nodes {
		if b.answered.has(i) { // the others' answers are still to come
			l.afterRelease(op, &b, i, b.replies[i])
		}
	}
	released, absent := b.count(node.Granted), b.count(node.NotHeld)
	switch {
	case b.n-absent < b.quorum:
		return lockcore.ErrNotHeld // so few nodes can have held it that it was no lease
	case released+absent < b.quorum:
		return l.quorumError(resource, &b)
	}
	return nil
}

// afterRelease repeats the release in the background, where it met node i in a
// state in which it is not done.
func (l *set) afterRelease(op node.Op, b *ballot, i int, reply node.Reply) {
	switch reply.Outcome {
	case node.Failed: // also when it was not sent: the lock is older than the call
		l.clean.send(i, op, time.Now().Add(l.cfg.MaxTTL), recheckOnce)
	case node.NotAdmitted: // it may be about to be given the lock, as others had it a moment ago (rule 21)
		l.clean.sendLater(i, op, time.Now().Add(rejoinTime))
	case node.NotHeld: // an acquire that another server sent may be on its way to it yet
		if b.count(node.Granted) > 0 {
			l.clean.sendLater(i, op, time.Now().Add(rejoinTime))
		}
	}
}

// releaseDecided: a quorum gave it up, or too few can ever have held it.
func (b *ballot) releaseDecided() bool {
	return b.count(node.Granted) >= b.quorum || b.n-b.count(node.NotHeld) < b.quorum
}

// keepTaken is for how long a resource that is released now stays taken.
func (id leaseID) keepTaken() time.Duration {
	return min(max(0, id.minHold-time.Since(id.acquired)), id.minHold).Truncate(time.Millisecond)
}

package redlock

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Release releases a lease on every node. The resource stays taken for keep after that
// (rule 27). Errors: ErrNotHeld; *QuorumError, after which the release continues in the
// background: the lease ends with its TTL at the latest.
func (l *Mapped) Release(ctx context.Context, id keyring.LeaseID, keep time.Duration) error {
	b := l.releaseRound(ctx, id, keep)
	return l.releaseResult(id, &b)
}

// releaseRound is one round of releases of a lease.
func (l *Mapped) releaseRound(ctx context.Context, id keyring.LeaseID, keep time.Duration) ballot {
	return l.endRound(ctx, l.releaseOp(id, keep), (*ballot).releaseDecided)
}

// endRound repeats a release, a release-after or a break in each newer epoch that it
// meets (rule 8), within the time limit of one round.
func (l *Mapped) endRound(ctx context.Context, op node.Op, decided func(*ballot) bool) ballot {
	var freed nodeSet // had the lock until an earlier try
	end := time.Now().Add(l.cfg.NodeTimeout)
	for try := 1; ; try++ {
		op.Epoch = l.members.Epoch()
		if op.Kind == node.OpRelease {
			op.Ticket.Server = l.queue.AsksBehind(op.Resource)
		}
		r := startRound(l.nodes, op, time.Until(end), decided, l.afterRelease)
		ended := func() {}
		if op.Kind == node.OpRelease {
			ended = l.queue.Released(op.Resource)
		}
		b := r.wait(ctx)
		ended()
		freed |= b.nodesWith(func(i int) bool { return b.replies[i].Outcome == node.Granted })
		freed.each(func(i int) {
			if b.replies[i].Outcome == node.NotHeld {
				b.replies[i].Outcome = node.Granted
			}
		})
		if !l.learnFrom(&b) || b.usable() >= b.quorum || try == maxTries || !time.Now().Before(end) || ctx.Err() != nil {
			b.answered.each(func(i int) { l.afterRelease(&op, &b, i, b.replies[i]) })
			return b
		}
	}
}

// releaseResult is what a round of releases came to: nil, ErrNotHeld or a *QuorumError.
func (l *Mapped) releaseResult(id keyring.LeaseID, b *ballot) error {
	switch {
	case b.n-b.count(node.NotHeld) < b.quorum:
		return lockcore.ErrNotHeld // too few nodes can have held it for a lease
	case b.usable() < b.quorum:
		return l.quorumError(id.Resource, b)
	}
	return nil
}

func (l *Mapped) releaseOp(id keyring.LeaseID, keep time.Duration) node.Op {
	op := node.Op{Kind: node.OpRelease, Map: l.name, Resource: id.Resource, Owner: id.Owner, Token: id.Token}
	if keep > 0 {
		op.Kind, op.TTL = node.OpReleaseAfter, keep
	}
	return op
}

// afterRelease repeats the release in the background where node i's reply does not
// mean that it is done.
func (l *Locker) afterRelease(op *node.Op, b *ballot, i int, reply node.Reply) {
	again := *op
	again.Ticket = node.Ticket{} // nobody asks behind it
	switch reply.Outcome {
	case node.Failed, node.StaleEpoch: // also when it was not sent: the lock is older than the call
		l.cleaner.send(i, again, time.Now().Add(l.cfg.MaxTTL), recheckOnce)
	case node.NotAdmitted: // a rejoin may give it the lock, which its readers had a moment ago (rule 21)
		l.cleaner.sendLater(i, again, time.Now().Add(rejoinTime))
	case node.NotHeld: // another server's acquire may still reach it
		if b.count(node.Granted) > 0 {
			l.cleaner.sendLater(i, again, time.Now().Add(rejoinTime))
		}
	}
}

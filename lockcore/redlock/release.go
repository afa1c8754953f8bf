package redlock

import (
	"context"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// release releases a lease of one resource on every node. The resource stays taken
// for keep after that (rule 27).
func (s *set) release(ctx context.Context, id leaseID, keep time.Duration) error {
	b := s.releaseRound(ctx, id, keep)
	return s.releaseResult(id, &b)
}

// releaseRound is one round of releases of a lease.
func (s *set) releaseRound(ctx context.Context, id leaseID, keep time.Duration) ballot {
	return s.endRound(ctx, s.releaseOp(id, keep), (*ballot).releaseDecided)
}

// endRound repeats a release, a release-after or a break in each newer epoch that it
// meets (rule 8), within the time limit of one round.
func (s *set) endRound(ctx context.Context, op node.Op, decided func(*ballot) bool) ballot {
	var freed nodeSet // had the lock until an earlier try
	end := time.Now().Add(s.cfg.NodeTimeout)
	for try := 1; ; try++ {
		op.Epoch = s.members.Epoch()
		if op.Kind == node.OpRelease {
			op.Ticket.Server = s.queue.AsksBehind(op.Resource)
		}
		r := startRound(s.nodes, op, time.Until(end), decided, s.afterRelease)
		if op.Kind == node.OpRelease {
			s.queue.Released(op.Resource)
		}
		b := r.wait(ctx)
		freed |= b.nodesWith(func(i int) bool { return b.replies[i].Outcome == node.Granted })
		freed.each(func(i int) {
			if b.replies[i].Outcome == node.NotHeld {
				b.replies[i].Outcome = node.Granted
			}
		})
		if !s.learnFrom(&b) || b.usable() >= b.quorum || try == maxTries || !time.Now().Before(end) || ctx.Err() != nil {
			b.answered.each(func(i int) { s.afterRelease(&op, &b, i, b.replies[i]) })
			return b
		}
	}
}

// releaseResult is what a round of releases came to: nil, ErrNotHeld or a *QuorumError.
func (s *set) releaseResult(id leaseID, b *ballot) error {
	switch {
	case b.n-b.count(node.NotHeld) < b.quorum:
		return lockcore.ErrNotHeld // too few nodes can have held it for a lease
	case b.usable() < b.quorum:
		return s.quorumError(id.resource, b)
	}
	return nil
}

func (s *set) releaseOp(id leaseID, keep time.Duration) node.Op {
	op := node.Op{Kind: node.OpRelease, Map: s.mapName, Resource: id.resource, Owner: id.owner, Token: id.token}
	if keep > 0 {
		op.Kind, op.TTL = node.OpReleaseAfter, keep
	}
	return op
}

// afterRelease repeats the release in the background where node i's reply does not
// mean that it is done.
func (s *set) afterRelease(op *node.Op, b *ballot, i int, reply node.Reply) {
	again := *op
	again.Ticket = node.Ticket{} // nobody asks behind it
	switch reply.Outcome {
	case node.Failed, node.StaleEpoch: // also when it was not sent: the lock is older than the call
		s.cleaner.send(i, again, time.Now().Add(s.cfg.MaxTTL), recheckOnce)
	case node.NotAdmitted: // a rejoin may give it the lock, which its readers had a moment ago (rule 21)
		s.cleaner.sendLater(i, again, time.Now().Add(rejoinTime))
	case node.NotHeld: // another server's acquire may still reach it
		if b.count(node.Granted) > 0 {
			s.cleaner.sendLater(i, again, time.Now().Add(rejoinTime))
		}
	}
}

// keepTaken is for how long a resource that is released now stays taken.
func (id leaseID) keepTaken() time.Duration {
	return min(max(0, id.minHold-time.Since(id.acquired)), id.minHold).Truncate(time.Millisecond)
}

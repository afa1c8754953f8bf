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

// releaseRound repeats the release in each newer epoch that it meets (rule 8), within
// the time limit of one round.
func (s *set) releaseRound(ctx context.Context, id leaseID, keep time.Duration) ballot {
	var freed nodeSet // had the lock until an earlier try
	end := time.Now().Add(s.cfg.NodeTimeout)
	for try := 1; ; try++ {
		op := s.releaseOp(id)
		if keep > 0 {
			op.Kind, op.TTL = node.OpReleaseAfter, keep
		} else {
			op.Ticket.Server = s.queue.AsksBehind(id.resource)
		}
		r := startRound(s.nodes, op, time.Until(end), (*ballot).releaseDecided, s.afterRelease)
		if keep == 0 {
			s.queue.Released(id.resource)
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
	released, absent := b.count(node.Granted), b.count(node.NotHeld)
	switch {
	case b.n-absent < b.quorum:
		return lockcore.ErrNotHeld // too few nodes can have held it for a lease
	case released+absent < b.quorum:
		return s.quorumError(id.resource, b)
	}
	return nil
}

func (s *set) releaseOp(id leaseID) node.Op {
	return node.Op{Kind: node.OpRelease, Epoch: s.members.Epoch(), Map: s.mapName, Resource: id.resource, Owner: id.owner, Token: id.token}
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

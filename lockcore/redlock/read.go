package redlock

import (
	"context"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// read asks the nodes for a resource. The error is a *QuorumError.
func (s *set) read(ctx context.Context, resource string, decided func(*ballot) bool) (ballot, error) {
	b := runRound(ctx, s.nodes, node.Op{Kind: node.OpRead, Map: s.mapName, Resource: resource}, s.cfg.NodeTimeout, decided)
	s.learnFrom(&b)
	if b.usable() < b.quorum {
		err := s.quorumError(resource, &b)
		return b, err
	}
	return b, nil
}

// lease is Locker.Lease for one resource.
func (s *set) lease(ctx context.Context, id leaseID) (lockcore.Lease, error) {
	// A lock of this owner with a grant above the token is of a later lease (rule 3):
	// it does not count, as in an extend.
	locks := func(b *ballot) int {
		return b.countIf(func(r *node.Reply) bool {
			return r.Outcome == node.Granted && r.Owner == id.owner && r.Grant <= id.token
		})
	}
	b, err := s.read(ctx, id.resource, func(b *ballot) bool { return b.readDecided(locks(b)) })
	if err != nil {
		return lockcore.Lease{}, err
	}
	h := b.holdingOf(id.owner)
	left := quorum.Validity(h.remaining, h.ttl, b.elapsed)
	switch n := locks(&b); {
	case n+b.n-b.usable() < b.quorum:
		return lockcore.Lease{}, lockcore.ErrNotHeld
	case n < b.quorum:
		return lockcore.Lease{}, s.quorumError(id.resource, &b)
	case left <= 0:
		return lockcore.Lease{}, lockcore.ErrNotHeld
	}
	return s.leaseOf(id, h.meta, h.ttl, left), nil
}

// inspect is Locker.Inspect.
func (s *set) inspect(ctx context.Context, resource string) (lockcore.LockState, error) {
	b, err := s.read(ctx, resource, (*ballot).holderDecided)
	if err != nil {
		return lockcore.LockState{}, err
	}
	state, _ := b.lockState(resource)
	return state, nil
}

// EndOf tells how a lease ended that was not seen to be released. A release takes
// the counter past the token. A lock that expires leaves the counter there, and the
// next grant is the token's successor. Of a lease of several resources it looks at
// the first. Errors: ErrNotHeld (the lease is not the caller's), *QuorumError, ctx.Err().
func (l *Locker) EndOf(ctx context.Context, lease string) (lockcore.End, error) {
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return lockcore.EndUnknown, err
	}
	return at(ctx, l, parts[0].resource, func(s *set) (lockcore.End, error) { return s.endOf(ctx, parts[0]) })
}

func (s *set) endOf(ctx context.Context, id leaseID) (lockcore.End, error) {
	b, err := s.read(ctx, id.resource, (*ballot).holderDecided)
	if err != nil {
		return lockcore.EndUnknown, err
	}
	owner, locks := b.leader()
	switch {
	case locks > 0 && owner == id.owner:
		return lockcore.EndNone, nil
	case locks >= s.quorum && b.holdingOf(owner).token == id.token+1:
		return lockcore.EndExpired, nil // the next lease followed at once
	case locks > 0:
		return lockcore.EndUnknown, nil
	}
	return s.endByCounters(ctx, id), nil
}

// endByCounters decides about a resource that is free. A release reaches a quorum.
// After one, fewer than a quorum of counters are still at the lease's token or below.
func (s *set) endByCounters(ctx context.Context, id leaseID) lockcore.End {
	epoch := s.members.Epoch()
	unreleased := make([]bool, len(s.nodes))
	s.members.ForAll(ctx, func(ctx context.Context, i int) {
		counters, err := s.nodes[i].Counters(ctx, epoch, []string{id.resource})
		unreleased[i] = err == nil && len(counters) == 1 && counters[0] <= id.token
	})
	n := 0
	for _, yes := range unreleased {
		if yes {
			n++
		}
	}
	if n >= s.quorum {
		return lockcore.EndExpired
	}
	return lockcore.EndUnknown
}

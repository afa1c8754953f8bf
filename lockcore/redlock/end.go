package redlock

import (
	"context"

	"github.com/fencelock/fencelock/lockcore"
)

// EndOf tells how a lease ended that nobody was seen to release. A release
// takes the counter past the token; a lock that only expires leaves it there,
// and the next grant is the token's successor. Of a lease of several resources
// the first is looked at. Errors: ErrNotHeld (it is not the
// owner's of ctx), *QuorumError, ctx.Err().
func (l *Locker) EndOf(ctx context.Context, lease string) (lockcore.End, error) {
	parts, err := l.openLease(ctx, lease)
	if err != nil {
		return lockcore.EndUnknown, err
	}
	return l.of(parts[0].resource).endOf(ctx, parts[0])
}

func (l *set) endOf(ctx context.Context, id leaseID) (lockcore.End, error) {
	b, err := l.look(ctx, id.resource, (*ballot).holderDecided)
	if err != nil {
		return lockcore.EndUnknown, err
	}
	leader, votes := b.leader()
	switch {
	case votes > 0 && leader == id.value:
		return lockcore.EndNone, nil
	case votes >= l.quorum && b.stateOf(leader).token == id.token+1:
		return lockcore.EndExpired, nil // taken over at once
	case votes > 0:
		return lockcore.EndUnknown, nil
	}
	return l.endByCounters(ctx, id), nil
}

// endByCounters looks at a resource that is free. A release has reached a
// quorum, so of a lease that was released fewer than a quorum of counters
// stand at its token or below.
func (l *set) endByCounters(ctx context.Context, id leaseID) lockcore.End {
	epoch := l.members.Epoch()
	everybody := make([]int, len(l.nodes))
	for i := range everybody {
		everybody[i] = i
	}
	at := make([]bool, len(l.nodes))
	l.members.ForEach(ctx, everybody, func(ctx context.Context, i int) {
		counters, err := l.nodes[i].Counters(ctx, epoch, []string{id.resource})
		at[i] = err == nil && len(counters) == 1 && counters[0] <= id.token
	})
	left := 0
	for _, yes := range at {
		if yes {
			left++
		}
	}
	if left >= l.quorum {
		return lockcore.EndExpired
	}
	return lockcore.EndUnknown
}

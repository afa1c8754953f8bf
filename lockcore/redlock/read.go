package redlock

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// read reads a resource from the nodes. The error is a *QuorumError.
func (l *Mapped) read(ctx context.Context, resource string, decided func(*ballot) bool) (ballot, error) {
	b := runRound(ctx, l.nodes, node.Op{Kind: node.OpRead, Map: l.name, Resource: resource}, l.cfg.NodeTimeout, decided)
	l.learnFrom(&b)
	l.checkQueues(resource, &b)
	if b.usable() < b.quorum {
		err := l.quorumError(resource, &b)
		return b, err
	}
	return b, nil
}

// Lease returns the present state of a lease. Errors: ErrNotHeld, *QuorumError.
func (l *Mapped) Lease(ctx context.Context, id keyring.LeaseID) (lockcore.Lease, error) {
	// A lock of this owner with a grant above the token belongs to a later lease (rule 3): it does not count,
	// as in an extend.
	locks := func(b *ballot) int {
		return b.countIf(func(r *node.Reply) bool {
			return r.Outcome == node.Granted && r.Owner == id.Owner && r.Grant <= id.Token
		})
	}
	b, err := l.read(ctx, id.Resource, func(b *ballot) bool { return b.readDecided(locks(b)) })
	if err != nil {
		return lockcore.Lease{}, err
	}
	h := b.holdingOf(id.Owner)
	left := quorum.Validity(h.remaining, h.ttl, b.elapsed)
	switch n := locks(&b); {
	case n+b.n-b.usable() < b.quorum:
		return lockcore.Lease{}, lockcore.ErrNotHeld
	case n < b.quorum:
		return lockcore.Lease{}, l.quorumError(id.Resource, &b)
	case left <= 0:
		return lockcore.Lease{}, lockcore.ErrNotHeld
	}
	return l.leaseOf(id, h.meta, h.ttl, left), nil
}

// Inspect returns the public state of a resource. The resource is held if a quorum holds one lease, or may
// hold it as far as the responding nodes show. The error is a *QuorumError.
func (l *Mapped) Inspect(ctx context.Context, resource string) (lockcore.LockState, error) {
	b, err := l.read(ctx, resource, (*ballot).holderDecided)
	if err != nil {
		return lockcore.LockState{}, err
	}
	state, _ := b.lockState(resource)
	return state, nil
}

// EndOf returns how a lease ended, for a server that did not see a release of it. A release raises the
// counter above the token. A lock that expires leaves the counter unchanged, and the next grant is the
// token's successor. Errors: *QuorumError, ctx.Err().
func (l *Mapped) EndOf(ctx context.Context, id keyring.LeaseID) (lockcore.End, error) {
	b, err := l.read(ctx, id.Resource, (*ballot).holderDecided)
	if err != nil {
		return lockcore.EndUnknown, err
	}
	owner, locks := b.leader()
	switch {
	case locks >= l.quorum && owner == id.Owner:
		return lockcore.EndNone, nil
	case locks >= l.quorum && b.holdingOf(owner).token == id.Token+1:
		return lockcore.EndExpired, nil // the next lease followed directly
	case locks+b.n-b.usable() >= l.quorum: // it may be held
		return lockcore.EndUnknown, nil
	}
	return l.endByCounters(ctx, id), nil
}

// endByCounters decides for a free resource. A release reaches a quorum, so after a release fewer than a
// quorum of counters are at the lease's token or below.
func (l *Locker) endByCounters(ctx context.Context, id keyring.LeaseID) lockcore.End {
	epoch := l.members.Epoch()
	unreleased := make([]bool, len(l.nodes))
	l.members.ForAll(ctx, func(ctx context.Context, i int) {
		counters, err := l.nodes[i].Counters(ctx, epoch, []string{id.Resource})
		unreleased[i] = err == nil && len(counters) == 1 && counters[0] <= id.Token
	})
	n := 0
	for _, yes := range unreleased {
		if yes {
			n++
		}
	}
	if n >= l.quorum {
		return lockcore.EndExpired
	}
	return lockcore.EndUnknown
}

// InspectAll reads the resources concurrently. It returns those that are held and whose lock is on none of
// the earlier readers. earlier contains indexes of nodes. Each of these nodes must reply, even after the
// holder is known. The error is a *QuorumError.
func (l *Mapped) InspectAll(ctx context.Context, resources []string, earlier []int) ([]lockcore.LockState, error) {
	var readers nodeSet
	for _, i := range earlier {
		readers |= only(i)
	}
	decided := func(b *ballot) bool { return b.holderDecided() && b.answered&readers == readers }
	states, failures := make([]lockcore.LockState, len(resources)), make([]error, len(resources))
	var wg sync.WaitGroup
	for i, resource := range resources {
		wg.Go(func() {
			b, err := l.read(ctx, resource, decided)
			if err == nil && b.nodesWith(b.done)&readers != readers {
				err = l.quorumError(resource, &b)
			}
			state, owner := b.lockState(resource)
			onEarlier := func(i int) bool { return b.replies[i].Owner == owner }
			if failures[i] = err; err == nil && !slices.ContainsFunc(earlier, onEarlier) {
				states[i] = state
			}
		})
	}
	wg.Wait()
	return slices.DeleteFunc(states, func(state lockcore.LockState) bool { return !state.Held }), cmp.Or(failures...)
}

// checkQueues checks the queues of a resource, as nodes list them.
func (l *Locker) checkQueues(resource string, b *ballot) {
	for i := range b.replies[:b.n] {
		listed := b.replies[i].Queue
		if !slices.IsSortedFunc(listed, func(a, b node.Ticket) int { return int(a.Arrival - b.Arrival) }) {
			l.cfg.Violated(lockcore.QueueOrder, "resource", resource, "node", l.nodes[i].Name())
		}
	}
}

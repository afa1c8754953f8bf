package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// lease is Locker.Lease for one resource.
func (l *set) lease(ctx context.Context, id leaseID) (lockcore.Lease, error) {
	// A lock of this lease with a grant above the token is not this grant of
	// it (rule 3): it does not count, here as in an extend.
	owned := func(b *ballot) (n int) {
		for i := range b.replies[:b.n] {
			r := &b.replies[i]
			if b.answered.has(i) && r.Outcome == node.Granted && r.Owner == id.value && r.Grant <= id.token {
				n++
			}
		}
		return n
	}
	b := runRound(ctx, l.nodes, node.Op{Kind: node.OpRead, Resource: id.resource}, l.cfg.NodeTimeout, func(b *ballot) bool {
		n := owned(b)
		return n >= b.quorum || n+b.open < b.quorum && b.heard() >= b.quorum
	})
	l.learnFrom(b.replies[:b.n])
	held := owned(&b)
	if held+b.n-b.heard() < b.quorum {
		return lockcore.Lease{}, lockcore.ErrNotHeld
	}
	state := b.stateOf(id.value)
	left := quorum.Validity(state.remaining, state.ttl, b.elapsed)
	switch {
	case held < b.quorum:
		return lockcore.Lease{}, l.quorumError(id.resource, &b)
	case left <= 0:
		return lockcore.Lease{}, lockcore.ErrNotHeld
	}
	return l.leaseOf(id, state.meta, state.ttl, left), nil
}

// inspect is Locker.Inspect.
func (l *set) inspect(ctx context.Context, resource string) (lockcore.LockState, error) {
	b, err := l.look(ctx, resource, (*ballot).holderDecided)
	if err != nil {
		return lockcore.LockState{}, err
	}
	state, _ := b.lockState(resource)
	return state, nil
}

// lockState describes the resource's holder, if there is or may be one, and
// names its owner.
func (b *ballot) lockState(resource string) (lockcore.LockState, string) {
	state := lockcore.LockState{Resource: resource, Waiting: b.waiting(), Waiters: b.waiters()}
	owner, votes := b.leader()
	if votes == 0 || votes+b.n-b.heard() < b.quorum {
		return state, ""
	}
	s := b.stateOf(owner)
	state.Held, state.Holder, state.Token = true, s.holder, s.token
	state.Remaining, state.TTL, state.Metadata = s.remaining, s.ttl, s.metadata
	if !s.acquired.IsZero() {
		state.HeldFor = max(0, time.Since(s.acquired))
	}
	return state, owner
}

func (b *ballot) waiters() []lockcore.Waiter {
	line := b.line()
	waiters := make([]lockcore.Waiter, min(len(line), node.MaxShown))
	for i := range waiters {
		waiters[i] = lockcore.Waiter{Holder: line[i].Holder, WaitingFor: max(0, time.Since(time.UnixMicro(line[i].Arrival)))}
	}
	return waiters
}

// holderDecided: a quorum holds one lease, or no lease can have one any more.
func (b *ballot) holderDecided() bool {
	_, votes := b.leader()
	return votes >= b.quorum || votes+b.open < b.quorum && b.heard() >= b.quorum
}

func (l *set) look(ctx context.Context, resource string, enough func(*ballot) bool) (ballot, error) {
	b := runRound(ctx, l.nodes, node.Op{Kind: node.OpRead, Resource: resource}, l.cfg.NodeTimeout, enough)
	l.learnFrom(b.replies[:b.n])
	if b.heard() < b.quorum {
		err := l.quorumError(resource, &b)
		return b, err
	}
	return b, nil
}

// breakLock is Locker.Break.
func (l *set) breakLock(ctx context.Context, resource string) error {
	b, err := l.look(ctx, resource, func(*ballot) bool { return false })
	if err != nil {
		return err
	}
	result, failed := lockcore.ErrNotHeld, false
	done := make(map[string]bool, quorum.MaxNodes)
	for i := range b.replies[:b.n] {
		owner := b.replies[i].Owner
		if owner == "" || done[owner] {
			continue
		}
		done[owner] = true
		err := l.release(ctx, resource, owner, b.largestGrant(owner), 0)
		switch {
		case err == nil && !failed:
			result = nil
		case err != nil && !errors.Is(err, lockcore.ErrNotHeld):
			result, failed = err, true // this one may be the lease
		}
	}
	return result
}

// largestGrant is above every vote of the owner that a node shows.
func (b *ballot) largestGrant(owner string) (grant fencing.Token) {
	for i := range b.replies[:b.n] {
		if r := &b.replies[i]; b.answered.has(i) && r.Owner == owner {
			grant = max(grant, r.Grant)
		}
	}
	return grant
}

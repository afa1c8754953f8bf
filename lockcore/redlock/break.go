package redlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// breakTries bounds the rounds of one break.
const breakTries = 3

// breakLock is Locker.Break. It releases the lock of every owner that a node shows,
// and then reads again: a node that was not heard before, or whose vote is another's,
// may still hold the lease (rule 28).
func (s *set) breakLock(ctx context.Context, resource string) error {
	b, err := s.readAll(ctx, resource)
	if err != nil {
		return err
	}
	if len(b.owners()) == 0 {
		return lockcore.ErrNotHeld
	}
	token, err := s.largestToken(ctx, resource, &b)
	if err != nil {
		return err
	}
	result := lockcore.ErrNotHeld
	var passed nodeSet // have taken their counters past the token
	for range breakTries {
		for _, owner := range b.owners() {
			id := leaseID{resource: resource, owner: owner, token: token}
			released := s.releaseRound(ctx, id, 0)
			passed |= released.nodesWith(released.done)
			if err := s.releaseResult(id, &released); !errors.Is(err, lockcore.ErrNotHeld) {
				result = nil // it may have been a lease
			}
		}
		if b, err = s.readAll(ctx, resource); err != nil {
			return err
		}
		cleared := b.nodesWith(func(i int) bool { return passed.has(i) && b.clearOf(i, token) })
		if cleared.len() >= s.quorum {
			return result
		}
	}
	return s.quorumError(resource, &b)
}

// readAll reads every node that answers in time. The error is a *QuorumError.
func (s *set) readAll(ctx context.Context, resource string) (ballot, error) {
	return s.read(ctx, resource, func(*ballot) bool { return false })
}

// largestToken is at least the token of every lease of the resource that was granted
// before: a quorum of nodes counts from it, and these counters are of as many nodes.
// The error is a *QuorumError.
func (s *set) largestToken(ctx context.Context, resource string, b *ballot) (largest fencing.Token, err error) {
	epoch, now := s.members.Epoch(), time.Now()
	reading, cancel := context.WithTimeout(ctx, s.cfg.NodeTimeout)
	defer cancel()
	var mu sync.Mutex
	read := 0
	s.members.ForAll(reading, func(ctx context.Context, i int) {
		counters, err := s.nodes[i].Counters(ctx, epoch, []string{resource})
		mu.Lock()
		defer mu.Unlock()
		if err == nil && len(counters) == 1 && (counters[0] == 0 || node.Plausible(counters[0], now)) {
			read++
			largest = max(largest, counters[0])
		}
	})
	if read < s.quorum {
		return 0, s.quorumError(resource, b)
	}
	for _, owner := range b.owners() {
		largest = max(largest, b.largestGrant(owner))
	}
	return largest, nil
}

// owners are those of the locks that the nodes show.
func (b *ballot) owners() (owners []string) {
	seen := map[string]bool{"": true}
	for i := range b.replies[:b.n] {
		if owner := b.replies[i].Owner; !seen[owner] {
			seen[owner] = true
			owners = append(owners, owner)
		}
	}
	return owners
}

// clearOf reports whether node i shows no lock from before a token.
func (b *ballot) clearOf(i int, token fencing.Token) bool {
	return b.done(i) && (b.replies[i].Outcome == node.NotHeld || b.replies[i].Grant > token)
}

package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Break ends the lease of a resource with that token, or whatever lease it has for token 0,
// and votes without a quorum. Once a quorum has done the break no lease up to the token is
// extended any more: those nodes have no lock of it, and their counters are past its token.
// A later lease is left alone, whatever has changed since the look (rule 28). Errors:
// ErrNotHeld, *OtherLeaseError, *QuorumError.
func (l *Mapped) Break(ctx context.Context, resource string, token fencing.Token) error {
	b, err := l.read(ctx, resource, func(*ballot) bool { return false }) // every node that answers in time
	if err != nil {
		return err
	}
	if token > 0 {
		err = b.mayBreak(resource, token)
	} else {
		token, err = l.largestToken(ctx, resource, &b)
	}
	if err != nil {
		return err
	}
	op := node.Op{Kind: node.OpBreak, Map: l.name, Resource: resource, Token: token}
	broken := l.endRound(ctx, op, (*ballot).breakDecided)
	if broken.usable() < l.quorum {
		return l.quorumError(resource, &broken)
	}
	if broken.n-broken.count(node.NotHeld) < l.quorum {
		return lockcore.ErrNotHeld // what was there were votes, and no lease
	}
	return nil
}

// breakDecided ends a break: a quorum did it, or too few nodes can.
func (b *ballot) breakDecided() bool {
	return b.usable() >= b.quorum || b.usable()+b.open() < b.quorum
}

// mayBreak refuses a token that is of no lease which holds the resource, or may hold it as
// far as the nodes that answered show. A break ends every lease up to its token, so it is
// refused beside one with a smaller token, too. The error is ErrNotHeld or an
// *OtherLeaseError.
func (b *ballot) mayBreak(resource string, token fencing.Token) error {
	found, other := false, ""
	for _, owner := range b.owners() {
		locks := b.countIf(func(r *node.Reply) bool { return r.Owner == owner })
		if locks+b.n-b.usable() < b.quorum {
			continue // votes, and no lease
		}
		switch held := b.holdingOf(owner).token; {
		case held == token:
			found = true
		case held < token, other == "":
			other = owner
		}
	}
	switch {
	case other != "" && (!found || b.holdingOf(other).token < token):
		h := b.holdingOf(other)
		return &lockcore.OtherLeaseError{Named: token, HeldError: lockcore.HeldError{
			Resource: resource, Holder: h.holder, Token: h.token, Remaining: h.remaining, Waiters: b.waiting(),
		}}
	case !found:
		return lockcore.ErrNotHeld
	}
	return nil
}

// largestToken is at least the token of every lease of the resource that was granted
// before: a quorum of nodes counts from it, and these counters are of as many nodes.
// Errors: ErrNotHeld if no node shows a lock, *QuorumError.
func (l *Mapped) largestToken(ctx context.Context, resource string, b *ballot) (largest fencing.Token, err error) {
	if len(b.owners()) == 0 {
		return 0, lockcore.ErrNotHeld
	}
	epoch, now := l.members.Epoch(), time.Now()
	reading, cancel := context.WithTimeout(ctx, l.cfg.NodeTimeout)
	defer cancel()
	var mu sync.Mutex
	read := 0
	l.members.ForAll(reading, func(ctx context.Context, i int) {
		counters, err := l.nodes[i].Counters(ctx, epoch, []string{resource})
		mu.Lock()
		defer mu.Unlock()
		if err == nil && len(counters) == 1 && (counters[0] == 0 || node.Plausible(counters[0], now)) {
			read++
			largest = max(largest, counters[0])
		}
	})
	if read < l.quorum {
		return 0, l.quorumError(resource, b)
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

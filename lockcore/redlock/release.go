package redlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/keyring"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/cleanup"
)

// Release releases a lease on every node. The resource stays taken for keep after that (rule 27). Errors:
// ErrNotHeld, and *QuorumError. After a *QuorumError the release continues in the background, and the
// lease ends with its TTL at the latest.
func (l *Mapped) Release(ctx context.Context, id keyring.LeaseID, keep time.Duration) error {
	b := l.releaseRound(ctx, id, keep)
	return l.releaseResult(id, &b)
}

// releaseRound is one round of releases of a lease.
func (l *Mapped) releaseRound(ctx context.Context, id keyring.LeaseID, keep time.Duration) ballot {
	return l.endRound(ctx, l.releaseOp(id, keep), (*ballot).releaseDecided, keep == 0)
}

// endRound repeats a release, a release-after or a break in each newer epoch that it meets (rule 8), within
// the time limit of one round. If handsOver is true, this server's first waiter for the resource acquires it
// directly after the release.
func (l *Mapped) endRound(ctx context.Context, op node.Op, decided func(*ballot) bool, handsOver bool) ballot {
	var freed nodeSet // nodes that had the lock until an earlier try deleted it
	end := time.Now().Add(l.cfg.NodeTimeout)
	for try := 1; ; try++ {
		op.Epoch = l.members.Epoch()
		if handsOver {
			op.Ticket.Server = l.queue.AsksBehind(op.Resource)
		}
		r := startRound(l.nodes, op, time.Until(end), decided, l.afterRelease)
		ended := func() {}
		if handsOver {
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

// releaseResult returns the result of a round of releases: nil, ErrNotHeld or a *QuorumError.
func (l *Mapped) releaseResult(id keyring.LeaseID, b *ballot) error {
	switch {
	case b.n-b.count(node.NotHeld) < b.quorum:
		return lockcore.ErrNotHeld // too few nodes can have had the lock for a lease
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

// afterRelease repeats the release in the background if node i's reply does not mean that it was executed.
func (l *Locker) afterRelease(op *node.Op, b *ballot, i int, reply node.Reply) {
	again := *op
	again.Ticket = node.Ticket{} // no waiter follows this repetition
	switch reply.Outcome {
	case node.Failed, node.StaleEpoch: // even if the operation was not sent, because the node may have had the lock before the call
		l.cleaner.Send(i, again, time.Now().Add(l.cfg.MaxTTL), cleanup.Once)
	case node.NotAdmitted: // a rejoin may give it the lock, which its readers had a moment ago (rule 21)
		l.cleaner.SendLater(i, again)
	case node.NotHeld: // another server's acquire may still reach it
		if b.count(node.Granted) > 0 {
			l.cleaner.SendLater(i, again)
		}
	}
}

// Cancel ends the wait of a key for a resource and releases its lock, of any attempt. It returns the largest
// token that the lock can have had, or 0 if there was no lock. The error is a *QuorumError.
func (l *Mapped) Cancel(ctx context.Context, req *lockcore.Request) (ended fencing.Token, err error) {
	keys, err := l.CurrentRing(ctx)
	if err != nil {
		return 0, err
	}
	l.queue.Cancel(req.Resource, keys.TicketID(req.Caller.Name(), req.IdempotencyKey, req.Resource))
	b, err := l.read(ctx, req.Resource, (*ballot).holderDecided)
	if err != nil {
		return 0, err
	}
	for _, owner := range l.owners(req, keys) {
		if b.locksOf([]string{owner}) == 0 {
			continue
		}
		id := keyring.LeaseID{Resource: req.Resource, Owner: owner, Token: b.largestGrant(owner)}
		if err := l.countPast(ctx, id.Resource, id.Token); err != nil {
			return ended, err
		}
		released := l.releaseRound(ctx, id, 0)
		switch err := l.releaseResult(id, &released); {
		case err == nil:
			ended = id.Token
		case !errors.Is(err, lockcore.ErrNotHeld): // fewer votes than a lease needs
			return ended, err
		}
	}
	return ended, nil
}

// ForgetPlace forgets the place of a request that no longer waits at this server.
func (l *Locker) ForgetPlace(ctx context.Context, req *lockcore.Request) error {
	id, err := l.ticketID(ctx, req)
	if err == nil {
		l.queue.Forget(req.Resource, id, req.Holder)
	}
	return err
}

// HeldByKey reports whether a quorum holds a lock for the request's idempotency key. The error is a
// *QuorumError.
func (l *Mapped) HeldByKey(ctx context.Context, req *lockcore.Request) (bool, error) {
	owners, err := l.ownersOf(ctx, req)
	if err != nil {
		return false, err
	}
	b, err := l.read(ctx, req.Resource, (*ballot).holderDecided)
	return b.locksOf(owners) >= l.quorum, err
}

// Break ends the lease of the resource with that token, or any lease if token is 0, and votes without a
// quorum. After a quorum has executed the break, no lease up to the token can be extended: those nodes have no
// lock of it, and their counters are above its token. A later lease stays, whatever has changed since the
// read, because a quorum raises its counters above the token before any lock is deleted (rule 28). Errors:
// ErrNotHeld, *OtherLeaseError, *QuorumError.
func (l *Mapped) Break(ctx context.Context, resource string, token fencing.Token) error {
	b, err := l.read(ctx, resource, func(*ballot) bool { return false }) // waits for every node that replies in time
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
	if err := l.countPast(ctx, resource, token); err != nil {
		return err
	}
	op := node.Op{Kind: node.OpBreak, Map: l.name, Resource: resource, Token: token}
	broken := l.endRound(ctx, op, (*ballot).breakDecided, false)
	if broken.usable() < l.quorum {
		return l.quorumError(resource, &broken)
	}
	if broken.n-broken.count(node.NotHeld) < l.quorum {
		return lockcore.ErrNotHeld // there were only votes, and no lease
	}
	return nil
}

// countPast raises the counters of a quorum above the token, even if no lease has such a large token. After
// that every later lease has a larger token, so an operation that ends all leases up to the token cannot end a
// later one, however late it arrives (rule 28). The error is a *QuorumError.
func (l *Mapped) countPast(ctx context.Context, resource string, token fencing.Token) error {
	count := node.Op{Kind: node.OpRelease, Map: l.name, Resource: resource, Owner: l.random.Word(), Token: token} // names a lock that does not exist
	if b := l.endRound(ctx, count, (*ballot).breakDecided, false); b.usable() < l.quorum {
		return l.quorumError(resource, &b)
	}
	return nil
}

// breakDecided ends a break: a quorum executed it, or too few nodes can.
func (b *ballot) breakDecided() bool {
	return b.usable() >= b.quorum || b.usable()+b.open() < b.quorum
}

// mayBreak refuses a token that does not belong to a lease which holds the resource, or may hold it as far as
// the responding nodes show. A break ends every lease up to its token, so it is also refused if a lease with a
// smaller token holds the resource. The error is ErrNotHeld or an *OtherLeaseError.
func (b *ballot) mayBreak(resource string, token fencing.Token) error {
	found, other := false, ""
	for _, owner := range b.owners() {
		locks := b.countIf(func(r *node.Reply) bool { return r.Owner == owner })
		if locks+b.n-b.usable() < b.quorum {
			continue // only votes, and no lease
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

// largestToken returns a value that is at least the token of every lease of the resource granted so far. Each
// was counted on a quorum of nodes, and it reads the counters of as many. Errors: ErrNotHeld if no node shows
// a lock, *QuorumError.
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

// owners returns the owners of the locks that the nodes show.
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

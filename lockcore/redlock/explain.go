package redlock

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// loss is the reason why an attempt was not granted.
type loss struct {
	kind lossKind
	err  error // for the caller if there is no further attempt
}

type lossKind int

const (
	lossFinal    lossKind = iota // every later try would be refused, too
	lossSplit                    // votes split, or the epoch changed: the next attempt may well succeed at once
	lossQueued                   // others are first in the queue
	lossHeld                     // another lease holds the resource, as far as is known
	lossNoQuorum                 // too few nodes voted
)

// explainLoss returns why an attempt was lost.
func (l *Locker) explainLoss(ctx context.Context, req *lockcore.Request, res *attempt) *loss {
	b := &res.ballot
	b.cause = ctx.Err()
	stale := l.learnFrom(b)
	switch {
	case b.cause != nil:
		return &loss{lossFinal, l.quorumError(req.Resource, b)}
	case b.count(node.OtherResource) >= quorum.Readers(b.n): // fewer are votes of a try that failed, or of a lease that was released
		if req.IsSlot { // votes of a failed try for another slot
			return &loss{lossSplit, lockcore.ErrIdempotencyMismatch}
		}
		return &loss{lossFinal, lockcore.ErrIdempotencyMismatch}
	case b.count(node.Exhausted) > 0:
		return &loss{lossFinal, lockcore.ErrTokensExhausted}
	case stale:
		return &loss{lossSplit, l.quorumError(req.Resource, b)}
	case b.votes() < l.quorum:
		return &loss{lossNoQuorum, l.quorumError(req.Resource, b)}
	}
	owner, locks := b.leader()
	unknown := b.n - b.votes()
	switch {
	case locks+unknown >= l.quorum && locks > 0:
		return &loss{lossHeld, b.heldError(req.Resource, owner)}
	case b.count(node.Granted) == 0 && b.count(node.Queued) > 0:
		return &loss{lossQueued, &lockcore.HeldError{Resource: req.Resource, Waiters: b.waiting(), Queued: true}}
	}
	return &loss{lossSplit, &lockcore.HeldError{Resource: req.Resource, Remaining: splitMaxPause}}
}

// tooLate explains why a lease that was won is not granted.
func (l *Locker) tooLate(ctx context.Context, resource string, res *attempt) *loss {
	res.cause, res.early = ctx.Err(), false
	e := l.quorumError(resource, &res.ballot)
	if res.cause != nil {
		return &loss{lossFinal, e}
	}
	e.Nodes = append(e.Nodes, lockcore.NodeOutcome{Node: "this server", Reason: "the nodes took longer to agree than the TTL: ask for a longer ttl_ms"})
	return &loss{lossNoQuorum, e}
}

// heldError describes a lease that a quorum holds. If a quorum only may hold it, the error has no token.
func (b *ballot) heldError(resource, owner string) *lockcore.HeldError {
	h := b.holdingOf(owner)
	if b.countIf(func(r *node.Reply) bool { return r.Owner == owner }) < b.quorum {
		h.token = 0
	}
	return &lockcore.HeldError{Resource: resource, Holder: h.holder, Token: h.token, Remaining: h.remaining, Waiters: b.waiting()}
}

// quorumError lists the outcome of every node in a failed round.
func (l *Locker) quorumError(resource string, b *ballot) *lockcore.QuorumError {
	status := l.members.Status()
	e := &lockcore.QuorumError{
		Resource: resource, Quorum: b.quorum, Cause: b.cause, RetryAfter: retryAfter(status),
		Nodes:    make([]lockcore.NodeOutcome, b.n),
		Answered: b.countIf(func(r *node.Reply) bool { return r.Outcome != node.Failed }),
		Granted:  b.count(node.Granted),
	}
	for i := range e.Nodes {
		reason := b.reasonOf(i, status.Nodes[i])
		if !b.answered.has(i) && b.early {
			reason = notAwaited
		}
		e.Nodes[i] = lockcore.NodeOutcome{Node: l.nodes[i].Name(), Reason: reason}
	}
	return e
}

// Unready lists for every node why it does not vote. For a node that votes, it gives the reason otherwise.
func (l *Locker) Unready(ctx context.Context, otherwise string) *lockcore.QuorumError {
	status := l.members.Status()
	e := &lockcore.QuorumError{Quorum: l.quorum, RetryAfter: retryAfter(status), Cause: ctx.Err()}
	for _, n := range status.Nodes {
		e.Nodes = append(e.Nodes, lockcore.NodeOutcome{Node: n.Name, Reason: cmp.Or(n.Reason, otherwise)})
	}
	return e
}

// notAwaited is the reason for a node that was not waited for, and may be sound.
const notAwaited = "it was not waited for, since the other nodes ruled a quorum out"

func (b *ballot) reasonOf(i int, status lockcore.NodeStatus) string {
	if !b.answered.has(i) {
		return errNoAnswer.Error()
	}
	switch r := &b.replies[i]; {
	case r.Outcome == node.Failed:
		return r.Err.Error()
	case r.Outcome == node.NotAdmitted && status.State != lockcore.NodeVoting && status.Reason != "":
		return fmt.Sprintf("%s: %s", r.Outcome.Reason(), status.Reason)
	default:
		return r.Outcome.Reason()
	}
}

// retryAfter is the earliest time at which a quorum may vote again: in a second, unless more nodes are known
// to wait for longer.
func retryAfter(s lockcore.ClusterStatus) time.Duration {
	if s.Ready {
		return time.Second
	}
	waits := make([]time.Duration, 0, len(s.Nodes))
	for _, n := range s.Nodes {
		if n.State == lockcore.NodeVoting || n.State == lockcore.NodeQuarantined {
			waits = append(waits, -n.Wait)
		}
	}
	return max(time.Second, -quorum.KthLargest(waits, s.Quorum))
}

package redlock

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// explainLoss says why an acquisition failed. A *retryError around the answer
// means that trying again at once may well succeed.
func (l *set) explainLoss(ctx context.Context, req *request, res *acquired) error {
	b := ballot{n: len(l.nodes), quorum: l.quorum, replies: res.replies, answered: res.answered, early: res.early, cause: ctx.Err()}
	stale := l.learnFrom(b.replies[:b.n])
	answered := b.count(node.Granted) + b.count(node.Held) + b.count(node.Queued)
	switch {
	case b.cause != nil:
		return l.quorumError(req.Resource, &b)
	case b.count(node.OtherResource) > 0:
		return lockcore.ErrIdempotencyMismatch
	case b.count(node.Exhausted) > 0:
		return lockcore.ErrTokensExhausted
	case stale:
		return &retryError{give: l.quorumError(req.Resource, &b)}
	case answered < l.quorum:
		return l.quorumError(req.Resource, &b)
	}
	owner, votes := b.leader()
	unknown := b.n - answered
	switch {
	case votes+unknown >= l.quorum && votes > 0:
		return b.heldBy(req.Resource, owner)
	case b.count(node.Granted) == 0 && b.count(node.Queued) > 0:
		return &lockcore.HeldError{Resource: req.Resource, Waiters: b.waiting(), Queued: true}
	}
	return &retryError{give: &lockcore.HeldError{Resource: req.Resource, Remaining: splitMaxPause}}
}

// tooLate explains a lease that was won and cannot be handed out.
func (l *set) tooLate(ctx context.Context, resource string, res *acquired) error {
	b := ballot{n: len(l.nodes), quorum: l.quorum, replies: res.replies, answered: res.answered, cause: ctx.Err()}
	e := l.quorumError(resource, &b)
	if b.cause == nil {
		e.Nodes = append(e.Nodes, lockcore.NodeOutcome{Node: "this server", Reason: "nothing of the TTL was left once the quorum had agreed: ask for a longer ttl_ms"})
	}
	return e
}

// leader returns the owner of the lease that stands in the way on most nodes.
func (b *ballot) leader() (owner string, votes int) {
	for i := range b.replies[:b.n] {
		if n := b.votesFor(b.replies[i].Owner); b.replies[i].Owner != "" && n > votes {
			owner, votes = b.replies[i].Owner, n
		}
	}
	return owner, votes
}

func (b *ballot) votesFor(owner string) (n int) {
	for i := range b.replies[:b.n] {
		if b.answered.has(i) && b.replies[i].Owner == owner {
			n++
		}
	}
	return n
}

// heldBy describes the lease as the replies show it.
func (b *ballot) heldBy(resource, owner string) *lockcore.HeldError {
	state := b.stateOf(owner)
	return &lockcore.HeldError{
		Resource: resource, Holder: state.holder, Token: state.token,
		Remaining: state.remaining, Waiters: b.waiting(),
	}
}

// waiting is how many stand in the queue, as far as the nodes show.
func (b *ballot) waiting() (n int) {
	for i := range b.replies[:b.n] {
		n = max(n, b.replies[i].Waiting)
	}
	return n
}

// line merges the nodes' lines: a node may have missed a ticket.
func (b *ballot) line() (line []node.Ticket) {
	seen := make(map[string]bool)
	for i := range b.replies[:b.n] {
		for _, t := range b.replies[i].Queue {
			if !seen[t.ID] {
				seen[t.ID] = true
				line = append(line, t)
			}
		}
	}
	slices.SortFunc(line, func(a, b node.Ticket) int {
		return cmp.Or(cmp.Compare(a.Arrival, b.Arrival), cmp.Compare(a.ID, b.ID))
	})
	return line
}

// standing is what the replies of one round show of a lease.
type holding struct {
	votes     int
	token     fencing.Token
	remaining time.Duration // the quorum's; of what was heard when that is less
	ttl       time.Duration
	meta
}

// stateOf sums up a lease. Its token is the grant that a quorum shares, else
// the largest (which its holder has confirmed, or is about to).
func (b *ballot) stateOf(owner string) (s holding) {
	remaining := make([]time.Duration, 0, quorum.MaxNodes)
	shared := 0
	for i := range b.replies[:b.n] {
		r := &b.replies[i]
		if !b.answered.has(i) || r.Owner != owner {
			continue
		}
		s.votes++
		remaining = append(remaining, r.Remaining)
		s.ttl = max(s.ttl, r.TTL)
		if n := b.sharing(owner, r.Grant); n >= b.quorum && n > shared || shared < b.quorum && r.Grant > s.token {
			s.token, shared = r.Grant, n
		}
		if m := parseMeta(r.Meta); !m.acquired.IsZero() {
			s.meta = m
		}
	}
	s.remaining = max(0, quorum.KthLargest(remaining, min(b.quorum, len(remaining))))
	return s
}

func (b *ballot) sharing(owner string, grant fencing.Token) (n int) {
	for i := range b.replies[:b.n] {
		if b.answered.has(i) && b.replies[i].Owner == owner && b.replies[i].Grant == grant {
			n++
		}
	}
	return n
}

// meta is the first description that a node returned.
func (b *ballot) meta() meta {
	for i := range b.replies[:b.n] {
		if m := parseMeta(b.replies[i].Meta); b.answered.has(i) && !m.acquired.IsZero() {
			return m
		}
	}
	return meta{}
}

// quorumError names every node's part in a round that came to nothing.
func (l *set) quorumError(resource string, b *ballot) *lockcore.QuorumError {
	e := &lockcore.QuorumError{Resource: resource, Quorum: b.quorum, Cause: b.cause, Nodes: make([]lockcore.NodeOutcome, b.n)}
	status := l.members.Status()
	for i := range b.replies[:b.n] {
		r := &b.replies[i]
		if b.answered.has(i) && r.Outcome != node.Failed {
			e.Answered++
		}
		if b.answered.has(i) && r.Outcome == node.Granted {
			e.Granted++
		}
		reason := reasonOf(r, b.answered.has(i), status.Nodes[i])
		if !b.answered.has(i) && b.early {
			reason = notAwaited
		}
		e.Nodes[i] = lockcore.NodeOutcome{Node: l.nodes[i].Name(), Reason: reason}
	}
	e.RetryAfter = retryAfter(status)
	return e
}

// notAwaited is said of nodes that may be sound: the answer did not hang on them.
const notAwaited = "not waited for: the other nodes had ruled a quorum out"

func reasonOf(r *node.Reply, answered bool, status lockcore.NodeStatus) string {
	if !answered {
		return errNoAnswer.Error()
	}
	switch r.Outcome {
	case node.Granted:
		return "granted"
	case node.Held:
		return "held by another lease"
	case node.Queued:
		return "others are first in the queue"
	case node.NotHeld:
		return "not held"
	case node.StaleEpoch:
		return "the cluster's epoch was changing"
	case node.NotAdmitted:
		if status.State == lockcore.NodeVoting || status.Reason == "" {
			return "not admitted"
		}
		return fmt.Sprintf("not admitted: %s", status.Reason)
	case node.Exhausted:
		return "its counter has reached the largest token"
	case node.OtherResource:
		return "the idempotency key holds another resource"
	}
	return r.Err.Error()
}

// retryAfter is when a quorum may vote again at the earliest: at once, unless
// too many nodes are known to be waiting.
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

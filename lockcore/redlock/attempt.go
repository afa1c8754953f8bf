package redlock

import (
	"math/bits"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// attempt is one attempt at a lease. It contains all of Redlock with tokens as a state machine without
// side effects: a method takes an event and returns the effects. It does no I/O, takes no lock and reads
// no clock. An acquisition passes the events to it and carries out the effects. The final state becomes
// the caller's lease (won) or refusal (explainLoss).
//
// Before the first event, all nodes were sent a request for their vote. The states are those of verdict, and
// each event is a method:
//
//	            voted, confirmed: a quorum holds >= token (rule 18)
//	          ┌───────────────────────────────────────────────────▶ Won
//	Pending ──┤
//	          └───────────────────────────────────────────────────▶ Lost
//	            voted, confirmed: a quorum is impossible
//	            votesDue, confirmsDue, abandon: no reply is waited for any more
//
//	Pending   when a quorum has granted, the token is the largest of its grants (rule 1), and
//	          nodes that granted less confirm it while they hold the lock (rules 2, 3)
//	Won       nodes that granted less than the token still confirm it, so that counters are equal
//	          before the next lease; the ticket is dequeued on nodes that may still have it
//	Lost      every vote is retracted (rule 16)
//
// Won and Lost are final, but later events still have effects: a late grant of a lost attempt is
// retracted. The attempt does not decide when to give up, because only the acquisition has a clock.
type attempt struct {
	ballot
	keyed  bool // several attempts may share the owner (an idempotency key)
	ticket bool // it waits in the queue

	tally quorum.Tally // decides the verdict; counts each node once, by its first vote
	// The nodes that were sent a confirm, a dequeue or a retraction. These sets only grow, so each effect
	// happens at most once for each node. confirms is a subset of answered, because only nodes that
	// granted less than the token confirm it. retracted is not: an acquire may reach a node whose reply
	// does not arrive.
	confirms, dequeued, retracted nodeSet
	verdict                       quorum.Verdict // leaves Pending once, in decide
	timeUp                        bool           // set by votesDue, confirmsDue and abandon: no reply is waited for
	closed                        bool           // the caller may get the result; never true while Pending
}

// effects are the consequences of one event. Each effect happens once for a node.
type effects struct {
	confirm      nodeSet // the token
	retract      nodeSet // the attempt's vote, whatever its grant
	retractAbove nodeSet // the attempt's vote if its grant is above the token
	retractLater nodeSet // retracted later, because a rejoin may be writing the vote to the node
	dequeue      nodeSet // the ticket
	noAnswer     nodeSet // nodes that had not replied at the limit
	// answer means that the caller may have its result, after the retractions were sent: the next attempt must
	// not find this one's votes.
	answer bool
}

func newAttempt(n int, keyed, ticket bool) attempt {
	return attempt{ballot: newBallot(n), keyed: keyed, ticket: ticket, tally: quorum.NewTally(n)}
}

// voted processes node i's reply to the acquire.
func (a *attempt) voted(i int, reply node.Reply) effects {
	a.add(i, reply)
	if reply.Outcome == node.Granted {
		a.tally.Granted(i, reply.Grant, reply.Existing)
	} else {
		a.tally.Refused(i)
	}
	return a.decide()
}

// confirmed processes node i's reply to the confirm.
func (a *attempt) confirmed(i int, reply node.Reply) effects {
	if reply.Outcome == node.Granted {
		a.tally.Confirmed(i)
	} else {
		a.tally.Refused(i)
	}
	return a.decide()
}

// votesDue ends the time for votes. A node that has not replied counts as a refusal.
func (a *attempt) votesDue() effects {
	missing := a.nodesWith(func(i int) bool { return a.verdict == quorum.Pending && !a.answered.has(i) })
	e := a.refuse(missing)
	e.noAnswer = missing
	return e
}

// confirmsDue ends the time for confirmations.
func (a *attempt) confirmsDue() effects {
	return a.refuse(a.nodesWith(func(i int) bool { return !a.tally.Counts(i) }))
}

// abandon ends the attempt because the caller has left.
func (a *attempt) abandon() effects {
	return a.refuse(a.nodesWith(func(int) bool { return true }))
}

// refuse counts the nodes as refusals unless the attempt is decided. The caller's result no longer waits for
// replies.
func (a *attempt) refuse(nodes nodeSet) effects {
	a.timeUp = true
	if a.verdict == quorum.Pending {
		nodes.each(a.tally.Refused)
	}
	return a.decide()
}

// decide returns the effects of the tally's state.
func (a *attempt) decide() (e effects) {
	if a.verdict == quorum.Pending {
		a.verdict = a.tally.Verdict()
	}
	switch a.verdict {
	case quorum.Lost:
		e.retract = a.retractions(0)
		e.retractLater = a.unadmitted()
	case quorum.Won:
		e.dequeue = a.dequeues()
		if a.keyed {
			e.retractAbove = a.retractions(a.tally.Token())
		}
	}
	e.confirm = a.confirmations()
	e.answer = !a.closed && a.verdict != quorum.Pending && (a.verdict == quorum.Won || a.timeUp || a.explained())
	a.closed = a.closed || e.answer
	return e
}

// retractions returns the nodes that have a vote with a grant above the token (with any grant for 0), or may
// have one: a request that failed may still reach its node.
//
// A lost attempt needs none of its votes. An attempt that won under an idempotency key does not need a
// vote with a grant above its token. The release would leave such a vote, because the next lease under
// the key has the same owner. Without a key, the release removes it.
func (a *attempt) retractions(above fencing.Token) nodeSet {
	nodes := a.nodesWith(func(i int) bool {
		r := &a.replies[i]
		return r.Outcome == node.Granted && (above == 0 || r.Grant > above) || r.Outcome == node.Failed && r.Sent
	}) &^ a.retracted
	a.retracted |= nodes
	return nodes
}

// unadmitted returns the nodes that a lost attempt found without admission. A rejoin may have read the
// attempt's votes on other nodes before they were retracted, and write the lock on such a node (rule 21). That
// takes R votes.
func (a *attempt) unadmitted() nodeSet {
	voted := a.nodesWith(func(i int) bool {
		r := &a.replies[i]
		return r.Outcome == node.Granted || r.Outcome == node.Failed && r.Sent
	})
	if bits.OnesCount8(uint8(voted)) < quorum.Readers(a.n) {
		return 0
	}
	nodes := a.nodesWith(func(i int) bool { return a.answered.has(i) && a.replies[i].Outcome == node.NotAdmitted }) &^ a.retracted
	a.retracted |= nodes
	return nodes
}

// dequeues returns the nodes that still have the ticket of a won lease in their queues. A node dequeues the
// ticket when it grants, but not if the owner already had the lock. Under an idempotency key every node still
// remembers the arrival, until a dequeue.
func (a *attempt) dequeues() nodeSet {
	if !a.ticket {
		return 0
	}
	nodes := a.nodesWith(func(i int) bool {
		return a.answered.has(i) && (a.keyed || a.replies[i].Outcome != node.Granted || a.replies[i].Existing)
	}) &^ a.dequeued
	a.dequeued |= nodes
	return nodes
}

// confirmations returns the nodes that granted less than the token.
func (a *attempt) confirmations() nodeSet {
	if a.verdict == quorum.Lost {
		return 0
	}
	nodes := a.nodesWith(a.tally.MustConfirm) &^ a.confirms
	a.confirms |= nodes
	return nodes
}

// explained reports whether it is known why the attempt is lost. With a node down, two refusals of five nodes
// make a quorum impossible, but do not show whether the resource is held or the nodes are unreachable. That
// takes a quorum of votes, or as many as can still come.
func (a *attempt) explained() bool {
	votes := a.votes()
	return votes >= a.quorum || votes+a.open() < a.quorum
}

// won returns the TTL of a lease that was won, and its validity, counted from the end of elapsed (rule 17).
// If an idempotency key has found its earlier lease, existing is the reply of a node that already had the
// lock, and the TTL is that lease's TTL.
func (a *attempt) won(asked time.Duration) (ttl, validity time.Duration, existing *node.Reply) {
	ttl = asked
	remaining := make([]time.Duration, 0, quorum.MaxNodes)
	for i := range a.n {
		if !a.tally.Counts(i) {
			continue
		}
		reply := &a.replies[i]
		remaining = append(remaining, reply.Remaining)
		if reply.Existing {
			existing, ttl = reply, reply.TTL
		}
	}
	return ttl, quorum.Validity(quorum.KthLargest(remaining, a.quorum), ttl, a.elapsed), existing
}

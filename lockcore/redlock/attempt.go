package redlock

import (
	"math/bits"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// attempt is one attempt at a lease, the whole of Redlock with tokens, as a value:
// a method takes an event and returns its effects. It does no I/O, takes no lock
// and reads no clock. An acquisition drives it.
//
//	every node is asked for its vote
//	a quorum granted:          token = largest of its grants (rule 1)
//	some granted less:         they confirm the token, while owned (rules 2, 3)
//	a quorum holds >= token:   won, the answer is sent (rule 18)
//	a quorum is impossible,
//	or the caller went away:   every vote is retracted (rule 16)
//
// Replies that come after the answer still have effects: a late grant of a lost
// attempt is retracted. A late grant below the token is confirmed, so that the
// counters are equal again before the next lease.
type attempt struct {
	ballot
	keyed  bool // several attempts may share the owner (an idempotency key)
	ticket bool // it waits in the queue

	tally     quorum.Tally
	confirms  nodeSet // were sent a confirm
	dequeued  nodeSet // were sent a dequeue of the ticket
	retracted nodeSet // were sent a retraction
	verdict   quorum.Verdict
	timeUp    bool // the answer waits for no further reply
	closed    bool // the answer may be sent
}

// effects are what follows from one event. Each effect happens once for a node.
type effects struct {
	confirm      nodeSet // the token
	retract      nodeSet // the attempt's vote, whatever its grant
	retractAbove nodeSet // the attempt's vote if its grant is above the token
	retractLater nodeSet // the attempt's vote: a rejoin may be giving it to the node
	dequeue      nodeSet // the ticket
	noAnswer     nodeSet // had not answered at the limit
	// answer: the caller may have its answer, once the retractions were sent. The
	// next attempt must not find this one's votes.
	answer bool
}

func newAttempt(n int, keyed, ticket bool) attempt {
	return attempt{ballot: newBallot(n), keyed: keyed, ticket: ticket, tally: quorum.NewTally(n)}
}

// voted takes node i's reply to the acquire.
func (a *attempt) voted(i int, reply node.Reply) effects {
	a.add(i, reply)
	if reply.Outcome == node.Granted {
		a.tally.Granted(i, reply.Grant, reply.Existing)
	} else {
		a.tally.Refused(i)
	}
	return a.settle()
}

// confirmed takes node i's reply to the confirm.
func (a *attempt) confirmed(i int, reply node.Reply) effects {
	if reply.Outcome == node.Granted {
		a.tally.Confirmed(i)
	} else {
		a.tally.Refused(i)
	}
	return a.settle()
}

// votesDue ends the time for votes. A node that has not answered counts as a refusal.
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

// abandon ends the attempt of a caller that went away.
func (a *attempt) abandon() effects {
	return a.refuse(a.nodesWith(func(int) bool { return true }))
}

// refuse counts the nodes as refusals unless the attempt is decided. The answer
// waits for no further reply.
func (a *attempt) refuse(nodes nodeSet) effects {
	a.timeUp = true
	if a.verdict == quorum.Pending {
		nodes.each(a.tally.Refused)
	}
	return a.settle()
}

// settle returns what follows from the tally.
func (a *attempt) settle() (e effects) {
	if a.verdict == quorum.Pending {
		a.verdict = a.tally.Verdict()
	}
	switch a.verdict {
	case quorum.Lost:
		e.retract = a.retractions(0)
		e.retractLater = a.carriers()
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

// retractions are the nodes that have a vote with a grant above the token (with any
// grant for 0), or may have one: a request that failed may still reach its node.
//
// A lost attempt has no use for any vote. An attempt that won under an idempotency
// key has no use for a vote above its token. The release leaves such a vote alone,
// since the next lease under the key has the same owner. Without a key the release
// takes it.
func (a *attempt) retractions(above fencing.Token) nodeSet {
	nodes := a.nodesWith(func(i int) bool {
		r := &a.replies[i]
		return r.Outcome == node.Granted && (above == 0 || r.Grant > above) || r.Outcome == node.Failed && r.Sent
	}) &^ a.retracted
	a.retracted |= nodes
	return nodes
}

// carriers are the nodes that a lost attempt found without admission. A rejoin may
// have read the attempt's votes on the others before they were retracted, and give
// the lock to such a node (rule 21). It takes R votes for that.
func (a *attempt) carriers() nodeSet {
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

// dequeues are the nodes where the ticket of a won lease is still in the queue. A
// node dequeues the ticket that it grants, but not one whose owner has the lock already.
// Under an idempotency key every node still remembers the arrival, until a dequeue.
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

// confirmations are the nodes that granted less than the token.
func (a *attempt) confirmations() nodeSet {
	if a.verdict == quorum.Lost {
		return 0
	}
	nodes := a.nodesWith(a.tally.MustConfirm) &^ a.confirms
	a.confirms |= nodes
	return nodes
}

// explained reports whether it is known why the attempt is lost. With a node down,
// two of five that refuse make a quorum impossible. They do not show whether the
// resource is held or the nodes are unreachable: that takes a quorum of votes, or
// as many as can still come.
func (a *attempt) explained() bool {
	votes := a.votes()
	return votes >= a.quorum || votes+a.open() < a.quorum
}

// acquired is the result of an attempt.
type acquired struct {
	ballot
	verdict  quorum.Verdict // Lost also when the caller went away
	token    fencing.Token
	validity time.Duration
	ttl      time.Duration
	existing *node.Reply                 // of a node that had the lock already: an idempotency key found its lease
	at       *[quorum.MaxNodes]time.Time // of the replies; nil unless traced
}

// result is the attempt's, elapsed after its first request was sent (rule 17).
func (a *attempt) result(ttl, elapsed time.Duration) acquired {
	res := acquired{ballot: a.ballot, verdict: quorum.Lost, token: a.tally.Token(), ttl: ttl}
	res.early = !a.timeUp
	if a.verdict != quorum.Won {
		return res
	}
	res.verdict = quorum.Won
	remaining := make([]time.Duration, 0, quorum.MaxNodes)
	for i := range a.n {
		if !a.tally.Counts(i) {
			continue
		}
		reply := &a.replies[i]
		remaining = append(remaining, reply.Remaining)
		if reply.Existing {
			res.existing, res.ttl = reply, reply.TTL
		}
	}
	res.validity = quorum.Validity(quorum.KthLargest(remaining, a.quorum), res.ttl, elapsed)
	return res
}

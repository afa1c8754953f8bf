package redlock

import (
	"math/bits"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// attempt is one attempt at a lease, the whole of Redlock with tokens, as a value:
// a method takes what happened and returns what must be done about it. It does no
// I/O, takes no lock and knows no time. An acquisition drives it.
//
//	ask every node for its vote
//	a quorum granted:          token = largest of its grants (rule 1)
//	some granted less:         they confirm the token, while owned (rules 2, 3)
//	a quorum holds >= token:   won, the answer goes out (rule 18)
//	a quorum is impossible,
//	or the caller went away:   every vote is retracted (rule 16)
//
// Replies that come after the answer still do their part: a late grant of a lost
// attempt is retracted, a late grant below the token is confirmed, so that the
// counters meet again before the next lease.
type attempt struct {
	n      int
	keyed  bool // several attempts may share the owner (an idempotency key)
	ticket bool // it waits in the queue

	tally     quorum.Tally
	replies   [quorum.MaxNodes]node.Reply
	answered  nodeSet
	confirms  nodeSet        // were asked to confirm
	dequeued  nodeSet        // were asked to take the ticket out of the queue
	retracted nodeSet        // were asked to give up a vote, or one above the token
	verdict   quorum.Verdict // Lost also when the caller went away
	hurried   bool           // the answer waits for no further reply
	closed    bool           // the answer may go out
}

// effects are what a step asks for, each of a node once.
type effects struct {
	confirm      nodeSet // the token
	retract      nodeSet // the attempt's vote, whatever its grant
	retractAbove nodeSet // the attempt's vote if it was granted above the token
	dequeue      nodeSet // the ticket
	noAnswer     nodeSet // had not answered when their time was up
	// answer: the caller may be answered, once the retractions have been sent. An
	// attempt that follows must not find this one's votes.
	answer bool
}

// nodeSet is a set of nodes, a bit each; |= adds.
type nodeSet uint8

// only is the set of node i.
func only(i int) nodeSet { return 1 << i }

func (s nodeSet) has(i int) bool { return s&only(i) != 0 }

// each calls f for every node of the set.
func (s nodeSet) each(f func(i int)) {
	for ; s != 0; s &= s - 1 {
		f(bits.TrailingZeros8(uint8(s)))
	}
}

func newAttempt(n int, keyed, ticket bool) attempt {
	return attempt{n: n, keyed: keyed, ticket: ticket, tally: quorum.NewTally(n)}
}

// voted takes node i's answer to the acquire.
func (a *attempt) voted(i int, reply node.Reply) effects {
	a.replies[i] = reply
	a.answered |= only(i)
	if reply.Outcome == node.Granted {
		a.tally.Granted(i, reply.Grant, reply.Existing)
	} else {
		a.tally.Refused(i)
	}
	return a.settle()
}

// confirmed takes node i's answer to the confirm.
func (a *attempt) confirmed(i int, reply node.Reply) effects {
	if reply.Outcome == node.Granted {
		a.tally.Confirmed(i)
	} else {
		a.tally.Refused(i)
	}
	return a.settle()
}

// votesDue: the time for votes is up. Nodes that have not answered count as refusals.
func (a *attempt) votesDue() effects {
	var silent nodeSet
	if a.verdict == quorum.Pending {
		for i := range a.n {
			if !a.answered.has(i) {
				silent |= only(i)
				a.tally.Refused(i)
			}
		}
	}
	a.hurried = true
	e := a.settle()
	e.noAnswer = silent
	return e
}

// confirmsDue: the time for confirmations is up.
func (a *attempt) confirmsDue() effects {
	return a.strike(func(i int) bool { return !a.tally.Counts(i) })
}

// abandon ends the attempt for a caller that went away.
func (a *attempt) abandon() effects {
	return a.strike(func(int) bool { return true })
}

// strike counts nodes as refusals, unless the attempt is decided, and hurries the answer.
func (a *attempt) strike(out func(i int) bool) effects {
	a.hurried = true
	if a.verdict == quorum.Pending {
		for i := range a.n {
			if out(i) {
				a.tally.Refused(i)
			}
		}
	}
	return a.settle()
}

// settle says what follows from the tally as it is now.
func (a *attempt) settle() (e effects) {
	if a.verdict == quorum.Pending {
		a.verdict = a.tally.Verdict()
	}
	switch a.verdict {
	case quorum.Lost:
		e.retract = a.retractions(func(r *node.Reply) bool { return r.Outcome == node.Granted })
	case quorum.Won:
		e.dequeue = a.dequeues()
		if a.keyed {
			e.retractAbove = a.retractions(func(r *node.Reply) bool { return r.Outcome == node.Granted && r.Grant > a.tally.Token() })
		}
	}
	e.confirm = a.confirmations()
	e.answer = !a.closed && a.verdict != quorum.Pending && (a.verdict == quorum.Won || a.hurried || a.explained())
	a.closed = a.closed || e.answer
	return e
}

// retractions lists the nodes that have a vote of the kind, or may have: the answer
// of one that failed says nothing of the acquire that it was sent.
//
// A lost attempt has no use for any vote. One that was won under an idempotency key
// has none for a vote above its token: its release leaves those alone, since the
// next lease under the key has the same owner. Without a key the release takes them.
func (a *attempt) retractions(useless func(*node.Reply) bool) (nodes nodeSet) {
	for i := range a.n {
		r := &a.replies[i]
		if a.answered.has(i) && !a.retracted.has(i) && (useless(r) || r.Outcome == node.Failed && r.Sent) {
			nodes |= only(i)
		}
	}
	a.retracted |= nodes
	return nodes
}

// dequeues lists the nodes where the ticket of a won lease is still in the queue: a
// node that grants takes it out by itself, one that finds an idempotency key's own
// lock does not.
func (a *attempt) dequeues() (nodes nodeSet) {
	if !a.ticket {
		return 0
	}
	for i := range a.n {
		r := &a.replies[i]
		if a.answered.has(i) && !a.dequeued.has(i) && (r.Outcome != node.Granted || r.Existing) {
			nodes |= only(i)
		}
	}
	a.dequeued |= nodes
	return nodes
}

// confirmations lists the nodes that granted less than the token.
func (a *attempt) confirmations() (nodes nodeSet) {
	if a.verdict == quorum.Lost {
		return 0
	}
	for i := range a.n {
		if !a.confirms.has(i) && a.tally.MustConfirm(i) {
			nodes |= only(i)
		}
	}
	a.confirms |= nodes
	return nodes
}

// explained reports whether it is known why the attempt is lost. With a node down,
// two of five that are held make a quorum impossible, and yet do not tell whether
// the resource is held or the nodes are unreachable: that takes a quorum of votes,
// or as many as can still come.
func (a *attempt) explained() bool {
	votes, open := 0, 0
	for i := range a.n {
		switch {
		case !a.answered.has(i):
			open++
		case a.replies[i].Outcome == node.Granted, a.replies[i].Outcome == node.Held, a.replies[i].Outcome == node.Queued:
			votes++
		}
	}
	return votes >= quorum.Of(a.n) || votes+open < quorum.Of(a.n)
}

// acquired is what an attempt came to.
type acquired struct {
	verdict  quorum.Verdict
	token    fencing.Token
	validity time.Duration
	existing bool
	ttl      time.Duration
	meta     string // of the lease that an idempotency key found
	replies  [quorum.MaxNodes]node.Reply
	answered nodeSet
	at       *[quorum.MaxNodes]time.Time // of the answers; nil unless traced
	early    bool                        // it was decided before its limit
}

// result sums the attempt up, elapsed after its first request was sent (rule 17).
func (a *attempt) result(ttl, elapsed time.Duration) acquired {
	res := acquired{
		verdict: quorum.Lost, token: a.tally.Token(), ttl: ttl,
		replies: a.replies, answered: a.answered, early: !a.hurried,
	}
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
			res.existing, res.ttl, res.meta = true, reply.TTL, reply.Meta
		}
	}
	res.validity = quorum.Validity(quorum.KthLargest(remaining, quorum.Of(a.n)), res.ttl, elapsed)
	return res
}

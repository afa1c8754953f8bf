package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// acquisition drives an attempt: it sends the nodes what the attempt asks for, and
// tells the attempt what they answer and when their time is up.
type acquisition struct {
	nodes   []node.Node
	meters  []Meter
	clean   *cleaner
	acquire node.Op
	began   time.Time
	limit   time.Duration
	done    chan struct{} // closed once the caller may be answered

	mu      sync.Mutex
	attempt attempt
	at      *[quorum.MaxNodes]time.Time // of the answers; nil unless traced
	confirm *node.Op                    // set once, with the token
}

// confirmations is an acquisition in its other role: the sink of its confirms.
type confirmations acquisition

func (l *set) newAcquisition(ctx context.Context, op node.Op, limit time.Duration) *acquisition {
	a := &acquisition{
		nodes: l.nodes, meters: l.meters, clean: l.clean, acquire: op, limit: limit,
		began:   time.Now(), // before the first request (rule 17)
		done:    make(chan struct{}),
		attempt: newAttempt(len(l.nodes), op.Attempt != "", op.Ticket.ID != ""),
	}
	if l.cfg.Traced != nil && l.cfg.Traced(ctx) {
		a.at = new([quorum.MaxNodes]time.Time)
	}
	return a
}

// start asks the nodes; wait must follow.
func (a *acquisition) start() {
	a.acquire.Deadline = a.began.Add(a.limit)
	for i, n := range a.nodes {
		n.Submit(&a.acquire, i, a)
	}
}

// wait returns when the attempt is decided, which it is at the latest after two
// limits: one for the votes and one for the confirmations.
func (a *acquisition) wait(ctx context.Context) {
	timer := time.NewTimer(a.limit)
	defer timer.Stop()
	for _, due := range []func(*attempt) effects{(*attempt).votesDue, (*attempt).confirmsDue} {
		select {
		case <-a.done:
			return
		case <-ctx.Done():
			a.step((*attempt).abandon)
			return
		case <-timer.C:
			a.step(due)
		}
		timer.Reset(a.limit)
	}
}

// Deliver takes node i's answer to the acquire.
func (a *acquisition) Deliver(i int, reply node.Reply) {
	a.meters[i].Vote(reply.Outcome)
	if reply.Outcome == node.Granted && !node.Plausible(reply.Grant, time.Now()) {
		reply = node.Reply{Outcome: node.Failed, Err: errImplausible, Sent: true}
	}
	a.step(func(t *attempt) effects {
		if a.at != nil {
			a.at[i] = time.Now()
		}
		return t.voted(i, reply)
	})
}

// Deliver takes node i's answer to the confirm.
func (c *confirmations) Deliver(i int, reply node.Reply) {
	a := (*acquisition)(c)
	a.meters[i].Confirm(reply.Outcome)
	a.step(func(t *attempt) effects { return t.confirmed(i, reply) })
}

// step changes the attempt under the lock and then does what it asks for outside,
// since a node may deliver from within Submit.
func (a *acquisition) step(change func(*attempt) effects) {
	a.mu.Lock()
	e := change(&a.attempt)
	token := a.attempt.tally.Token()
	if e.confirm != 0 && a.confirm == nil {
		a.confirm = &node.Op{
			Kind: node.OpConfirm, Epoch: a.acquire.Epoch, Resource: a.acquire.Resource,
			Owner: a.acquire.Owner, Token: token, Deadline: time.Now().Add(a.limit),
		}
	}
	confirm := a.confirm
	a.mu.Unlock()
	e.confirm.each(func(i int) { a.nodes[i].Submit(confirm, i, (*confirmations)(a)) })
	e.retract.each(func(i int) { a.retract(i, 0) })
	e.retractAbove.each(func(i int) { a.retract(i, token) })
	e.noAnswer.each(func(i int) { a.meters[i].NoAnswer() })
	if e.answer {
		close(a.done)
	}
	e.dequeue.each(a.dequeue)
}

// retract retracts the attempt's vote on node i; with above, one granted above it.
func (a *acquisition) retract(i int, above fencing.Token) {
	recheck := recheckNever
	if a.attempt.replies[i].Outcome != node.Granted { // the acquire may lie in the node's socket yet
		recheck = recheckAlways
	}
	a.clean.send(i, node.Op{
		Kind: node.OpRetract, Resource: a.acquire.Resource, Owner: a.acquire.Owner, Attempt: a.acquire.Attempt, Above: above,
	}, a.began.Add(a.acquire.TTL), recheck)
}

func (a *acquisition) dequeue(i int) {
	op := node.Op{Kind: node.OpDequeue, Resource: a.acquire.Resource, Ticket: a.acquire.Ticket}
	a.clean.send(i, op, a.began.Add(lockcore.MaxWait), recheckNever)
}

// result is what the attempt came to.
func (a *acquisition) result() acquired {
	a.mu.Lock()
	defer a.mu.Unlock()
	res := a.attempt.result(a.acquire.TTL, time.Since(a.began))
	if a.at != nil {
		at := *a.at // late answers are still written
		res.at = &at
	}
	return res
}

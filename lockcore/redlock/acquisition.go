package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/cleanup"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// acquisition drives an attempt: it gives the attempt the replies and the time
// limits, and carries out the effects that the attempt returns.
type acquisition struct {
	locker  *Locker
	acquire node.Op
	began   time.Time
	limit   time.Duration
	done    chan struct{} // closed once the caller may have its answer

	mu      sync.Mutex
	attempt attempt
	at      *[quorum.MaxNodes]time.Time // of the replies; nil unless traced
	confirm *node.Op                    // set once, with the token
}

// confirmations is an acquisition in its other role: the sink of its confirms.
type confirmations acquisition

func (l *Locker) newAcquisition(ctx context.Context, op node.Op, limit time.Duration) *acquisition {
	a := &acquisition{
		locker: l, acquire: op, limit: limit,
		began:   time.Now(), // before the first request (rule 17)
		done:    make(chan struct{}),
		attempt: newAttempt(len(l.nodes), op.Attempt != "", op.Ticket.ID != ""),
	}
	if l.cfg.Traced != nil && l.cfg.Traced(ctx) {
		a.at = new([quorum.MaxNodes]time.Time)
	}
	return a
}

// start sends the acquire. The caller must call wait.
func (a *acquisition) start() {
	a.acquire.Deadline = a.began.Add(a.limit)
	for i, n := range a.locker.nodes {
		n.Submit(&a.acquire, i, a)
	}
}

// wait returns when the attempt is decided. That takes two limits at most: one
// for the votes and one for the confirmations.
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

// Deliver takes node i's reply to the acquire.
func (a *acquisition) Deliver(i int, reply node.Reply) {
	a.locker.meters[i].Vote(reply.Outcome)
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

// Deliver takes node i's reply to the confirm.
func (c *confirmations) Deliver(i int, reply node.Reply) {
	a := (*acquisition)(c)
	a.locker.meters[i].Confirm(reply.Outcome)
	a.step(func(t *attempt) effects { return t.confirmed(i, reply) })
}

// step changes the attempt under the lock. It carries the effects out after that,
// since a node may deliver from within Submit.
func (a *acquisition) step(change func(*attempt) effects) {
	a.mu.Lock()
	e := change(&a.attempt)
	token := a.attempt.tally.Token()
	if e.confirm != 0 && a.confirm == nil {
		a.confirm = &node.Op{
			Kind: node.OpConfirm, Epoch: a.acquire.Epoch, Map: a.acquire.Map, Resource: a.acquire.Resource,
			Owner: a.acquire.Owner, Attempt: a.acquire.Attempt, Token: token, Deadline: time.Now().Add(a.limit),
		}
	}
	confirm := a.confirm
	a.mu.Unlock()
	e.confirm.each(func(i int) { a.locker.nodes[i].Submit(confirm, i, (*confirmations)(a)) })
	e.retract.each(func(i int) { a.retract(i, 0) })
	e.retractAbove.each(func(i int) { a.retract(i, token) })
	e.retractLater.each(func(i int) { a.locker.cleaner.SendLater(i, retraction(&a.acquire, 0)) })
	e.noAnswer.each(func(i int) { a.locker.meters[i].NoAnswer() })
	if e.answer {
		close(a.done)
	}
	e.dequeue.each(a.dequeue)
}

// retract retracts the attempt's vote on node i, unless its grant is at most above.
func (a *acquisition) retract(i int, above fencing.Token) {
	recheck := cleanup.Never
	if a.attempt.replies[i].Outcome != node.Granted { // the node may still read the acquire
		recheck = cleanup.Always
	}
	a.locker.cleaner.Send(i, retraction(&a.acquire, above), a.began.Add(a.acquire.TTL), recheck)
}

// retraction retracts the vote that an acquire got, unless its grant is at most above.
func retraction(acquire *node.Op, above fencing.Token) node.Op {
	return node.Op{Kind: node.OpRetract, Resource: acquire.Resource, Owner: acquire.Owner, Attempt: acquire.Attempt, Above: above}
}

func (a *acquisition) dequeue(i int) {
	op := node.Op{Kind: node.OpDequeue, Resource: a.acquire.Resource, Ticket: a.acquire.Ticket, Patient: true}
	a.locker.cleaner.Send(i, op, a.began.Add(lockcore.MaxWait), cleanup.Never)
}

func (a *acquisition) result() acquired {
	a.mu.Lock()
	defer a.mu.Unlock()
	res := a.attempt.result(a.acquire.TTL, time.Since(a.began))
	if a.at != nil {
		at := *a.at // late replies still change it
		res.at = &at
	}
	return res
}

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

// acquisition drives an attempt: it passes the replies and the time limits to the attempt, and carries
// out the effects that the attempt returns. The caller's goroutine is in wait until the attempt is
// decided and closed. The nodes' goroutines call Deliver, some of them long after that, so the caller
// gets a copy (result).
//
//	caller   newAcquisition ─ start ─────────── wait ─────────── result
//	                            │                 ▲
//	                          Submit         close(done)
//	                            ▼                 │
//	nodes                    Deliver ─ step ─ effects ─▶ confirms to nodes, retractions to the cleaner
//
// Effects are carried out without holding the lock, because a node may deliver from within Submit. The
// acquisition makes no decisions, which are the attempt's, and no repetitions, which are the cleaner's.
type acquisition struct {
	locker  *Locker
	acquire node.Op       // sent to every node; not changed after start
	began   time.Time     // before the first request was sent: the validity counts from here (rule 17)
	limit   time.Duration // for the votes, and again for the confirms
	done    chan struct{} // closed once, by the step that closes the attempt

	mu      sync.Mutex // guards the fields below
	attempt attempt
	confirm *node.Op // sent to nodes that granted less than the token; set once, with the token
}

// confirmations is an acquisition as the sink of the replies to its confirms.
type confirmations acquisition

func (l *Locker) newAcquisition(ctx context.Context, op node.Op, limit time.Duration) *acquisition {
	a := &acquisition{
		locker: l, acquire: op, limit: limit,
		began:   time.Now(),
		done:    make(chan struct{}),
		attempt: newAttempt(len(l.nodes), op.Attempt != "", op.Ticket.ID != ""),
	}
	if l.cfg.Traced != nil && l.cfg.Traced(ctx) {
		a.attempt.at = new([quorum.MaxNodes]time.Time)
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

// wait returns when the attempt is decided. That takes at most two limits: one for the votes and one for
// the confirmations.
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

// Deliver processes node i's reply to the acquire.
func (a *acquisition) Deliver(i int, reply node.Reply) {
	a.locker.meters[i].Vote(reply.Outcome)
	if reply.Outcome == node.Granted && !node.Plausible(reply.Grant, time.Now()) {
		reply = node.Reply{Outcome: node.Failed, Err: errImplausible, Sent: true}
	}
	a.step(func(t *attempt) effects {
		if t.at != nil {
			t.at[i] = time.Now()
		}
		return t.voted(i, reply)
	})
}

// Deliver processes node i's reply to the confirm.
func (c *confirmations) Deliver(i int, reply node.Reply) {
	a := (*acquisition)(c)
	a.locker.meters[i].Confirm(reply.Outcome)
	a.step(func(t *attempt) effects { return t.confirmed(i, reply) })
}

// step changes the attempt under the lock. It carries out the effects after releasing the lock, because a
// node may deliver from within Submit.
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

// result returns a copy of the attempt for the caller. Late replies still change the original.
func (a *acquisition) result() attempt {
	a.mu.Lock()
	defer a.mu.Unlock()
	res := a.attempt
	res.elapsed, res.early = time.Since(a.began), !res.timeUp
	if res.at != nil {
		at := *res.at
		res.at = &at
	}
	return res
}

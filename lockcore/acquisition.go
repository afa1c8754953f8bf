package lockcore

import (
	"context"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// acquisition is one attempt at a lease: the whole of Redlock with tokens.
//
//	ask every node for its vote
//	a quorum granted:          token = largest of its grants (rule 1)
//	some granted less:         they confirm the token, while owned (rules 2, 3)
//	a quorum holds >= token:   won, the answer goes out (rule 18)
//	a quorum is impossible,
//	or the caller went away:   every vote goes back (rule 16)
//
// Replies drive it. Those that come after the answer still do their part:
// a late grant of a lost attempt is released, a late grant below the token is
// confirmed, so that the counters meet again before the next lease.
type acquisition struct {
	nodes   []Node
	meters  []Meter
	clean   *cleaner
	acquire Op
	began   time.Time
	limit   time.Duration
	done    chan struct{} // closed once decided

	mu       sync.Mutex
	tally    Tally
	replies  [MaxNodes]Reply
	answered [MaxNodes]bool
	at       *[MaxNodes]time.Time // of the answers; nil unless traced
	confirm  *Op                  // set once, with the token
	asked    [MaxNodes]bool       // to confirm
	left     [MaxNodes]bool       // the line, after a win
	spare    [MaxNodes]bool       // given back after a win
	decided  bool
	over     bool // lost or abandoned: every vote goes back
	late     bool // the answer waits for nobody any more
	closed   bool // done is
}

// confirmations is an acquisition in its other role: the sink of its confirms.
type confirmations acquisition

func (l *Locker) newAcquisition(ctx context.Context, op Op, limit time.Duration) *acquisition {
	a := &acquisition{
		nodes: l.nodes, meters: l.meters, clean: l.clean, acquire: op, limit: limit,
		began: time.Now(), // before the first request (rule 17)
		done:  make(chan struct{}),
		tally: NewTally(len(l.nodes)),
	}
	if l.cfg.Traced != nil && l.cfg.Traced(ctx) {
		a.at = new([MaxNodes]time.Time)
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

// wait returns when the acquisition is decided, which it is at the latest
// after two limits: one for the votes and one for the confirmations.
func (a *acquisition) wait(ctx context.Context) {
	timer := time.NewTimer(a.limit)
	defer timer.Stop()
	select {
	case <-a.done:
		return
	case <-ctx.Done():
		a.abandon()
		return
	case <-timer.C:
		a.expire(a.strikeSilent)
	}
	timer.Reset(a.limit)
	select {
	case <-a.done:
	case <-ctx.Done():
		a.abandon()
	case <-timer.C:
		a.expire(a.strikeUnconfirmed)
	}
}

// Deliver takes node i's answer to the acquire.
func (a *acquisition) Deliver(i int, reply Reply) {
	a.meters[i].Vote(reply.Outcome)
	a.step(i, func() {
		if reply.Outcome == Granted && !plausible(reply.Grant, time.Now()) {
			reply = Reply{Outcome: Failed, Err: errImplausible, Sent: true}
		}
		a.replies[i], a.answered[i] = reply, true
		if a.at != nil {
			a.at[i] = time.Now()
		}
		if reply.Outcome == Granted {
			a.tally.Granted(i, reply.Grant, reply.Existing)
		} else {
			a.tally.Refused(i)
		}
	})
}

// Deliver takes node i's answer to the confirm.
func (c *confirmations) Deliver(i int, reply Reply) {
	a := (*acquisition)(c)
	a.meters[i].Confirm(reply.Outcome)
	a.step(nobody, func() {
		if reply.Outcome == Granted {
			a.tally.Confirmed(i)
		} else {
			a.tally.Refused(i)
		}
	})
}

// nobody stands for a step in which no node answered the acquire.
const nobody = -1

// step changes the tally under the lock and then does what follows from it
// outside, since a node may deliver from within Submit.
func (a *acquisition) step(i int, change func()) {
	a.mu.Lock()
	wasOver := a.over
	change()
	closing := a.decide()
	confirm := a.unasked()
	confirmOp := a.confirm
	lost, spares := a.votes(wasOver, i), a.spares()
	token := a.tally.Token()
	strays := a.strays()
	a.mu.Unlock()
	for _, n := range confirm {
		a.nodes[n].Submit(confirmOp, n, (*confirmations)(a))
	}
	a.retract(lost, 0)
	a.retract(spares, token)
	if closing { // behind the retractions: an attempt that follows must not find this one's votes
		close(a.done)
	}
	for _, n := range strays {
		a.clean.send(n, Op{Kind: OpDequeue, Resource: a.acquire.Resource, Ticket: a.acquire.Ticket}, a.began.Add(MaxWait), recheckNever)
	}
}

// strays lists, once each, the nodes where the ticket of a won lease still
// stands in line: a node that grants takes it off by itself, one that finds an
// idempotency key's own lock does not.
func (a *acquisition) strays() (nodes []int) {
	if a.acquire.Ticket.ID == "" || !a.decided || a.over {
		return nil
	}
	for i := range a.nodes {
		if a.answered[i] && !a.left[i] && (a.replies[i].Outcome != Granted || a.replies[i].Existing) {
			a.left[i] = true
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// spares lists, once each, the nodes where a lease won under an idempotency key has
// or may have a vote that it cannot use, since it was granted above its token: one
// that came behind the lease's release is among them. Its own release leaves them
// alone, for the next lease under the key bears the same value. Without a key it
// takes them.
func (a *acquisition) spares() (nodes []int) {
	if a.acquire.Attempt == "" || !a.decided || a.over {
		return nil
	}
	for i := range a.nodes {
		r := &a.replies[i]
		unknown := r.Outcome == Failed && r.Sent
		if a.answered[i] && !a.spare[i] && (unknown || r.Outcome == Granted && r.Grant > a.tally.Token()) {
			a.spare[i] = true
			nodes = append(nodes, i)
		}
	}
	return nodes
}

// decide ends the attempt if the tally does, and reports whether that is to be
// told now.
func (a *acquisition) decide() (closing bool) {
	if !a.decided {
		verdict := a.tally.Verdict()
		a.decided, a.over = verdict != Pending, verdict == Lost
	}
	closing = a.decided && !a.closed && (!a.over || a.late || a.told())
	a.closed = a.closed || closing
	return closing
}

// told reports whether it is known why the attempt is lost. With a node down, two
// of five that are held make a quorum impossible, and yet do not tell whether
// the resource is held or the nodes are away: that takes a quorum of votes, or
// as many as can still come.
func (a *acquisition) told() bool {
	telling, open := 0, 0
	for i := range a.nodes {
		switch a.replies[i].Outcome {
		case Granted, Held, Queued:
			telling++
		default:
			if !a.answered[i] {
				open++
			}
		}
	}
	return telling >= a.tally.quorum || telling+open < a.tally.quorum
}

// unasked lists the nodes that must confirm and were not asked yet.
func (a *acquisition) unasked() (nodes []int) {
	if a.over || a.tally.Token() == 0 {
		return nil
	}
	for i := range a.nodes {
		if a.asked[i] || !a.tally.MustConfirm(i) {
			continue
		}
		if a.confirm == nil {
			a.confirm = &Op{
				Kind: OpConfirm, View: a.acquire.View, Resource: a.acquire.Resource,
				Owner: a.acquire.Owner, Token: a.tally.Token(), Deadline: time.Now().Add(a.limit),
			}
		}
		a.asked[i] = true
		nodes = append(nodes, i)
	}
	return nodes
}

// votes lists the nodes that may hold a vote of an attempt that is over: all
// that answered so far when it has just ended, afterwards each as it answers.
func (a *acquisition) votes(wasOver bool, just int) (nodes []int) {
	if !a.over {
		return nil
	}
	for i := range a.nodes {
		if a.answered[i] && (!wasOver || i == just) && a.replies[i].mayHold() {
			nodes = append(nodes, i)
		}
	}
	return nodes
}

func (r *Reply) mayHold() bool {
	return r.Outcome == Granted || r.Outcome == Failed && r.Sent
}

// retract takes back the votes of this attempt; with above, those granted above it.
func (a *acquisition) retract(nodes []int, above fencing.Token) {
	for _, i := range nodes {
		recheck := recheckNever
		if a.replies[i].Outcome != Granted { // the acquire may lie in the node's socket yet
			recheck = recheckAlways
		}
		a.clean.send(i, Op{
			Kind: OpRetract, Resource: a.acquire.Resource, Owner: a.acquire.Owner, Attempt: a.acquire.Attempt, Above: above,
		}, a.began.Add(a.acquire.TTL), recheck)
	}
}

// abandon ends the attempt for a caller that went away.
func (a *acquisition) abandon() {
	a.expire(func() {
		for i := range a.nodes {
			a.tally.Refused(i)
		}
	})
}

// expire strikes nodes out and ends the attempt if that decides it.
func (a *acquisition) expire(strike func()) {
	a.step(nobody, func() {
		a.late = true
		if !a.decided {
			strike()
		}
	})
}

func (a *acquisition) strikeSilent() {
	for i := range a.nodes {
		if !a.answered[i] {
			a.tally.Refused(i)
			a.meters[i].Silent()
		}
	}
}

func (a *acquisition) strikeUnconfirmed() {
	for i := range a.nodes {
		if !a.tally.Counts(i) {
			a.tally.Refused(i)
		}
	}
}

// result is what a decided acquisition came to.
type acquired struct {
	verdict  Verdict
	token    fencing.Token
	validity time.Duration
	existing bool
	ttl      time.Duration
	meta     string // of the lease that an idempotency key found
	replies  [MaxNodes]Reply
	answered [MaxNodes]bool
	at       *[MaxNodes]time.Time
	early    bool // it was decided before its limit
}

func (a *acquisition) result() acquired {
	a.mu.Lock()
	defer a.mu.Unlock()
	res := acquired{
		verdict: Lost, token: a.tally.Token(), ttl: a.acquire.TTL,
		replies: a.replies, answered: a.answered, early: !a.late,
	}
	if a.at != nil {
		at := *a.at // late answers are still written
		res.at = &at
	}
	if a.over || a.tally.Verdict() != Won {
		return res
	}
	res.verdict = Won
	remaining := make([]time.Duration, 0, MaxNodes)
	for i := range a.nodes {
		if !a.tally.Counts(i) {
			continue
		}
		reply := &a.replies[i]
		remaining = append(remaining, reply.Remaining)
		if reply.Existing {
			res.existing, res.ttl, res.meta = true, reply.TTL, reply.Meta
		}
	}
	left := quorumth(remaining, a.tally.quorum)
	res.validity = validity(left, res.ttl, time.Since(a.began))
	return res
}

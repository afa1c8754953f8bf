package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/internal/pause"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// place is a request's place in the queue of one resource.
type place struct {
	req    *Request
	waiter *waitqueue.Waiter
	pauses retryPauses
	alone  time.Time // since when no try has found a quorum; zero if the last one has
}

// acquireQueued waits for the lease in the queue of the request's resource, or in those of
// all its slots. A queue is first come, first served over all servers of the cluster. Of
// several slots one is tried at a time, as they are freed.
func (l *Mapped) acquireQueued(ctx context.Context, reqs ...*Request) (*Part, error) {
	places := make([]place, 0, len(reqs))
	for _, req := range reqs {
		w, err := l.enqueue(ctx, req)
		if err != nil {
			l.leave(places, waitqueue.GivesUp)
			return nil, err
		}
		places = append(places, place{req: req, waiter: w})
	}
	deadline := time.NewTimer(reqs[0].AnswerWithin())
	defer deadline.Stop()
	taken, at, err := l.awaitGrant(ctx, places, deadline.C)
	if err != nil {
		return nil, l.notGranted(ctx, places, err)
	}
	l.queue.Granted(places[at].waiter, taken.Lease.TTL)
	l.leave(slices.Delete(places, at, at+1), waitqueue.Satisfied)
	return taken, nil
}

// notGranted takes the request out of its queues after the error that ended its wait, and
// returns the one for the caller.
func (l *Mapped) notGranted(ctx context.Context, places []place, err error) error {
	req := places[0].req
	timedOut := errors.Is(err, waitqueue.ErrTimedOut)
	if errors.Is(err, lockcore.ErrStopping) || timedOut && req.Polls() {
		l.leave(places, waitqueue.ComesAgain)
	} else {
		l.leave(places, waitqueue.GivesUp)
	}
	switch {
	case timedOut:
		return l.timedOut(ctx, places)
	case errors.Is(err, waitqueue.ErrCancelled):
		return &lockcore.HeldError{Resource: req.Resource, Queued: true}
	case errors.Is(err, waitqueue.ErrInterrupted):
		lost := l.Unready(ctx, "ready")
		lost.Resource = req.Resource
		return lost
	}
	return err
}

// leave takes the request out of its queues.
func (l *Mapped) leave(places []place, how waitqueue.Exit) {
	for i := range places {
		l.queue.Leave(places[i].waiter, how)
	}
}

func (l *Locker) enqueue(ctx context.Context, req *Request) (*waitqueue.Waiter, error) {
	id, err := l.ticketID(ctx, req)
	if err != nil {
		return nil, err
	}
	return l.queue.Enqueue(req.Resource, req.Holder, id)
}

// lostAfter is how long a waiting request outlives the loss of the quorum.
const lostAfter = 5 * time.Second

// interruptWithoutQuorum ends waits with a *QuorumError as long as too few nodes have
// voted for lostAfter, until ctx ends: also the waits that are not first, and so ask
// the nodes nothing. Their clients then know, and may give up.
func (l *Locker) interruptWithoutQuorum(ctx context.Context) {
	const look = time.Second
	ready := time.Now()
	for pause.For(ctx, look) == nil {
		switch {
		case l.members.Status().Ready:
			ready = time.Now()
		case time.Since(ready) > lostAfter:
			l.queue.Interrupt()
		}
	}
}

// ticketID is derived from the request's idempotency key, so that a retry has the
// same one; "" without a key. The error is a *QuorumError: a server that has just
// started does not know the cluster's secret, and so no places. The request had better
// ask another one than get a new place here.
func (l *Locker) ticketID(ctx context.Context, req *Request) (string, error) {
	if req.IdempotencyKey == "" {
		return "", nil
	}
	keys, err := l.CurrentRing(ctx)
	if err != nil {
		return "", err
	}
	return keys.TicketID(req.Caller, req.IdempotencyKey, req.Resource), nil
}

// awaitGrant waits until the turn of a place has come and its try was granted; it returns
// which one. Slots have been looked at before.
func (l *Mapped) awaitGrant(ctx context.Context, places []place, deadline <-chan time.Time) (*Part, int, error) {
	if l.Now().name != l.name { // it came to the queue after the interruption of the change
		return nil, 0, waitqueue.ErrInterrupted
	}
	waiters := make([]*waitqueue.Waiter, len(places))
	for i := range places {
		waiters[i] = places[i].waiter
	}
	if len(places) == 1 {
		if taken, lost := l.tryBeforeWaiting(ctx, &places[0]); lost == nil || !lost.mayChange(ctx) {
			return taken, 0, lost.error()
		}
	}
	for {
		at, err := l.queue.Await(ctx, deadline, waiters...)
		if err != nil {
			return nil, 0, err
		}
		p := &places[at]
		taken, lost := l.try(ctx, p.req, node.Op{Ticket: p.waiter.Ticket})
		if lost == nil || !lost.mayChange(ctx) || p.lostQuorum(lost) {
			return taken, at, lost.error()
		}
		l.queue.Postpone(p.waiter, p.pauses.after(lost, l.random.Jitter), lost.met())
	}
}

// lostQuorum reports whether the tries of the place have found no quorum for too long.
func (p *place) lostQuorum(lost *loss) bool {
	switch {
	case lost.kind != lossNoQuorum:
		p.alone = time.Time{}
	case p.alone.IsZero():
		p.alone = time.Now()
	}
	return !p.alone.IsZero() && time.Since(p.alone) > lostAfter
}

// notTried is of a request whose turn it is not.
var notTried = &loss{lossQueued, lockcore.ErrHeld}

// tryBeforeWaiting is the try of a request that has just come.
//
// A try with a ticket costs the nodes twice as much, so there is none where no other
// request waits here: a free resource needs no queue, and such a try overtakes no ticket.
//
// A request under an idempotency key also tries where others are before it. It may repeat
// one whose answer was lost: then the key has the lease that the others wait for, and in
// the queue it would not find it.
func (l *Mapped) tryBeforeWaiting(ctx context.Context, p *place) (*Part, *loss) {
	if l.queue.HoldBack(p.waiter) {
		taken, lost := l.try(ctx, p.req, node.Op{})
		if lost != nil { // else no node is to have the ticket
			l.queue.Show(p.waiter)
		}
		return taken, lost
	}
	if p.req.IdempotencyKey != "" {
		return l.try(ctx, p.req, node.Op{Ticket: p.waiter.Ticket, Patient: true})
	}
	return nil, notTried
}

// mayChange reports whether a later try may be granted.
func (l *loss) mayChange(ctx context.Context) bool { return l.kind != lossFinal && ctx.Err() == nil }

// error is the caller's; nil if nothing was lost.
func (l *loss) error() error {
	if l == nil {
		return nil
	}
	return l.err
}

// met is what the queue has to know of it.
func (l *loss) met() waitqueue.Met {
	switch l.kind {
	case lossNoQuorum:
		return waitqueue.MetNoQuorum
	case lossHeld:
		return waitqueue.MetLease
	}
	return waitqueue.MetQueue
}

// retryPauses are the last pauses of the first waiter between its tries, unless it
// is woken before. They grow.
type retryPauses struct{ split, held, busy time.Duration }

// after is the pause after the loss.
func (p *retryPauses) after(lost *loss, jitter func(time.Duration) time.Duration) time.Duration {
	const (
		heldFirst, heldMax = time.Second, 15 * time.Second
		busyFirst, busyMax = 25 * time.Millisecond, time.Second
		expirySlack        = 2 * time.Millisecond
	)
	switch lost.kind {
	case lossSplit:
		return jitter(pause.Grow(&p.split, splitFirstPause, splitMaxPause))
	case lossHeld: // until the lease expires at the latest
		return min(endsIn(lost.err)+expirySlack, jitter(pause.Grow(&p.held, heldFirst, heldMax)))
	}
	// Others are first, perhaps on a server that has just died; or there is no quorum.
	return jitter(pause.Grow(&p.busy, busyFirst, busyMax))
}

// timedOut describes the queue at the end of a wait, of several the one whose lease ends first.
func (l *Mapped) timedOut(ctx context.Context, places []place) (err error) {
	waited, errs := time.Since(places[0].req.Began), make([]error, len(places))
	var looks sync.WaitGroup
	for i := range places {
		looks.Go(func() { errs[i] = l.describeQueue(ctx, places[i].req, places[i].waiter.Ticket, waited) })
	}
	looks.Wait()
	for _, one := range errs {
		err = sooner(err, one)
	}
	return err
}

// describeQueue returns a *WaitTimeoutError, or why there is none.
func (l *Mapped) describeQueue(ctx context.Context, req *Request, own node.Ticket, waited time.Duration) error {
	b, err := l.read(ctx, req.Resource, (*ballot).holderDecided)
	if err != nil {
		return err
	}
	e := &lockcore.WaitTimeoutError{HeldError: lockcore.HeldError{Resource: req.Resource}, Waited: waited, Position: 1, Kept: req.Polls()}
	if owner, locks := b.leader(); locks > 0 {
		e.HeldError = *b.heldError(req.Resource, owner)
	}
	tickets := b.tickets()
	e.Waiters = max(b.waiting(), len(tickets))
	if i := slices.IndexFunc(tickets, func(t node.Ticket) bool { return t.ID == own.ID }); i >= 0 {
		own = tickets[i] // the nodes may remember an earlier arrival
	}
	for _, t := range tickets {
		if t.Before(own) {
			e.Position++
		}
	}
	return e
}

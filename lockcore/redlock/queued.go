package redlock

import (
	"context"
	"errors"
	"fmt"
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
	pauses retryPauses
	lost   time.Time // since when no try has found a quorum; zero if the last one has
}

// acquireQueued waits for the lease in the queue of the request's resource, or in those of
// all its slots. A queue is first come, first served over all servers of the cluster. Of
// several slots one is tried at a time, as they are freed.
func (l *Mapped) acquireQueued(ctx context.Context, reqs ...*Request) (*Part, error) {
	places, waiters := make([]place, len(reqs)), make([]*waitqueue.Waiter, 0, len(reqs))
	for i, req := range reqs {
		w, err := l.enqueue(ctx, req)
		if err != nil {
			leave(waiters, l.queue.Dequeue)
			return nil, err
		}
		places[i].req, waiters = req, append(waiters, w)
	}
	return l.awaitGrant(ctx, places, waiters)
}

// leave takes the request out of its queues.
func leave(waiters []*waitqueue.Waiter, how func(*waitqueue.Waiter)) {
	for _, w := range waiters {
		how(w)
	}
}

func (l *Locker) enqueue(ctx context.Context, req *Request) (*waitqueue.Waiter, error) {
	id, err := l.ticketID(ctx, req)
	if err != nil {
		return nil, err
	}
	return l.queue.Enqueue(req.Resource, req.Holder, id)
}

// awaitGrant waits until the turn of a waiter has come and its try was granted.
func (l *Mapped) awaitGrant(ctx context.Context, places []place, waiters []*waitqueue.Waiter) (*Part, error) {
	req := places[0].req
	deadline := time.NewTimer(req.AnswerWithin())
	defer deadline.Stop()
	taken, at, err := l.tryUntilGranted(ctx, places, waiters, deadline.C)
	if err == nil {
		l.queue.Granted(waiters[at], taken.Lease.TTL)
		leave(slices.Delete(waiters, at, at+1), l.queue.Satisfied)
		return taken, nil
	}
	timedOut, interrupted := errors.Is(err, waitqueue.ErrTimedOut), errors.Is(err, waitqueue.ErrInterrupted)
	if errors.Is(err, lockcore.ErrStopping) || timedOut && req.Polls() {
		leave(waiters, l.queue.KeepPlace)
	} else {
		leave(waiters, l.queue.Dequeue)
	}
	switch {
	case timedOut:
		err = l.timedOut(ctx, places, waiters)
	case errors.Is(err, waitqueue.ErrCancelled):
		err = &lockcore.HeldError{Resource: req.Resource, Queued: true}
	case interrupted && !errors.Is(err, lockcore.ErrNoQuorum):
		lost := l.Unready(ctx, "ready")
		lost.Resource, err = req.Resource, lost
	}
	return nil, err
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

// tryUntilGranted returns also the index of the waiter that was granted. Slots have been
// looked at before.
func (l *Mapped) tryUntilGranted(ctx context.Context, places []place, waiters []*waitqueue.Waiter, deadline <-chan time.Time) (*Part, int, error) {
	if len(waiters) == 1 {
		if taken, err := l.tryBeforeWaiting(ctx, places[0].req, waiters[0]); err == nil || !worthWaiting(ctx, err) {
			return taken, 0, err
		}
	}
	for {
		at, err := l.queue.Await(ctx, deadline, waiters...)
		if err != nil {
			return nil, 0, err
		}
		p, w := &places[at], waiters[at]
		taken, err := l.tryAcquire(ctx, p.req, w.Ticket)
		switch {
		case err == nil || !worthWaiting(ctx, err):
			return taken, at, err
		case !errors.Is(err, lockcore.ErrNoQuorum):
			p.lost = time.Time{}
		case p.lost.IsZero():
			p.lost = time.Now()
		case time.Since(p.lost) > lostAfter:
			return nil, 0, fmt.Errorf("%w: %w", waitqueue.ErrInterrupted, err)
		}
		l.queue.Postpone(w, p.pauses.after(err, l.random.Jitter), whatMet(err))
	}
}

// whatMet is what the error of a try says that it met.
func whatMet(err error) waitqueue.Met {
	if errors.Is(err, lockcore.ErrNoQuorum) {
		return waitqueue.MetNoQuorum
	}
	if held, ok := errors.AsType[*lockcore.HeldError](err); ok && !held.Queued {
		return waitqueue.MetLease
	}
	return waitqueue.MetQueue
}

// errNotTried is worth waiting after: it is not the request's turn.
var errNotTried = fmt.Errorf("not tried yet: %w", lockcore.ErrHeld)

// tryBeforeWaiting is the try of a request that has just come.
//
// A try with a ticket costs the nodes twice as much, so there is none where no other
// request waits here: a free resource needs no queue, and such a try overtakes no ticket.
//
// A request under an idempotency key also tries where others are before it. It may repeat
// one whose answer was lost: then the key has the lease that the others wait for, and in
// the queue it would not find it.
func (l *Mapped) tryBeforeWaiting(ctx context.Context, req *Request, w *waitqueue.Waiter) (*Part, error) {
	if l.queue.HoldBack(w) {
		taken, err := l.tryAcquire(ctx, req, node.Ticket{})
		if err != nil { // else no node is to have the ticket
			l.queue.Show(w)
		}
		return taken, err
	}
	if req.IdempotencyKey != "" {
		return l.try(ctx, req, node.Op{Ticket: w.Ticket, Patient: true})
	}
	return nil, errNotTried
}

// worthWaiting is false after an error that every later try would return, too.
func worthWaiting(ctx context.Context, err error) bool {
	var again *retryError
	return ctx.Err() == nil && (errors.As(err, &again) || errors.Is(err, lockcore.ErrHeld) || errors.Is(err, lockcore.ErrNoQuorum))
}

// retryPauses are the last pauses of the first waiter between its tries, unless it
// is woken before. They grow.
type retryPauses struct{ split, held, busy time.Duration }

// after is the pause after the error.
func (p *retryPauses) after(err error, jitter func(time.Duration) time.Duration) time.Duration {
	const (
		heldFirst, heldMax = time.Second, 15 * time.Second
		busyFirst, busyMax = 25 * time.Millisecond, time.Second
		expirySlack        = 2 * time.Millisecond
	)
	var again *retryError
	var held *lockcore.HeldError
	switch {
	case errors.As(err, &again): // votes split, or the epoch changed
		return jitter(grow(&p.split, splitFirstPause, splitMaxPause))
	case errors.As(err, &held) && !held.Queued: // until the lease expires at the latest
		return min(held.Remaining+expirySlack, jitter(grow(&p.held, heldFirst, heldMax)))
	}
	// Others are first, perhaps on a server that has just died; or there is no quorum.
	return jitter(grow(&p.busy, busyFirst, busyMax))
}

// grow doubles the pause within its bounds.
func grow(pause *time.Duration, first, longest time.Duration) time.Duration {
	*pause = min(max(first, 2**pause), longest)
	return *pause
}

// timedOut describes the queue at the end of a wait, of several the one whose lease ends first.
func (l *Mapped) timedOut(ctx context.Context, places []place, waiters []*waitqueue.Waiter) (err error) {
	errs := make([]error, len(places))
	var looks sync.WaitGroup
	for i := range places {
		looks.Go(func() { errs[i] = l.describeQueue(ctx, places[i].req, waiters[i].Ticket) })
	}
	looks.Wait()
	for _, one := range errs {
		err = sooner(err, one)
	}
	return err
}

// describeQueue returns a *WaitTimeoutError, or why there is none.
func (l *Mapped) describeQueue(ctx context.Context, req *Request, own node.Ticket) error {
	b, err := l.read(ctx, req.Resource, (*ballot).holderDecided)
	if err != nil {
		return err
	}
	e := &lockcore.WaitTimeoutError{HeldError: lockcore.HeldError{Resource: req.Resource}, Waited: req.AnswerWithin(), Position: 1, Kept: req.Polls()}
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

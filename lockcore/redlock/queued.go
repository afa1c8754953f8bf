package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// place is a request's place in the queue of one resource.
type place struct {
	req    *lockcore.Request
	waiter *waitqueue.Waiter
	pauses retryPauses
	// noQuorumSince is when the recent attempts without a quorum began; zero if the last attempt found a
	// quorum.
	noQuorumSince time.Time
}

// acquireQueued waits for the lease in the queue of the request's resource, or in the queues of all its slots.
// A queue is first come, first served over all servers of the cluster. Slots are tried one at a time, as they
// are freed.
//
// Its response does not depend on the nodes: it comes at the end of the wait, or at most ResponseSlack later.
func (l *Mapped) acquireQueued(ctx context.Context, end time.Time, reqs ...*lockcore.Request) (*Grant, error) {
	places := make([]place, 0, len(reqs))
	for _, req := range reqs {
		w, err := l.enqueue(ctx, req)
		if err != nil {
			l.leave(places, waitqueue.GivesUp)
			return nil, err
		}
		places = append(places, place{req: req, waiter: w})
	}
	within, cancel := context.WithDeadline(ctx, end.Add(ResponseSlack))
	defer cancel()
	taken, at, err := l.awaitGrant(ctx, within, places, end)
	if err != nil {
		return nil, l.notGranted(ctx, within, places, err)
	}
	l.queue.Granted(places[at].waiter, taken.Lease.TTL)
	l.leave(slices.Delete(places, at, at+1), waitqueue.Satisfied)
	return taken, nil
}

// ResponseSlack is how long after the end of a wait the nodes' replies still count: those to the attempt that is
// under way then, and those that describe the queue.
const ResponseSlack = 200 * time.Millisecond

// notGranted removes the request from its queues after the error that ended its wait, and returns the error
// for the caller. After within has ended, it sends the nodes no further requests.
func (l *Mapped) notGranted(ctx, within context.Context, places []place, err error) error {
	req := places[0].req
	known := l.remembered(places)
	timedOut := errors.Is(err, waitqueue.ErrTimedOut)
	if errors.Is(err, lockcore.ErrStopping) || timedOut && req.Polls() {
		l.leave(places, waitqueue.ComesAgain)
	} else {
		l.leave(places, waitqueue.GivesUp)
	}
	switch {
	case timedOut:
		return l.timedOut(ctx, within, places, known)
	case errors.Is(err, waitqueue.ErrCancelled):
		return &lockcore.HeldError{Resource: req.Resource, Queued: true}
	case errors.Is(err, waitqueue.ErrInterrupted):
		lost := l.Unready(ctx, "ready")
		lost.Resource = req.Resource
		return lost
	}
	return err
}

// leave removes the request from its queues.
func (l *Mapped) leave(places []place, how waitqueue.Exit) {
	for i := range places {
		l.queue.Leave(places[i].waiter, how)
	}
}

func (l *Locker) enqueue(ctx context.Context, req *lockcore.Request) (*waitqueue.Waiter, error) {
	id, err := l.ticketID(ctx, req)
	if err != nil {
		return nil, err
	}
	return l.queue.Enqueue(req.Resource, req.Holder, id)
}

// lostAfter is how long a waiting request outlives the loss of the quorum.
const lostAfter = 5 * time.Second

// interruptWithoutQuorum runs until ctx ends. While too few nodes have voted for lostAfter, it ends waits with
// a *QuorumError. This includes waits that are not first, and so send no requests to the nodes. Their clients
// then learn of the loss, and may give up.
func (l *Locker) interruptWithoutQuorum(ctx context.Context) {
	const look = time.Second
	ready := time.Now()
	for pause.For(ctx, look) {
		switch {
		case l.members.Status().Ready:
			ready = time.Now()
		case time.Since(ready) > lostAfter:
			l.queue.Interrupt()
		}
	}
}

// ticketID is derived from the request's idempotency key, so that a retry has the same id; "" without a key.
// The error is a *QuorumError: a server that has just started does not know the cluster's secret, and so does
// not know the places. It is better for the request to use another server than to get a new place here.
func (l *Locker) ticketID(ctx context.Context, req *lockcore.Request) (string, error) {
	if req.IdempotencyKey == "" {
		return "", nil
	}
	keys, err := l.CurrentRing(ctx)
	if err != nil {
		return "", err
	}
	return keys.TicketID(req.Caller.Name(), req.IdempotencyKey, req.Resource), nil
}

// awaitGrant waits until one of the places has its turn and its attempt is granted. It returns the grant and
// the index of that place. With several places (slots) it makes no attempt before a turn, because the caller
// has just read the slots. An attempt that is under way when within ends is abandoned.
func (l *Mapped) awaitGrant(ctx, within context.Context, places []place, end time.Time) (*Grant, int, error) {
	if l.Now().name != l.name { // it entered the queue after the change interrupted the waits
		return nil, 0, waitqueue.ErrInterrupted
	}
	waiters := make([]*waitqueue.Waiter, len(places))
	for i := range places {
		waiters[i] = places[i].waiter
	}
	if len(places) == 1 {
		if taken, lost := l.tryFirst(ctx, within, &places[0]); lost == nil || !lost.mayChange(within) {
			return taken, 0, lost.ends(ctx, within)
		}
	}
	for {
		at, err := l.queue.Await(ctx, end, waiters...)
		if err != nil {
			return nil, 0, err
		}
		p := &places[at]
		taken, lost := l.try(within, p.req, node.Op{Ticket: p.waiter.Ticket})
		if lost == nil || !lost.mayChange(within) || p.lostQuorum(lost) {
			return taken, at, lost.ends(ctx, within)
		}
		l.queue.Remember(p.waiter, lost.err)
		l.queue.Postpone(p.waiter, p.pauses.after(lost, l.random.Jitter), lost.met())
	}
}

// lostQuorum reports whether the attempts of the place have found no quorum for too long.
func (p *place) lostQuorum(lost *loss) bool {
	switch {
	case lost.kind != lossNoQuorum:
		p.noQuorumSince = time.Time{}
	case p.noQuorumSince.IsZero():
		p.noQuorumSince = time.Now()
	}
	return !p.noQuorumSince.IsZero() && time.Since(p.noQuorumSince) > lostAfter
}

// notTried is the loss of a request that is not first.
var notTried = &loss{lossQueued, lockcore.ErrHeld}

// tryFirst makes the first attempt of a request. It has at least the time of an acquire without a wait, however short
// the wait is.
func (l *Mapped) tryFirst(ctx, within context.Context, p *place) (*Grant, *loss) {
	if end, _ := within.Deadline(); time.Until(end) < l.cfg.NodeTimeout {
		var cancel context.CancelFunc
		within, cancel = context.WithTimeout(ctx, l.cfg.NodeTimeout)
		defer cancel()
	}
	taken, lost := l.tryBeforeWaiting(within, p)
	if lost != nil && lost != notTried && lost.mayChange(within) {
		l.queue.Remember(p.waiter, lost.err)
	}
	return taken, lost
}

// tryBeforeWaiting makes the first attempt of a request.
//
// An attempt with a ticket costs the nodes twice as much. So it uses none if no other request waits here: a
// free resource needs no queue, and such an attempt overtakes no ticket.
//
// A request under an idempotency key tries even if others wait before it. It may repeat a request whose
// response was lost. Then the key has the lease for which the others wait, and in the queue the request would
// not find it.
func (l *Mapped) tryBeforeWaiting(ctx context.Context, p *place) (*Grant, *loss) {
	if l.queue.HoldBack(p.waiter) {
		taken, lost := l.try(ctx, p.req, node.Op{})
		if lost != nil { // otherwise no node should have the ticket
			l.queue.Show(p.waiter)
		}
		return taken, lost
	}
	if p.req.IdempotencyKey != "" {
		l.queue.Tries(p.waiter)
		taken, lost := l.try(ctx, p.req, node.Op{Ticket: p.waiter.Ticket, Patient: true})
		if lost != nil {
			l.queue.Tried(p.waiter)
		}
		return taken, lost
	}
	return nil, notTried
}

// mayChange reports whether a later try may be granted.
func (l *loss) mayChange(ctx context.Context) bool { return l.kind != lossFinal && ctx.Err() == nil }

// error returns the caller's error; nil if nothing was lost.
func (l *loss) error() error {
	if l == nil {
		return nil
	}
	return l.err
}

// ends returns the error of a wait that the loss ended: ErrTimedOut if the attempt was abandoned because within
// had ended.
func (l *loss) ends(ctx, within context.Context) error {
	if l != nil && within.Err() != nil && ctx.Err() == nil {
		return waitqueue.ErrTimedOut
	}
	return l.error()
}

// met converts the loss for the queue.
func (l *loss) met() waitqueue.Met {
	switch l.kind {
	case lossNoQuorum:
		return waitqueue.MetNoQuorum
	case lossHeld:
		return waitqueue.MetLease
	}
	return waitqueue.MetQueue
}

// retryPauses remembers, by kind of loss, the last pause of the first waiter between two attempts. Pauses
// grow. A wake ends a pause.
type retryPauses struct{ split, held, busy time.Duration }

// after returns the pause after the loss.
func (p *retryPauses) after(lost *loss, jitter func(time.Duration) time.Duration) time.Duration {
	const (
		// Jitter adds up to half: so they are at most 15 s and 1 s.
		heldFirst, heldMax = 2 * time.Second / 3, 10 * time.Second
		busyFirst, busyMax = 25 * time.Millisecond, 2 * time.Second / 3
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

// timedOut describes the queue at the end of a wait; of several queues, the one of the lease that ends first.
// If the nodes do not reply before within ends, it describes what this server knew of the place.
func (l *Mapped) timedOut(ctx, within context.Context, places []place, known []error) (err error) {
	waited, errs := time.Since(places[0].req.Began), make([]error, len(places))
	var looks sync.WaitGroup
	for i := range places {
		looks.Go(func() { errs[i] = l.describeQueue(within, places[i].req, places[i].waiter.Ticket, waited) })
	}
	looks.Wait()
	if within.Err() != nil && ctx.Err() == nil {
		errs = known
	}
	for _, one := range errs {
		err = sooner(err, one)
	}
	return err
}

// remembered describes the queues without the nodes, each as the latest attempt of this server found it: with a
// *WaitTimeoutError, or with the *QuorumError of that attempt. It is called before the request leaves them.
func (l *Mapped) remembered(places []place) []error {
	known := make([]error, len(places))
	for i, p := range places {
		seen := l.queue.Standing(p.waiter)
		if errors.Is(seen.Err, lockcore.ErrNoQuorum) {
			known[i] = seen.Err
			continue
		}
		e := &lockcore.WaitTimeoutError{
			HeldError: lockcore.HeldError{Resource: p.req.Resource}, Waited: time.Since(p.req.Began), Position: seen.Position, Kept: p.req.Polls(),
		}
		if held, ok := errors.AsType[*lockcore.HeldError](seen.Err); ok {
			e.HeldError = *held
			e.Remaining = max(0, held.Remaining-seen.Age)
		}
		e.Waiters = max(e.Waiters, seen.Waiters)
		known[i] = e
	}
	return known
}

// describeQueue returns a *WaitTimeoutError, or why there is none.
func (l *Mapped) describeQueue(ctx context.Context, req *lockcore.Request, own node.Ticket, waited time.Duration) error {
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

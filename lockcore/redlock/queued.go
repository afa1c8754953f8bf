package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// acquireQueued waits in the queue for the lease. The queue is first come, first
// served over all servers of the cluster.
func (s *set) acquireQueued(ctx context.Context, req *request) (*part, error) {
	id, err := s.ticketID(ctx, req)
	if err != nil {
		return nil, err
	}
	w, err := s.queue.Enqueue(req.Resource, req.Holder, id)
	if err != nil {
		return nil, err
	}
	deadline := time.NewTimer(req.answerWithin())
	defer deadline.Stop()
	taken, err := s.tryUntilGranted(ctx, req, w, deadline.C)
	if err == nil {
		s.queue.Granted(w, taken.lease.TTL)
		return taken, nil
	}
	timedOut, interrupted := errors.Is(err, waitqueue.ErrTimedOut), errors.Is(err, waitqueue.ErrInterrupted)
	if ctx.Err() != nil || errors.Is(err, lockcore.ErrStopping) || interrupted || timedOut && req.polls() {
		s.queue.BreakOff(w)
	} else {
		s.queue.Dequeue(w)
	}
	switch {
	case timedOut:
		err = s.timedOut(ctx, req, w)
	case interrupted && !errors.Is(err, lockcore.ErrNoQuorum):
		lost := s.unready(ctx, "ready")
		lost.Resource, err = req.Resource, lost
	}
	return nil, err
}

// polls says whether the request is answered before its wait ends.
func (r *request) polls() bool { return r.Poll > 0 && r.Poll < r.Wait }

// answerWithin is how long this request waits.
func (r *request) answerWithin() time.Duration {
	if r.polls() {
		return r.Poll
	}
	return r.Wait
}

// lostAfter is how long a waiting request outlives the loss of the quorum.
const lostAfter = 5 * time.Second

// interruptWithoutQuorum ends waits with a *QuorumError as long as too few nodes have
// voted for lostAfter, until ctx ends: also the waits that are not first, and so ask
// the nodes nothing. Their clients then know, and may give up.
func (s *set) interruptWithoutQuorum(ctx context.Context) {
	const look = time.Second
	ready := time.Now()
	for pause.For(ctx, look) == nil {
		switch {
		case s.members.Status().Ready:
			ready = time.Now()
		case time.Since(ready) > lostAfter:
			s.queue.Interrupt()
		}
	}
}

// ticketID is derived from the request's idempotency key, so that a retry has the
// same one; "" without a key. The error is a *QuorumError: a server that has just
// started does not know the cluster's secret, and so no places. The request had better
// ask another one than get a new place here.
func (s *set) ticketID(ctx context.Context, req *request) (string, error) {
	if req.IdempotencyKey == "" {
		return "", nil
	}
	keys, err := s.currentKeys(ctx)
	if err != nil {
		return "", err
	}
	return keys.ticketID(req.caller, req.IdempotencyKey, req.Resource), nil
}

func (s *set) tryUntilGranted(ctx context.Context, req *request, w *waitqueue.Waiter, deadline <-chan time.Time) (*part, error) {
	var pauses retryPauses
	var lost time.Time // since when no try has found a quorum; zero if the last one has
	for {
		if err := s.queue.Await(ctx, w, deadline); err != nil {
			return nil, err
		}
		taken, err := s.tryAcquire(ctx, req, w.Ticket)
		switch {
		case err == nil || !worthWaiting(ctx, err):
			return taken, err
		case !errors.Is(err, lockcore.ErrNoQuorum):
			lost = time.Time{}
		case lost.IsZero():
			lost = time.Now()
		case time.Since(lost) > lostAfter:
			return nil, fmt.Errorf("%w: %w", waitqueue.ErrInterrupted, err)
		}
		s.queue.Postpone(w, pauses.after(err, s.random.Jitter), errors.Is(err, lockcore.ErrNoQuorum))
	}
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

// timedOut describes the queue at the end of a wait.
func (s *set) timedOut(ctx context.Context, req *request, w *waitqueue.Waiter) error {
	b, err := s.read(ctx, req.Resource, (*ballot).holderDecided)
	if err != nil {
		return err
	}
	e := &lockcore.WaitTimeoutError{HeldError: lockcore.HeldError{Resource: req.Resource}, Waited: req.answerWithin(), Position: 1}
	if owner, locks := b.leader(); locks > 0 {
		e.HeldError = *b.heldError(req.Resource, owner)
	}
	tickets := b.tickets()
	e.Waiters = max(b.waiting(), len(tickets))
	own := w.Ticket
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

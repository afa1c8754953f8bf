package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// acquireQueued waits in the queue for the lease. The queue is first come, first
// served over all servers of the cluster.
func (s *set) acquireQueued(ctx context.Context, req *request) (*part, error) {
	w, err := s.queue.Enqueue(req.Resource, req.Holder, s.ticketID(ctx, req))
	if err != nil {
		return nil, err
	}
	deadline := time.NewTimer(req.Wait)
	defer deadline.Stop()
	taken, err := s.tryUntilGranted(ctx, req, w, deadline.C)
	if err == nil {
		s.queue.Granted(w, taken.lease.TTL)
		return taken, nil
	}
	if ctx.Err() != nil || errors.Is(err, lockcore.ErrStopping) {
		s.queue.BreakOff(w)
		return nil, err
	}
	s.queue.Dequeue(w)
	if errors.Is(err, waitqueue.ErrTimedOut) {
		err = s.timedOut(ctx, req, w)
	}
	return nil, err
}

// ticketID is derived from the request's idempotency key, so that a retry has the
// same one. It is "" without a key, or before the cluster's secret is known.
func (s *set) ticketID(ctx context.Context, req *request) string {
	keys, err := s.currentKeys(ctx)
	if err != nil || req.IdempotencyKey == "" {
		return ""
	}
	return keys.ticketID(req.caller, req.IdempotencyKey, req.Resource)
}

func (s *set) tryUntilGranted(ctx context.Context, req *request, w *waitqueue.Waiter, deadline <-chan time.Time) (*part, error) {
	var pauses retryPauses
	for {
		if err := s.queue.Await(ctx, w, deadline); err != nil {
			return nil, err
		}
		taken, err := s.tryAcquire(ctx, req, w.Ticket)
		if err == nil || !worthWaiting(ctx, err) {
			return taken, err
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
	e := &lockcore.WaitTimeoutError{HeldError: lockcore.HeldError{Resource: req.Resource}, Waited: req.Wait, Position: 1}
	if owner, locks := b.leader(); locks > 0 {
		e.HeldError = *b.heldError(req.Resource, owner)
	}
	tickets := b.tickets()
	e.Waiters = max(b.waiting(), len(tickets))
	for _, t := range tickets {
		if t.Before(w.Ticket) {
			e.Position++
		}
	}
	return e
}

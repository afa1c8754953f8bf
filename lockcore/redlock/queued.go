package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/redlock/waitqueue"
)

// acquireQueued waits in the queue for the lease: first come, first served, over
// all servers of the cluster. It returns what Acquire documents.
func (l *set) acquireQueued(ctx context.Context, req *request) (*part, error) {
	w, err := l.queue.Enqueue(req.Resource, req.Holder, l.ticketID(ctx, req))
	if err != nil {
		return nil, err
	}
	deadline := time.NewTimer(req.Wait)
	defer deadline.Stop()
	taken, err := l.tryUntilGranted(ctx, req, w, deadline.C)
	if err == nil {
		l.queue.Granted(w, taken.lease.TTL)
		return taken, nil
	}
	if ctx.Err() != nil || errors.Is(err, lockcore.ErrStopping) {
		l.queue.BreakOff(w)
		return nil, err
	}
	l.queue.Dequeue(w)
	if errors.Is(err, waitqueue.ErrTimedOut) {
		err = l.timedOut(ctx, req, w)
	}
	return nil, err
}

// ticketID is made of the request's idempotency key, so that a retry has the same
// one; "" without a key, or before the cluster's secret is known.
func (l *set) ticketID(ctx context.Context, req *request) string {
	if req.IdempotencyKey == "" {
		return ""
	}
	keys, err := l.currentKeys(ctx)
	if err != nil {
		return ""
	}
	return keys.ticketID(req.caller, req.IdempotencyKey, req.Resource)
}

// tryUntilGranted asks whenever it is time to, until there is a lease or a reason to stop.
func (l *set) tryUntilGranted(ctx context.Context, req *request, w *waitqueue.Waiter, deadline <-chan time.Time) (*part, error) {
	var pace pace
	for {
		if err := l.queue.Await(ctx, w, deadline); err != nil {
			return nil, err
		}
		taken, err := l.tryAcquire(ctx, req, w.Ticket)
		if err == nil || !l.worthWaiting(ctx, err) {
			return taken, err
		}
		l.queue.Postpone(w, pace.after(err, l.cfg.Random.Jitter))
	}
}

// worthWaiting tells a resource that is held, or nodes that are away, from a
// request that can never succeed.
func (l *set) worthWaiting(ctx context.Context, err error) bool {
	var again *retryError
	return ctx.Err() == nil && (errors.As(err, &again) || errors.Is(err, lockcore.ErrHeld) || errors.Is(err, lockcore.ErrNoQuorum))
}

// What the first waiter tries by itself: when the lease in the way has ended, or at
// growing intervals.
const (
	firstRetry  = time.Second
	maxRetry    = 15 * time.Second
	expirySlack = 2 * time.Millisecond
)

// pace is how long the first in the queue waits before it asks again by itself.
type pace struct{ split, poll, busy time.Duration }

func (p *pace) after(err error, jitter func(time.Duration) time.Duration) time.Duration {
	var again *retryError
	var held *lockcore.HeldError
	switch {
	case errors.As(err, &again): // votes split, or an epoch changed: soon
		return jitter(grow(&p.split, splitFirstPause, splitMaxPause))
	case errors.As(err, &held) && !held.Queued: // when the lease ends, or now and then
		return min(held.Remaining+expirySlack, jitter(grow(&p.poll, firstRetry, maxRetry)))
	}
	// Others are first, perhaps on a server that just died; or no quorum.
	const first, most = 25 * time.Millisecond, time.Second
	return jitter(grow(&p.busy, first, most))
}

func grow(pause *time.Duration, first, most time.Duration) time.Duration {
	*pause = min(max(first, 2**pause), most)
	return *pause
}

// timedOut describes a wait that came to nothing.
func (l *set) timedOut(ctx context.Context, req *request, w *waitqueue.Waiter) error {
	b, err := l.look(ctx, req.Resource, (*ballot).holderDecided)
	if err != nil {
		return err
	}
	e := &lockcore.WaitTimeoutError{HeldError: lockcore.HeldError{Resource: req.Resource}, Waited: req.Wait, Position: 1}
	if lease, votes := b.leader(); votes > 0 {
		e.HeldError = *b.heldBy(req.Resource, lease)
	}
	waiters := b.line()
	e.Waiters = max(b.waiting(), len(waiters))
	for _, t := range waiters {
		if t.Before(w.Ticket) {
			e.Position++
		}
	}
	return e
}

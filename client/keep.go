package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// KeepAlive extends the lease at a third of its TTL until stop is called. The
// context that it gives is cancelled with the cause ErrLeaseLost when the lease
// is lost, or a margin before its validity ends; its Err looks at the clock, as Do's.
//
// The end of ctx, and Close, cancel the context, too, but the lease is kept alive until
// stop, so that no other lease is granted while the work comes to its end.
// stop waits for what is under way, and does not release the lease. It may be called
// more than once.
func (l *Lease) KeepAlive(ctx context.Context, opts ...KeepOption) (working context.Context, stop func()) {
	return l.keepAlive(ctx, keepingOf(opts))
}

func (l *Lease) keepAlive(ctx context.Context, opts keeping) (working context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if err := l.client.enter(); err != nil {
		cancel(failed("keep alive", l.names(), err))
		return ctx, func() {}
	}
	keeping, end := context.WithCancel(context.WithoutCancel(ctx))
	unhookClosing := context.AfterFunc(l.client.life.closing, func() { cancel(ErrClosed) })
	unhookEnded := context.AfterFunc(l.client.life.ended, end)
	k := keeper{lease: l, margin: opts.marginOf(l.ttl), extended: opts.extended}
	var running sync.WaitGroup
	running.Go(func() {
		if err := k.run(keeping); err != nil {
			cancel(err)
		}
	})
	return workContext{ctx, cancel, k.lost}, sync.OnceFunc(func() {
		end()
		running.Wait()
		unhookClosing()
		unhookEnded()
		cancel(nil)
		l.client.leave()
	})
}

func (k keeping) marginOf(ttl time.Duration) time.Duration {
	const tenth = 10
	if k.margin <= 0 {
		return ttl / tenth
	}
	return min(k.margin, ttl/2) //nolint:mnd // before that, the first extension has come
}

// keeper extends a lease until its context ends, or the lease is lost.
type keeper struct {
	lease    *Lease
	margin   time.Duration
	extended func(*Lease)
}

// run returns nil when ctx ends, and else why the lease is lost.
func (k keeper) run(ctx context.Context) error {
	const third = 3
	const soon = 20 // a short outage is to be outlived
	next := k.together(k.due(third))
	for {
		if err := k.lost(); err != nil {
			return err
		}
		left := k.left()
		capped := k.lease.capped()
		if capped {
			next = left
		}
		if sleep(ctx, min(next, left)) != nil {
			return nil //nolint:nilerr // stopped
		}
		if capped {
			continue
		}
		err := k.extend(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // stopped
		case errors.Is(err, ErrLeaseLost):
			return failed("keep alive", k.lease.names(), err)
		case err != nil:
			next = k.lease.ttl / soon
		default:
			next = k.together(k.due(third))
		}
	}
}

// together is due, or a little earlier where another lease of the client is extended then, so that their
// extends are in one batch.
func (k keeper) together(due time.Duration) time.Duration {
	const little = 24 // of the TTL: an eighth of the time between two extends
	return k.lease.client.extends.join(due, k.lease.ttl/little)
}

// appointments are when leases of a client are to be extended.
type appointments struct {
	mu sync.Mutex
	at []time.Time
}

// join returns the time until the appointment that is at most early before due, or else makes one at due.
func (a *appointments) join(due, early time.Duration) time.Duration {
	now := time.Now()
	latest := now.Add(due)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.at = slices.DeleteFunc(a.at, func(at time.Time) bool { return at.Before(now) })
	for _, at := range a.at {
		if !at.After(latest) && latest.Sub(at) <= early {
			return at.Sub(now)
		}
	}
	a.at = append(a.at, latest)
	return due
}

// lost is why the lease is lost by the clock: because left is over.
func (k keeper) lost() error {
	switch {
	case k.left() > 0:
		return nil
	case k.lease.capped():
		return failed("keep alive", k.lease.names(), fmt.Errorf("%w: it has reached its maximum hold time (max_hold_ms, or FENCELOCK_MAX_HOLD)", ErrLeaseLost))
	}
	return failed("keep alive", k.lease.names(), fmt.Errorf("%w: it could not be extended in time", ErrLeaseLost))
}

// capped says that no extension makes the lease last longer: it has reached its
// longest hold.
func (l *Lease) capped() bool {
	left := l.Wire().MaxHoldRemainingMS
	return left != nil && time.Duration(*left)*time.Millisecond <= l.ttl
}

// left is the time until the work's context has to be cancelled.
func (k keeper) left() time.Duration { return k.lease.Validity() - k.margin }

// due is the time until a fraction of the TTL has passed since the lease's
// validity began, which may be some time ago.
func (k keeper) due(fraction time.Duration) time.Duration {
	return max(0, k.lease.Validity()-k.lease.ttl+k.lease.ttl/fraction)
}

// extend bounds each try so that every server can be asked twice before left ends.
func (k keeper) extend(ctx context.Context) error {
	left := k.left()
	if left <= 0 {
		return nil // run returns the error
	}
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	err := k.lease.extend(ctx, left/time.Duration(2*len(k.lease.client.servers))) //nolint:mnd // twice
	if err == nil && k.extended != nil {
		k.extended(k.lease)
	}
	return err
}

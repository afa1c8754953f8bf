package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// KeepAlive extends the lease at a third of its TTL until stop is called. The context that it returns is
// cancelled with the cause ErrLeaseLost when the lease is lost, or a margin before its validity ends. Its Err
// reads the clock, like that of Do's context.
//
// The end of ctx, and Close, cancel the context, too. But the lease is kept alive until stop is called, so that
// no other lease is granted while the work ends. stop waits for an extension that is under way. It does not
// release the lease, and may be called more than once.
func (l *Lease) KeepAlive(ctx context.Context, opts ...KeepOption) (working context.Context, stop func()) {
	return l.keepAlive(ctx, keepingOf(opts))
}

func (l *Lease) keepAlive(ctx context.Context, opts keeping) (working context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	if err := opts.check(); err != nil {
		cancel(failed("keep alive", l.names(), err))
		return ctx, func() {}
	}
	if err := l.client.enter(); err != nil {
		cancel(failed("keep alive", l.names(), err))
		return ctx, func() {}
	}
	keeping, end := context.WithCancel(context.WithoutCancel(ctx))
	unhookClosing := context.AfterFunc(l.client.life.closing, func() { cancel(ErrClosed) })
	unhookEnded := context.AfterFunc(l.client.life.ended, end)
	k := &keeper{lease: l, margin: opts.marginOf(l.ttl), extended: opts.extended}
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
	return min(k.margin, ttl/2) //nolint:mnd // less than two thirds of the TTL, so the first extension comes before the margin
}

// keeper keeps one lease alive: it extends it until it is stopped, or until the lease is lost.
//
// Invariant: the context of the work is cancelled before the lease's validity is down to the margin. Two
// readers of the clock ensure that. run sleeps no longer than until then. workContext.Err calls lost whenever
// the work looks, because a process that was paused looks before run's timer fires.
//
//	         200: due at a third of the TTL                 margin begins
//	        ┌──────┐                                 ┌───────────────────────► lost
//	        ▼      │        no response: again       │                          ▲
//	start ─► waiting ─────► extending ───────────────┤ 404 ─────────────────────┘
//	        ▲                  │  after ttl/20       │
//	        └──────────────────┘                     │ 409 max-hold-reached, or capped
//	                                                 ▼
//	stop, from any state ─► stopped               final ──── margin begins ───► lost
//
// In the final state no extension makes the lease last longer: the work continues until the margin,
// and nothing is sent. A 503, a broken connection, and a credential that fails are no response; the old
// validity still counts.
//
// The keeper doesn't own the lease's validity: Lease.renewed writes it after each grant and extension, also
// one that the work makes by hand. It doesn't release the lease either: session.exit does, or the caller of
// KeepAlive, after stop has waited for run.
type keeper struct {
	lease    *Lease
	margin   time.Duration // how long before the end of validity the work must stop; set by keepAlive, 0 to half the TTL
	extended func(*Lease)  // OnExtend, called by run; nil for none
	final    atomic.Bool   // the service refused to extend it any further; set by run, read by lost
}

// run returns nil when ctx ends, otherwise the reason why the lease is lost.
func (k *keeper) run(ctx context.Context) error {
	const third = 3
	const soon = 20 // retry soon, to survive a short outage
	next := k.together(k.due(third))
	for {
		if err := k.lost(); err != nil {
			return err
		}
		left := k.left()
		final := k.isFinal()
		if final {
			next = left
		}
		if sleep(ctx, min(next, left)) != nil {
			return nil //nolint:nilerr // stopped
		}
		if final {
			continue
		}
		err := k.extend(ctx)
		problem, refused := asType[*ProblemError](err)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // stopped
		case refused && problem.Kind() == "max-hold-reached":
			k.final.Store(true)
		case errors.Is(err, ErrLeaseLost):
			return failed("keep alive", k.lease.names(), err)
		case err != nil:
			next = k.lease.ttl / soon
		default:
			next = k.together(k.due(third))
		}
	}
}

// isFinal reports whether no extension makes the lease last longer.
func (k *keeper) isFinal() bool { return k.final.Load() || k.lease.capped() }

// together returns due, or a slightly shorter time at which the client extends another lease, so that one batch
// contains both extends.
func (k *keeper) together(due time.Duration) time.Duration {
	const little = 24 // a 24th of the TTL: an eighth of the time between two extends
	return k.lease.client.extends.join(due, k.lease.ttl/little)
}

// appointments are the times at which the client will extend leases.
type appointments struct {
	mu sync.Mutex
	at []time.Time
}

// join returns the time until an appointment that is due at the same time, or earlier by at most early. If there
// is none, it adds an appointment at due.
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

// lost returns why the lease is lost by the clock; nil if it is not.
func (k *keeper) lost() error {
	switch {
	case k.left() > 0:
		return nil
	case k.isFinal():
		return failed("keep alive", k.lease.names(), fmt.Errorf("%w: it has reached its maximum hold time (max_hold_ms, or FENCELOCK_MAX_HOLD)", ErrLeaseLost))
	}
	return failed("keep alive", k.lease.names(), fmt.Errorf("%w: it could not be extended in time", ErrLeaseLost))
}

// capped reports whether no extension makes the lease last longer, because it has reached its maximum hold
// time.
func (l *Lease) capped() bool {
	left := l.Wire().MaxHoldRemainingMS
	return left != nil && time.Duration(*left)*time.Millisecond <= l.ttl
}

// left returns the time until the work's context must be cancelled.
func (k *keeper) left() time.Duration { return k.lease.Validity() - k.margin }

// due returns the time until a fraction of the TTL has passed since the lease's validity began. The validity
// may have begun some time ago.
func (k *keeper) due(fraction time.Duration) time.Duration {
	return max(0, k.lease.Validity()-k.lease.ttl+k.lease.ttl/fraction)
}

// extend extends the lease. It bounds each try so that every server can be asked twice before the margin
// begins.
func (k *keeper) extend(ctx context.Context) error {
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

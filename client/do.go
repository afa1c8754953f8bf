package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// DoOptions tune Do.
type DoOptions struct {
	Request
	// Margin is how long before the end of validity the work is told to stop;
	// default a tenth of the TTL.
	Margin time.Duration
}

// Do runs work under a lease of the resource. It keeps the lease alive at a
// third of its TTL, and cancels the context that work gets, with the cause
// ErrLeaseLost, a margin before validity ends. Work should pass the context on
// and l.Token() to its storage. The lease is released when work returns, even
// if ctx has ended.
//
// Within work, a Do of the same resource under the context that work got joins
// the lease instead of waiting for itself.
//
// It returns work's error; ErrLeaseLost with it if the lease was lost
// meanwhile; and what Acquire returns if there was no lease.
func (c *Client) Do(ctx context.Context, resource string, opts DoOptions, work func(context.Context, *Lease) error) error {
	if outer, ok := ctx.Value(leaseKey{c, resource}).(*Lease); ok && outer.Validity() > 0 {
		return work(ctx, outer)
	}
	lease, err := c.Acquire(ctx, resource, opts.Request)
	if err != nil {
		return err
	}
	margin := opts.Margin
	if margin == 0 {
		const tenth = 10
		margin = lease.ttl / tenth
	}
	working, cancel := context.WithCancelCause(context.WithValue(ctx, leaseKey{c, resource}, lease))
	defer cancel(nil)
	var keeper sync.WaitGroup
	keeper.Go(func() { lease.keepAlive(working, margin, cancel) })
	err = work(working, lease)
	lost := context.Cause(working)
	cancel(nil)
	keeper.Wait()
	if released := lease.releaseAfter(ctx); errors.Is(released, ErrLeaseLost) && !errors.Is(lost, ErrLeaseLost) {
		lost = fmt.Errorf("%w: it had ended when it was released", ErrLeaseLost)
	}
	if errors.Is(lost, ErrLeaseLost) {
		return errors.Join(err, lost)
	}
	return err
}

type leaseKey struct {
	client   *Client
	resource string
}

// keepAlive extends the lease until ctx ends, and cancels it when the lease is
// lost or cannot be kept past its margin.
func (l *Lease) keepAlive(ctx context.Context, margin time.Duration, cancel context.CancelCauseFunc) {
	const third = 3
	next := l.ttl / third
	for {
		left := l.Validity() - margin
		if left <= 0 {
			cancel(fmt.Errorf("%w: it could not be extended in time", ErrLeaseLost))
			return
		}
		if sleep(ctx, min(next, left)) != nil {
			return
		}
		next = l.ttl / third
		extending, stop := context.WithTimeout(ctx, max(time.Millisecond, l.Validity()-margin))
		err := l.Extend(extending)
		stop()
		switch {
		case errors.Is(err, ErrLeaseLost):
			cancel(err)
			return
		case err != nil:
			const soon = 20 // a short outage is to be outlived
			next = l.ttl / soon
		}
	}
}

// releaseAfter releases with a deadline of its own: the caller's context may
// have ended, and nobody should wait for the TTL because of that.
func (l *Lease) releaseAfter(ctx context.Context) error {
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), l.client.timeout)
	defer cancel()
	return l.Release(releasing)
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

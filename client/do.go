package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// DoOptions tune DoWith.
type DoOptions struct {
	Request
	KeepOptions
}

// Do runs work under a lease of the resource, and waits for it for as long as it
// takes or ctx allows. It keeps the lease alive at a third of its TTL, and
// cancels the context that work gets, with the cause ErrLeaseLost, a margin
// before validity ends. Work should pass the context on and l.Token() to its
// storage. The lease is released when work returns, even if ctx has ended.
//
// Within work, a Do of the same resource under the context that work got joins
// the lease by a hold of its own instead of waiting for itself: the lease ends
// when the last of them has returned. The options of an inner DoWith do not count.
//
// It returns work's error; ErrLeaseLost with it if the lease was lost
// meanwhile; and what Acquire returns if there was no lease.
func (c *Client) Do(ctx context.Context, resource string, work func(context.Context, *Lease) error) error {
	return c.DoWith(ctx, resource, DoOptions{Request: Request{Wait: Forever}}, work)
}

// DoWith is Do with options. Its zero options do not wait for a resource that is
// held: they return ErrHeld.
func (c *Client) DoWith(ctx context.Context, resource string, opts DoOptions, work func(context.Context, *Lease) error) error {
	if s, ok := ctx.Value(sessionKey{c, resource}).(*session); ok && s.enter() {
		return s.join(ctx, work)
	}
	lease, err := c.Acquire(ctx, resource, opts.Request)
	if err != nil {
		return err
	}
	s := &session{lease: lease, holds: 1}
	s.kept, s.stop = lease.KeepAlive(context.WithoutCancel(ctx), opts.KeepOptions)
	return s.run(context.WithValue(ctx, sessionKey{c, resource}, s), lease, work)
}

type sessionKey struct {
	client   *Client
	resource string
}

// session is a lease that one Do took and others, inside it, may share. It is
// kept alive until the last of them has returned.
type session struct {
	lease *Lease
	kept  context.Context // ends with the cause ErrLeaseLost, or with the session
	stop  func()

	mu    sync.Mutex
	holds int // of this process
}

// enter counts one more Do in, unless the session is over.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds == 0 || s.kept.Err() != nil {
		return false
	}
	s.holds++
	return true
}

func (s *session) leave() {
	s.mu.Lock()
	s.holds--
	last := s.holds == 0
	s.mu.Unlock()
	if last {
		s.stop()
	}
}

// join runs the work of an inner Do, under a hold of its own: the lease outlives
// the outer Do if that returns first.
func (s *session) join(ctx context.Context, work func(context.Context, *Lease) error) error {
	held, err := s.lease.client.Join(ctx, s.lease.id)
	if err != nil {
		s.leave()
		return err
	}
	return s.run(ctx, held, work)
}

// run does the work and gives back the hold that it did it under, even if the
// work panics.
func (s *session) run(ctx context.Context, hold *Lease, work func(context.Context, *Lease) error) (err error) {
	working, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(s.kept, func() { cancel(context.Cause(s.kept)) }) //nolint:contextcheck // two contexts: the caller's, and the lease's
	defer func() {
		unhook()
		cancel(nil)
		lost := s.lost()
		s.leave()
		if lost = s.release(ctx, hold, lost); lost != nil && !errors.Is(err, ErrLeaseLost) {
			err = errors.Join(err, lost)
		}
	}()
	return work(working, s.lease)
}

func (s *session) lost() error { return context.Cause(s.kept) }

// release gives the hold back and returns how the lease was lost, if it was.
func (s *session) release(ctx context.Context, hold *Lease, lost error) error {
	err := hold.releaseAfter(ctx) // if nobody answers, its TTL ends it
	switch {
	case errors.Is(lost, ErrLeaseLost):
		return lost
	case hold.hold != "":
		// A node that lost the lock and got it back by an extend knows the
		// acquirer's own hold only. So this one's loss tells nothing of the lease.
		return nil
	case errors.Is(err, ErrLeaseLost):
		return fmt.Errorf("%w: it had ended when it was released", ErrLeaseLost)
	}
	return nil
}

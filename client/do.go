package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
// A Do nests: with the same Client, the same resource and a context that is the
// one work got, or derived from it, it joins the lease instead of waiting for
// itself. That sends no request.
//   - The inner work gets the same Lease, so the same token, TTL and validity.
//     The options of an inner DoWith are ignored.
//   - Any number of goroutines may join at once. The lease is released when the
//     last of them and the outer Do have returned, whichever that is. A Do after
//     that takes a lease of its own.
//   - Once the lease is lost, an inner Do returns ErrLeaseLost and does not run
//     its work, until all have returned.
//   - Another resource, one of the several of a DoAll, another Client, or a context
//     that is not derived from work's, does not join; nor does Acquire. They wait like any other caller,
//     for ever if work waits for them.
//
// It returns work's error; ErrLeaseLost with it if the lease was lost
// meanwhile; and what Acquire returns if there was no lease.
func (c *Client) Do(ctx context.Context, resource string, work func(context.Context, *Lease) error) error {
	return c.DoWith(ctx, resource, DoOptions{Request: Request{Wait: Forever}}, work)
}

// DoWith is Do with options. Its zero options do not wait for a resource that is
// held: they return ErrHeld.
func (c *Client) DoWith(ctx context.Context, resource string, opts DoOptions, work func(context.Context, *Lease) error) error {
	return c.DoAll(ctx, []string{resource}, opts, work)
}

// DoAll is DoWith under one lease of several resources, as AcquireAll takes it. It
// nests where the resources are the same, in any order.
func (c *Client) DoAll(ctx context.Context, resources []string, opts DoOptions, work func(context.Context, *Lease) error) error {
	key := sessionKey{c, strings.Join(slices.Sorted(slices.Values(resources)), "\x00")} // no resource has it in its name
	if s, ok := ctx.Value(key).(*session); ok && s.enter() {
		return s.run(ctx, work)
	}
	lease, err := c.AcquireAll(ctx, resources, opts.Request)
	if err != nil {
		return err
	}
	s := &session{lease: lease, inside: 1}
	s.kept, s.stop = lease.KeepAlive(context.WithoutCancel(ctx), opts.KeepOptions)
	return s.run(context.WithValue(ctx, key, s), work)
}

// sessionKey finds, in a context, the session that a Do of it may join.
type sessionKey struct {
	client    *Client
	resources string
}

// session is a lease that one Do took and that those nested in it share. It is
// kept alive, and released, by counting them.
type session struct {
	lease *Lease
	kept  context.Context // ends with the cause ErrLeaseLost, or with the session
	stop  func()

	mu     sync.Mutex
	inside int // calls of Do that have not returned
}

// enter counts one more Do in, unless the session is over.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inside == 0 {
		return false
	}
	s.inside++
	return true
}

// run does the work of a Do that was counted in, and counts it out, even if the
// work panics.
func (s *session) run(ctx context.Context, work func(context.Context, *Lease) error) (err error) {
	working, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(s.kept, func() { cancel(s.lost()) }) //nolint:contextcheck // two contexts: the caller's, and the lease's
	defer func() {
		unhook()
		cancel(nil)
		if lost := s.exit(ctx); lost != nil && !errors.Is(err, ErrLeaseLost) {
			err = errors.Join(err, lost)
		}
	}()
	switch {
	case s.lost() != nil:
		return s.lost()
	case ctx.Err() != nil: // as an Acquire would: whether work runs does not depend on the nesting
		return ctx.Err()
	}
	return work(working, s.lease)
}

// lost is why the lease is lost, nil if it is not. Only a Do that is counted in may
// call it: the end of the session looks the same.
func (s *session) lost() error { return context.Cause(s.kept) }

// exit counts a Do out, and ends the session with the last. It returns why the
// lease was lost, nil if it was not.
func (s *session) exit(ctx context.Context) error {
	lost := s.lost()
	s.mu.Lock()
	s.inside--
	last := s.inside == 0
	s.mu.Unlock()
	if !last {
		return lost
	}
	s.stop()
	err := s.lease.releaseAfter(ctx) // if no server answers, the TTL ends the lease
	if lost == nil && errors.Is(err, ErrLeaseLost) {
		return fmt.Errorf("%w: it had ended when it was released", ErrLeaseLost)
	}
	return lost
}

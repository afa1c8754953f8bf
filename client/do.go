package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
)

// Do runs work under a lease of the resource. It waits for the lease as long as Wait or
// ctx allows, keeps it alive at a third of its TTL, and cancels the context that work
// gets, with the cause ErrLeaseLost, a margin before validity ends. Work should pass the
// context on and l.Token() to its storage. The lease is released when work returns, even
// if ctx has ended.
//
// The Err of the context that work gets looks at the clock: it is not nil as soon as the
// margin has begun, also in a process that was stopped and has just continued. Its Done,
// and contexts that are derived from it, follow when the runtime has run a timer. The
// clock is Go's monotonic one, which on most systems stands still while the machine is
// suspended.
//
// A Do nests: with the same Client, the same resource and a context that is the
// one work got, or derived from it, it joins the lease instead of waiting for
// itself. That sends no request.
//   - The inner work gets the same Lease, so the same token, TTL and validity.
//     The options of the inner Do are ignored.
//   - Any number of goroutines may join at once. The lease is released when the
//     last of them and the outer Do have returned, whichever that is. A Do after
//     that takes a lease of its own.
//   - Once the lease is lost, an inner Do returns ErrLeaseLost and does not run
//     its work, until all have returned.
//   - Another resource, one of the several of a DoAll, a slot in place of the resource (Slots), another Client, or a context
//     that is not derived from work's, does not join; nor does Acquire.
//   - With work's context, what would wait for the outer lease (Acquire, some of the resources, another
//     Client of the same servers) returns ErrInvalid at once; with another context it waits like any other caller.
//
// It returns work's error; ErrLeaseLost with it if the lease was lost
// meanwhile; and what Acquire returns if there was no lease.
func (c *Client) Do(ctx context.Context, resource string, work func(context.Context, *Lease) error, opts ...DoOption) error {
	return c.DoAll(ctx, []string{resource}, work, opts...)
}

// TryDo is Do that does not wait in the queue: if the resource is held, it returns
// ErrHeld and does not run work. The option Wait changes nothing.
func (c *Client) TryDo(ctx context.Context, resource string, work func(context.Context, *Lease) error, opts ...DoOption) error {
	o := doOptionsOf(opts)
	o.wait = 0
	return c.doWork(ctx, []string{resource}, work, o)
}

// DoAll is Do under one lease of several resources, as AcquireAll takes it: Lease.Parts
// has the token of each. It nests where the resources are the same, in any order.
func (c *Client) DoAll(ctx context.Context, resources []string, work func(context.Context, *Lease) error, opts ...DoOption) error {
	return c.doWork(ctx, resources, work, doOptionsOf(opts))
}

func (c *Client) doWork(ctx context.Context, resources []string, work func(context.Context, *Lease) error, opts doOptions) error {
	key := sessionKey{c, strings.Join(slices.Sorted(slices.Values(resources)), "\x00"), opts.slots > 0} // no resource has it in its name
	if s, ok := ctx.Value(key).(*session); ok && s.enter() {
		return s.run(ctx, work)
	}
	if err := c.enter(); err != nil {
		return failed("acquire", strings.Join(resources, ", "), err)
	}
	lease, err := c.acquire(ctx, resources, opts.acquisition)
	if err != nil {
		c.leave()
		return err
	}
	s := &session{lease: lease, inside: 1} // exit calls leave
	s.kept, s.stop = lease.keepAlive(context.WithoutCancel(ctx), opts.keeping)
	ctx = context.WithValue(ctx, key, s)
	return s.run(context.WithValue(ctx, heldKey{}, &held{session: s, resources: resources, slots: opts.slots > 0, outer: heldIn(ctx)}), work)
}

// sessionKey finds, in a context, the session that a Do of it may join.
type sessionKey struct {
	client    *Client
	resources string
	slot      bool // of the resource, and not the resource itself
}

// held is what the Dos around a call have leases of: a list in the context.
type held struct {
	session   *session
	resources []string
	slots     bool
	outer     *held
}

type heldKey struct{}

func heldIn(ctx context.Context) *held {
	h, _ := ctx.Value(heldKey{}).(*held)
	return h
}

// checkOneself returns ErrInvalid if a Do around the caller holds one of the resources, so
// that a wait for it would be for the caller itself.
func (c *Client) checkOneself(ctx context.Context, resources []string, a acquisition) error {
	if a.wait <= 0 {
		return nil // the service says who holds it
	}
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.slots != (a.slots > 0) || h.session.ended() || !overlap(c.servers, h.session.lease.client.servers) || !overlap(h.resources, resources) {
			continue
		}
		return fmt.Errorf("%w: it would wait for itself: the Do around it holds %q; use that lease, or call Do of the same client with the same resources to join it", ErrInvalid, h.resources)
	}
	return nil
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
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

// ended reports whether the lease is over, or all have returned.
func (s *session) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside == 0 || context.Cause(s.kept) != nil
}

// run does the work of a Do that was counted in, and counts it out, even if the
// work panics.
func (s *session) run(ctx context.Context, work func(context.Context, *Lease) error) (err error) {
	inner, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(s.kept, func() { cancel(s.over()) }) //nolint:contextcheck // two contexts: the caller's, and the lease's
	defer func() {
		unhook()
		cancel(nil)
		if lost := s.exit(ctx); lost != nil && !errors.Is(err, ErrLeaseLost) {
			err = errors.Join(err, lost)
		}
	}()
	switch {
	case s.over() != nil:
		return s.over()
	case ctx.Err() != nil: // as an Acquire would: whether work runs does not depend on the nesting
		return failed("acquire", s.lease.names(), ctx.Err())
	}
	return work(workContext{inner, cancel, s.over}, s.lease) //nolint:contextcheck // it is inner, which is ctx
}

// over is why no work may run under the lease: it is lost, or the client is closed; nil
// if work may. Only a Do that is counted in may call it: the end of the session looks the
// same.
func (s *session) over() error { return context.Cause(s.kept) }

// exit counts a Do out, and ends the session with the last. It returns why the
// lease was lost, nil if it was not.
func (s *session) exit(ctx context.Context) error {
	lost := s.over()
	if !errors.Is(lost, ErrLeaseLost) {
		lost = nil
	}
	s.mu.Lock()
	s.inside--
	last := s.inside == 0
	s.mu.Unlock()
	if !last {
		return lost
	}
	s.stop()
	defer s.lease.client.leave()
	err := s.lease.releaseAfter(ctx) // if no server responds, the TTL ends the lease
	if lost == nil && errors.Is(err, ErrLeaseLost) {
		return failed("release", s.lease.names(), fmt.Errorf("%w: it had ended before", ErrLeaseLost))
	}
	return lost
}

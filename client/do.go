package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// Do runs work under a lease of the resource. It waits for the lease as long as Wait or
// ctx allows, keeps it alive at a third of its TTL, and cancels the context that work
// gets, with the cause ErrLeaseLost, a margin before validity ends. Work should pass the
// context on and l.Token() to its storage. The lease is released when work returns, even
// if ctx has ended. Do waits at most a second for that, and a quarter of a second if ctx has ended. After that
// the release continues in the background, and Close waits for it.
//
// The Err of the context that work gets reads the clock. It returns an error as soon as the margin has begun,
// even in a process that was paused and has just continued. Done, and contexts derived from this one, end a
// moment later, when the runtime has run a timer. The clock is Go's monotonic one, which on most systems stops
// while the machine is suspended.
//
// A Do nests: it joins the lease of an outer Do, without a request, if it has the same Client, the same
// resource, and the context that the outer work got, or a context derived from it. It would otherwise wait for
// itself.
//   - The inner work gets the same Lease, so the same token, TTL and validity.
//     The options of the inner Do are ignored.
//   - Any number of goroutines may join at once. The lease is released when the
//     outer Do and all that joined it have returned. A later Do takes a lease of
//     its own.
//   - After the lease is lost, and until all of them have returned, an inner Do
//     returns ErrLeaseLost and does not run its work.
//   - Within a slot (Slots), a Do of the same resource with Slots joins the slot, and so does a Do of the slot
//     by its name (Lease.Resource).
//   - These do not join: another resource, one of the several resources of a DoAll, the resource itself within
//     one of its slots, another Client, a context that is not derived from work's, and Acquire.
//   - With work's context, a call that would wait for the outer lease (Acquire, some of the resources, another
//     Client of the same servers) returns ErrInvalid at once. With another context it waits like any other
//     caller.
//
// Do returns work's error, joined with ErrLeaseLost if the lease was lost in the meantime. If there was no
// lease, it returns the error of Acquire.
func (c *Client) Do(ctx context.Context, resource string, work func(context.Context, *Lease) error, opts ...DoOption) error {
	return c.DoAll(ctx, []string{resource}, work, opts...)
}

// TryDo is Do without a wait in the queue: if the resource is held, it returns ErrHeld and does not run work.
// It ignores the option Wait. While no server can serve the call, it is repeated for a second, or for its
// Patience.
func (c *Client) TryDo(ctx context.Context, resource string, work func(context.Context, *Lease) error, opts ...DoOption) error {
	o := doOptionsOf(opts)
	o.wait = 0
	return c.doWork(ctx, []string{resource}, work, o)
}

// DoAll is Do under one lease of several resources, as AcquireAll takes it: Lease.Parts has the token of each.
// A DoAll of the same resources, in any order, joins it.
func (c *Client) DoAll(ctx context.Context, resources []string, work func(context.Context, *Lease) error, opts ...DoOption) error {
	return c.doWork(ctx, resources, work, doOptionsOf(opts))
}

func (c *Client) doWork(ctx context.Context, resources []string, work func(context.Context, *Lease) error, opts doOptions) error {
	key := sessionKey{c, strings.Join(slices.Sorted(slices.Values(resources)), "\x00"), opts.slots != nil} // no resource's name contains this character
	if s, ok := ctx.Value(key).(*session); ok && s.enter() {
		return s.run(ctx, work)
	}
	if err := opts.keeping.check(); err != nil {
		return failed("acquire", strings.Join(resources, ", "), err)
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
	if opts.slots != nil { // a Do of the slot by its name joins, too
		ctx = context.WithValue(ctx, sessionKey{c, lease.Resource(), false}, s)
	}
	return s.run(context.WithValue(ctx, heldKey{}, &held{session: s, outer: heldIn(ctx)}), work)
}

// sessionKey finds, in a context, the session that a Do may join.
type sessionKey struct {
	client    *Client
	resources string
	slot      bool // the session is of a slot of the resource, not of the resource itself
}

// held is a list, stored in the context, of the sessions of all Dos around a call.
type held struct {
	session *session
	outer   *held
}

type heldKey struct{}

func heldIn(ctx context.Context) *held {
	h, _ := ctx.Value(heldKey{}).(*held)
	return h
}

// checkOneself returns ErrInvalid if a Do around the caller holds one of the resources, or if Dos hold all of
// the slots, because the caller would then wait for itself.
func (c *Client) checkOneself(ctx context.Context, resources []string, a acquisition) error {
	if a.wait <= 0 {
		return nil // a call without a wait may be sent: the service responds that the resource is held
	}
	mine := make(map[string]bool)
	for h := heldIn(ctx); h != nil; h = h.outer {
		if h.session.ended() || !overlap(c.servers, h.session.lease.client.servers) {
			continue
		}
		for _, p := range h.session.lease.Parts() {
			mine[p.Resource] = true
		}
	}
	waits := slices.ContainsFunc(resources, func(name string) bool { return mine[name] })
	if a.slots != nil {
		waits = !slices.ContainsFunc(slotNames(resources[0], *a.slots), func(name string) bool { return !mine[name] })
	}
	if !waits {
		return nil
	}
	return fmt.Errorf("%w: it would wait for itself: a Do around it holds %q; use that lease, or call Do of the same client with the same resources to join it",
		ErrInvalid, slices.Sorted(maps.Keys(mine)))
}

// slotNames returns the names of the resource's slots, which are resources themselves.
func slotNames(resource string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s#slot%d", resource, i+1)
	}
	return names
}

func overlap(a, b []string) bool {
	return slices.ContainsFunc(a, func(s string) bool { return slices.Contains(b, s) })
}

// session is a lease that one Do took and that the Dos nested in it share. The lease is kept alive until the
// last of them has returned, and is then released.
type session struct {
	lease *Lease
	kept  context.Context // ends with the cause ErrLeaseLost, or with the session
	stop  func()

	mu     sync.Mutex
	inside int // the number of Dos that have not returned
}

// enter counts one more Do, unless the session is over.
func (s *session) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inside == 0 {
		return false
	}
	s.inside++
	return true
}

// ended reports whether the lease is over, or all Dos have returned.
func (s *session) ended() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.inside == 0 || context.Cause(s.kept) != nil
}

// run does the work of a Do that was counted by enter, and calls exit even if the work panics.
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
	case ctx.Err() != nil: // like an Acquire: whether work runs does not depend on nesting
		return failed("acquire", s.lease.names(), ctx.Err())
	}
	return work(workContext{inner, cancel, s.over}, s.lease) //nolint:contextcheck // it is inner, which is ctx
}

// over returns why no work may run under the lease: the lease is lost, or the client is closed. It returns nil
// if work may run. Only a Do that is counted may call it, because it cannot tell the end of the session from a
// loss.
func (s *session) over() error { return context.Cause(s.kept) }

// exit records that a Do has returned, and ends the session after the last. It returns why the lease was lost, nil
// if it was not.
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

package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

// currentLease is the path of the lease whose id is in the Fencelock-Lease header.
const currentLease = "/leases/current"

// Lease is a lease that this process holds. It is safe for concurrent use.
type Lease struct {
	client *Client
	id     secret
	ttl    time.Duration
	last   atomic.Pointer[grant] // a pointer, so that printing the struct does not show the lease id
}

// grant is the service's last response.
type grant struct {
	lease wire.Lease
	until time.Time // the end of validity, on the monotonic clock
}

// granted returns the last grant, or the zero grant before the first response.
func (l *Lease) granted() grant {
	if g := l.last.Load(); g != nil {
		return *g
	}
	return grant{}
}

// Acquire takes a lease, and waits for it as long as Wait or ctx allows. Errors: ErrHeld (a *ProblemError that
// names the holder), ErrUnavailable, ErrDenied, ErrInvalid, ErrClosed, a *ProblemError for anything else, or
// ctx's error. If a deadline of ctx ends the wait, the error matches context.DeadlineExceeded and also what the
// call waited for, ErrHeld or ErrUnavailable. Acquire may be repeated. If a response is lost, the client sends
// the request again with the same idempotency key, and finds its own lease. If a call is cancelled, the client
// releases in the background what was granted.
//
// A wait is a series of requests (WithPoll), which keep the place in the queue.
//
// The caller keeps the lease alive (KeepAlive, or Extend) and releases it; Do
// does both.
func (c *Client) Acquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	return c.AcquireAll(ctx, []string{resource}, opts...)
}

// TryAcquire is Acquire without a wait in the queue: if the resource is held, it returns ErrHeld. It ignores
// the option Wait.
func (c *Client) TryAcquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	a := acquisitionOf(opts)
	a.wait = 0
	return c.acquire(ctx, []string{resource}, a)
}

// AcquireAll takes one lease of several resources, all or none: 2 to 16 different ones, in any order.
// Lease.Parts has the token of each. Everything else is as for one resource; with one resource AcquireAll is
// Acquire. ErrHeld names the resource that is held.
//
// Callers that name the same resources in different orders do not block each other
// for ever; a caller that holds one of them already waits for itself.
func (c *Client) AcquireAll(ctx context.Context, resources []string, opts ...AcquireOption) (*Lease, error) {
	return c.acquire(ctx, resources, acquisitionOf(opts))
}

func (c *Client) acquire(ctx context.Context, resources []string, a acquisition) (*Lease, error) {
	lease, err := c.tryToAcquire(ctx, resources, a)
	return lease, failed("acquire", strings.Join(resources, ", "), err)
}

// tryToAcquire is acquire, but ends when the client is closed.
func (c *Client) tryToAcquire(ctx context.Context, resources []string, a acquisition) (*Lease, error) {
	if err := c.enter(); err != nil {
		return nil, err
	}
	defer c.leave()
	a.holder = cmp.Or(a.holder, c.holder)
	if err := a.check(resources); err != nil {
		return nil, err
	}
	if err := c.checkOneself(ctx, resources, a); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(c.life.closing, func() { cancel(ErrClosed) })() //nolint:contextcheck // two contexts: the caller's, and the client's
	lease, err := c.granted(ctx, resources, a)
	if err != nil && errors.Is(context.Cause(ctx), ErrClosed) {
		return nil, ErrClosed
	}
	return lease, err
}

// granted requests a lease until it is granted or finally refused, or until a second after the end of the wait.
// If a grant has expired when it arrives, because this process was paused or the response was late, the client
// requests it again while the wait lasts.
func (c *Client) granted(ctx context.Context, resources []string, a acquisition) (*Lease, error) {
	for begun := time.Now(); ; {
		lease, err := c.grantedOnce(ctx, resources, a, begun)
		if err != nil || lease.Validity() > 0 {
			return lease, err
		}
		_ = lease.releaseAfter(ctx)
		if time.Since(begun) >= a.wait {
			return nil, fmt.Errorf("%w: the lease expired before the response arrived; a longer TTL may help", ErrUnavailable)
		}
	}
}

func (c *Client) grantedOnce(ctx context.Context, resources []string, a acquisition, begun time.Time) (*Lease, error) {
	key := rand.Text()
	acquire := a.call(resources, key)
	if a.wait < century {
		acquire.deadline = begun.Add(a.longest() + grace)
	}
	if a.wait > 0 {
		acquire.waitUntil = begun.Add(min(a.wait, century))
	}
	end, limited := ctx.Deadline()
	if limited {
		end = end.Add(-c.pace.answerTime(time.Until(end)))
		limited = end.Before(acquire.waitUntil)
	}
	if limited {
		acquire.waitUntil = end
	}
	var granted wire.Lease
	acquire.into = &granted
	sent, ambiguous, err := c.try(ctx, &acquire)
	if limited && errors.Is(err, ErrHeld) && ctx.Err() == nil { // the caller's deadline ended the wait
		<-ctx.Done()
		err = fmt.Errorf("%w: %w", err, cause(ctx))
	}
	abandon := func(ctx context.Context) { c.abandon(ctx, resources, a.slots, key) }
	if len(acquire.late) > 0 {
		c.background(ctx, abandonTime, func(ctx context.Context) { c.endLate(ctx, acquire.late, granted, abandon) })
	}
	if err != nil {
		if ambiguous {
			c.background(ctx, abandonTime, abandon)
		}
		return nil, err
	}
	return c.newLease(granted, sent), nil
}

// century is a wait without an end. A longer one would overflow time.Time.
const century = 100 * 365 * 24 * time.Hour

// longest returns how long the call may take: its wait, or its patience if that is longer.
func (a acquisition) longest() time.Duration {
	if a.patience == nil {
		return a.wait
	}
	return max(a.wait, min(*a.patience, century))
}

func (a acquisition) call(resources []string, key string) call {
	body := wire.AcquireRequest{
		Resources: resources, Slots: a.semaphore(), Holder: a.holder, Metadata: a.metadata,
		TTLMS: millis(a.ttl), MinHoldMS: millis(a.minHold), MaxHoldMS: millis(a.maxHold),
	}
	if len(resources) == 1 {
		body.Resource, body.Resources = resources[0], nil
	}
	return call{method: http.MethodPost, path: locksPath, resource: strings.Join(resources, ", "), key: key, patience: a.patience, body: func(wait time.Duration) any {
		body.WaitMS = millis(wait)
		return body
	}}
}

// abandon ends everything that an abandoned request may have at the service: its lease, which would otherwise
// hold the resource until its TTL ends, and its place in the queue.
func (c *Client) abandon(ctx context.Context, resources []string, slots *int, key string) {
	cancel := acquisition{slots: slots}.call(resources, key)
	cancel.path, cancel.quiet, cancel.owed = cancelPath, true, true
	_, _ = c.do(ctx, cancel) // if no server does it, the lease ends with its TTL
}

func (c *Client) newLease(granted wire.Lease, sent time.Time) *Lease {
	l := &Lease{client: c, id: hide(granted.LeaseID), ttl: time.Duration(granted.TTLMS) * time.Millisecond}
	l.renewed(sent, granted)
	return l
}

// Extend restarts the TTL of a lease by its lease id, for leases that another process acquired. With a ttl of 0
// the lease keeps its last TTL. Errors as for Lease.Extend. An extend never shortens a lease.
func (c *Client) Extend(ctx context.Context, leaseID string, ttl time.Duration) (*Lease, error) {
	if err := (acquisition{ttl: ttl}).checkTimes(); err != nil {
		return nil, failed("extend", "", err)
	}
	l := &Lease{client: c, id: hide(leaseID), ttl: ttl}
	if err := l.Extend(ctx); err != nil {
		return nil, err
	}
	l.ttl = time.Duration(l.granted().lease.TTLMS) * time.Millisecond
	return l, nil
}

// Release releases a lease by its lease id. Errors as for Lease.Release.
func (c *Client) Release(ctx context.Context, leaseID string) error {
	return (&Lease{client: c, id: hide(leaseID)}).Release(ctx)
}

// Lease looks up a live lease by its lease id, for a process that works under a lease which another process
// acquired. It changes nothing at the service. The caller may keep the lease alive, but should leave its
// release to the process that acquired it. Errors: ErrLeaseLost (it has ended), ErrUnavailable (safe to
// repeat), or another *ProblemError.
func (c *Client) Lease(ctx context.Context, leaseID string) (*Lease, error) {
	l := &Lease{client: c, id: hide(leaseID)}
	if err := l.refresh(ctx); err != nil {
		return nil, failed("look up", "", err)
	}
	l.ttl = time.Duration(l.granted().lease.TTLMS) * time.Millisecond
	return l, nil
}

func millis(d time.Duration) *int64 {
	if d == 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

// renewed records the validity in a response. The validity counts from when the request was sent, plus the time
// that the request waited in the queue according to the service. Counting from the response would be unsafe,
// because this process may have been paused before it read the response.
func (l *Lease) renewed(sent time.Time, granted wire.Lease) {
	until := sent.Add(time.Duration(granted.WaitedMS+granted.ValidityMS) * time.Millisecond)
	l.last.Store(&grant{granted, until})
}

// refresh asks the service how long the lease is still valid.
func (l *Lease) refresh(ctx context.Context) error {
	var now wire.Lease
	sent, err := l.client.do(ctx, call{method: http.MethodGet, path: currentLease, lease: l.id.reveal(), into: &now})
	if err == nil {
		l.renewed(sent, now)
	}
	return err
}

// Resource returns the lease's resource: with Slots the name of the slot; "" for a lease of several resources,
// see Parts.
func (l *Lease) Resource() string { return l.Wire().Resource }

// Slot returns the number of the slot, from 1, for a lease that was acquired with Slots; otherwise 0.
func (l *Lease) Slot() int { return l.Wire().Slot }

// ID is the lease id, the capability of the lease. It is a secret.
func (l *Lease) ID() string { return l.id.reveal() }

// Token returns the fencing token, which stays the same for the whole life of the lease; 0 for a lease of
// several resources, see Parts.
func (l *Lease) Token() fencing.Token { return fencing.Token(l.Wire().FencingToken) }

// Proof returns the fencing_proof of the lease's token, for guards that require one. It is "" if the service
// makes no proofs (FENCELOCK_PROOF_KEY_FILE), and for a lease of several resources, see Parts.
func (l *Lease) Proof() string { return l.granted().lease.FencingProof }

// Part is one resource of a lease.
type Part struct {
	Resource string
	Token    fencing.Token // the same for the whole life of the lease
	proof    secret
}

// Proof is the fencing_proof of the token, as Lease.Proof.
func (p Part) Proof() string { return p.proof.reveal() }

// Parts returns the resources of the lease, each with its token, in the order of their names. A lease of one
// resource has one part.
func (l *Lease) Parts() []Part {
	now := l.Wire()
	if len(now.Resources) == 0 {
		return []Part{{now.Resource, fencing.Token(now.FencingToken), hide(now.FencingProof)}}
	}
	parts := make([]Part, len(now.Resources))
	for i, p := range now.Resources {
		parts[i] = Part{p.Resource, fencing.Token(p.FencingToken), hide(p.FencingProof)}
	}
	return parts
}

// Claims returns the Parts in the form that a guard needs. With this method a lease is a fencing.Lease:
//
//	pgguard.Do(ctx, pool, lease, func(tx pgx.Tx) error { … })
func (l *Lease) Claims() []fencing.Claim {
	parts := l.Parts()
	claims := make([]fencing.Claim, len(parts))
	for i, p := range parts {
		claims[i] = fencing.Claim{Resource: p.Resource, Token: p.Token, Proof: p.Proof()}
	}
	return claims
}

// names returns the resources of the lease, for errors; "" before they are known.
func (l *Lease) names() string {
	var names []string
	for _, p := range l.Parts() {
		names = append(names, p.Resource)
	}
	return strings.Join(names, ", ")
}

// TTL returns the lease's time to live. Every Extend restarts it.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Until returns the end of the lease's validity, on this process's monotonic clock, counted from before the
// last successful request was sent. After it, another lease may hold the resource.
func (l *Lease) Until() time.Time { return l.granted().until }

// Validity returns how long the lease is certainly still held; 0 if it may be over.
func (l *Lease) Validity() time.Duration { return max(0, time.Until(l.Until())) }

// Wire returns the lease as the service shows it to its holder, with the present validity. It contains the
// lease id, which is a secret.
func (l *Lease) Wire() wire.Lease {
	now := l.granted()
	now.lease.WaitedMS, now.lease.ValidityMS = 0, max(0, time.Until(now.until).Milliseconds())
	return now.lease
}

// Extend restarts the lease's TTL. Errors: ErrLeaseLost (final), ErrUnavailable (the lease keeps its old
// validity; safe to repeat).
func (l *Lease) Extend(ctx context.Context) error {
	return failed("extend", l.names(), l.extend(ctx, 0))
}

func (l *Lease) extend(ctx context.Context, attempt time.Duration) error {
	var granted wire.Lease
	sent, err := l.client.do(ctx, call{
		method: http.MethodPost, path: currentLease + "/extend", lease: l.id.reveal(), into: &granted, attempt: attempt,
		body: func(time.Duration) any { return wire.ExtendRequest{TTLMS: millis(l.ttl)} },
	})
	if err == nil {
		l.renewed(sent, granted)
	}
	return err
}

// Release releases the lease. Errors: ErrLeaseLost means that it had ended before. ErrUnavailable means that it
// may not have been released: repeating is safe, and the lease ends with its TTL in any case.
func (l *Lease) Release(ctx context.Context) error {
	return l.release(ctx, time.Time{})
}

func (l *Lease) release(ctx context.Context, deadline time.Time) error {
	_, err := l.client.do(ctx, call{method: http.MethodDelete, path: currentLease, lease: l.id.reveal(), deadline: deadline, owed: !deadline.IsZero()})
	return failed("release", l.names(), err)
}

// releaseAfter releases the lease after work, even if ctx has ended, because an unreleased lease blocks the
// resource for the TTL. The release continues in the background for up to abandonTime, and Close waits for it.
// The caller waits a second for the release, or a moment after the end of ctx; if it has not finished by then,
// releaseAfter returns nil.
func (l *Lease) releaseAfter(ctx context.Context) error {
	done := make(chan error, 1)
	l.client.background(ctx, abandonTime, func(ctx context.Context) { done <- l.release(ctx, time.Now().Add(abandonTime)) })
	limit := time.NewTimer(grace)
	defer limit.Stop()
	for ended := ctx.Done(); ; {
		select {
		case err := <-done:
			return err
		case <-limit.C:
			return nil
		case <-ended:
			ended = nil
			limit.Reset(afterEnd)
		}
	}
}

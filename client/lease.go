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

// currentLease is the path of the lease whose id is in the header Fencelock-Lease.
const currentLease = "/leases/current"

// Lease is a lease that this process holds. It is safe for concurrent use.
type Lease struct {
	client *Client
	id     secret
	ttl    time.Duration
	last   atomic.Pointer[grant] // behind a pointer, it cannot be printed either
}

// grant is the service's last answer.
type grant struct {
	lease wire.Lease
	until time.Time // the end of validity, on the monotonic clock
}

// granted is the zero grant before the first answer.
func (l *Lease) granted() grant {
	if g := l.last.Load(); g != nil {
		return *g
	}
	return grant{}
}

// Acquire takes a lease, and waits for it as long as Wait or ctx allows. Errors: ErrHeld
// (a *ProblemError that names the holder), ErrUnavailable, ErrDenied, ErrInvalid,
// ErrClosed, a *ProblemError for anything else, or ctx's. It may be repeated: a request
// whose answer was lost is sent again with the same idempotency key and finds its own
// lease, and what a cancelled one was granted is released in the background.
//
// A wait is a series of requests (WithPoll), which keep the place in the queue.
//
// The caller keeps the lease alive (KeepAlive, or Extend) and releases it; Do
// does both.
func (c *Client) Acquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	return c.AcquireAll(ctx, []string{resource}, opts...)
}

// TryAcquire is Acquire that does not wait in the queue: if the resource is held, it
// returns ErrHeld. The option Wait changes nothing.
func (c *Client) TryAcquire(ctx context.Context, resource string, opts ...AcquireOption) (*Lease, error) {
	a := acquisitionOf(opts)
	a.wait = 0
	return c.acquire(ctx, []string{resource}, a)
}

// AcquireAll takes one lease of several resources, all or none: 2 to 16 different
// ones, in any order. Lease.Parts has the token of each; the rest is as for one
// resource. ErrHeld names the resource in the way. With one resource it is Acquire.
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

// tryToAcquire is acquire until the client is closed.
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

// granted asks for a lease until it is granted or refused for good, or a second after the
// wait is over. A grant that is over when it comes, since this process was paused or the
// answer was late, is asked for again while the wait lasts.
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
		acquire.deadline = begun.Add(a.wait + grace)
	}
	if a.wait > 0 {
		acquire.waitUntil = begun.Add(min(a.wait, century))
	}
	var granted wire.Lease
	acquire.into = &granted
	sent, ambiguous, err := c.try(ctx, &acquire)
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

// century is a wait without an end: later than that, time.Time would overflow.
const century = 100 * 365 * 24 * time.Hour

func (a acquisition) call(resources []string, key string) call {
	body := wire.AcquireRequest{
		Resources: resources, Slots: a.slots, Holder: a.holder, Metadata: a.metadata,
		TTLMS: millis(a.ttl), MinHoldMS: millis(a.minHold), MaxHoldMS: millis(a.maxHold),
	}
	if len(resources) == 1 {
		body.Resource, body.Resources = resources[0], nil
	}
	return call{method: http.MethodPost, path: locksPath, resource: strings.Join(resources, ", "), key: key, body: func(wait time.Duration) any {
		body.WaitMS = millis(wait)
		return body
	}}
}

// abandon ends all that a request that was given up may have: its lease, which would
// otherwise block the resource until its TTL ends, and its place in the queue.
func (c *Client) abandon(ctx context.Context, resources []string, slots int, key string) {
	cancel := acquisition{slots: slots}.call(resources, key)
	cancel.path, cancel.quiet = cancelPath, true
	_, _ = c.do(ctx, cancel) // if no server does it, the TTL ends the lease
}

func (c *Client) newLease(granted wire.Lease, sent time.Time) *Lease {
	l := &Lease{client: c, id: hide(granted.LeaseID), ttl: time.Duration(granted.TTLMS) * time.Millisecond}
	l.renewed(sent, granted)
	return l
}

// Extend gives a lease its TTL again by its lease id, for leases that another
// process acquired. A ttl of 0 gives the lease its own TTL again. Errors as for Lease.Extend.
// An extend never shortens a lease.
func (c *Client) Extend(ctx context.Context, leaseID string, ttl time.Duration) (*Lease, error) {
	if err := checkMillis(ttl); err != nil {
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

// Lease looks up a live lease by its lease id, for a process that works under a
// lease which another process acquired. It changes nothing at the service. The
// caller may keep the lease alive, and leaves it to the acquirer to release it.
// Errors: ErrLeaseLost (it has ended), ErrUnavailable (safe to repeat), or
// another *ProblemError.
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

// renewed notes the validity that an answer gives, counted from when its request was
// sent and, after a wait in the queue, so much later as the service says it waited.
// Counting from the answer would be unsafe: this process may have been paused since.
func (l *Lease) renewed(sent time.Time, granted wire.Lease) {
	until := sent.Add(time.Duration(granted.WaitedMS+granted.ValidityMS) * time.Millisecond)
	l.last.Store(&grant{granted, until})
}

// refresh asks how long the lease is valid still.
func (l *Lease) refresh(ctx context.Context) error {
	var now wire.Lease
	sent, err := l.client.do(ctx, call{method: http.MethodGet, path: currentLease, lease: l.id.reveal(), into: &now})
	if err == nil {
		l.renewed(sent, now)
	}
	return err
}

// Resource is what the lease is of: with Slots the name of the slot; "" for a lease of
// several resources, see Parts.
func (l *Lease) Resource() string { return l.Wire().Resource }

// Slot is the number of the slot, from 1, of a lease that was acquired with Slots; 0 for
// any other.
func (l *Lease) Slot() int { return l.Wire().Slot }

// ID is the lease id, the capability of the lease. It is a secret.
func (l *Lease) ID() string { return l.id.reveal() }

// Token is the fencing token, the same for the whole life of the lease; 0 for a
// lease of several resources, see Parts.
func (l *Lease) Token() fencing.Token { return fencing.Token(l.Wire().FencingToken) }

// Proof is the fencing_proof of the lease's token, for guards that demand one; ""
// if the service makes none (FENCELOCK_PROOF_KEY_FILE), and for a lease of several
// resources, see Parts.
func (l *Lease) Proof() string { return l.granted().lease.FencingProof }

// Part is one resource of a lease.
type Part struct {
	Resource string
	Token    fencing.Token // the same for the whole life of the lease
	proof    secret
}

// Proof is the fencing_proof of the token, as Lease.Proof.
func (p Part) Proof() string { return p.proof.reveal() }

// Parts are the resources of the lease, with a token each, in the order of their
// names: one for a lease of one resource.
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

// Claims are the Parts for a guard, which makes the lease a fencing.Lease:
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

// names are the resources of the lease, for errors; "" before they are known.
func (l *Lease) names() string {
	var names []string
	for _, p := range l.Parts() {
		names = append(names, p.Resource)
	}
	return strings.Join(names, ", ")
}

// TTL is the lease's time to live, which every Extend gives it again.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Until is the end of the lease's validity, on this process's monotonic clock: counted
// from before the last request that succeeded. From then on another lease may hold
// the resource.
func (l *Lease) Until() time.Time { return l.granted().until }

// Validity is how long the lease is still sure to hold; 0 when it may be over.
func (l *Lease) Validity() time.Duration { return max(0, time.Until(l.Until())) }

// Wire is the lease as the service shows it to its holder, with the validity as
// of now. The lease id in it is a secret.
func (l *Lease) Wire() wire.Lease {
	now := l.granted()
	now.lease.WaitedMS, now.lease.ValidityMS = 0, max(0, time.Until(now.until).Milliseconds())
	return now.lease
}

// Extend gives the lease its TTL again. Errors: ErrLeaseLost (final),
// ErrUnavailable (the lease keeps its old validity; safe to repeat).
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

// Release releases the lease. Errors:
// ErrLeaseLost: it had ended before. ErrUnavailable: it may not have been
// released; safe to repeat, and it ends with its TTL in any case.
func (l *Lease) Release(ctx context.Context) error {
	return l.release(ctx, time.Time{})
}

func (l *Lease) release(ctx context.Context, deadline time.Time) error {
	_, err := l.client.do(ctx, call{method: http.MethodDelete, path: currentLease, lease: l.id.reveal(), deadline: deadline})
	return failed("release", l.names(), err)
}

// releaseAfter releases with a time limit of its own: the caller's context may have
// ended, and that should not block the resource for the TTL. What no server has answered
// within a second is done in the background; if none responds at all, the TTL ends the lease.
func (l *Lease) releaseAfter(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	err := l.release(ctx, time.Now().Add(grace))
	if errors.Is(err, ErrUnavailable) {
		l.client.background(ctx, abandonTime, func(ctx context.Context) { _ = l.release(ctx, time.Now().Add(abandonTime)) })
	}
	return err
}

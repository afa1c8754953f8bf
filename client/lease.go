package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

// currentLease is the path of the lease whose id is in the header Fencelock-Lease.
const currentLease = "/leases/current"

// Forever is a Wait without an end.
const Forever time.Duration = math.MaxInt64

// Request describes what to acquire. The zero value of a field leaves it to
// the service.
type Request struct {
	TTL time.Duration // whole milliseconds
	// Wait is how long to wait in the queue; 0 tries once, Forever does not end.
	// The place in the queue is kept for ten minutes, which is as long as the service
	// lets a request wait, and then taken again.
	Wait time.Duration
	// MinHold keeps the resource taken for so long from the grant, though the lease is
	// released before: at most TTL. A job that is shorter than the clocks of the hosts
	// differ then runs once. A holder that dies frees the resource with the TTL.
	MinHold time.Duration
	// MaxHold ends extensions so long after the grant: at least TTL, and not more than
	// the service's FENCELOCK_MAX_HOLD. 0 leaves it to the service.
	MaxHold  time.Duration
	Holder   string // public label; default the client's
	Metadata json.RawMessage
}

// Lease is a lease that this process holds. It is safe for concurrent use.
type Lease struct {
	client *Client
	id     string
	ttl    time.Duration

	mu    sync.Mutex
	last  wire.Lease // the service's last answer
	until time.Time  // the end of validity, on the monotonic clock
}

// Acquire takes a lease. Errors: ErrHeld (a *ProblemError that names the
// holder), ErrUnavailable, ErrDenied, a *ProblemError for anything else, or ctx's. It
// may be repeated: a request whose answer was lost is sent again with the same
// idempotency key and finds its own lease, and what a cancelled one was granted
// is released.
//
// The caller keeps the lease alive (KeepAlive, or Extend) and releases it; Do
// does both.
func (c *Client) Acquire(ctx context.Context, resource string, r Request) (*Lease, error) {
	return c.AcquireAll(ctx, []string{resource}, r)
}

// AcquireAll takes one lease of several resources, all or none: 2 to 16 different
// ones, in any order. Lease.Parts has the token of each; the rest is as for one
// resource. ErrHeld names the resource in the way. With one resource it is Acquire.
//
// Callers that name the same resources in different orders do not block each other
// for ever; a caller that holds one of them already waits for itself.
func (c *Client) AcquireAll(ctx context.Context, resources []string, r Request) (*Lease, error) {
	key := rand.Text()
	acquire := c.acquireCall(resources, r, key)
	var granted wire.Lease
	acquire.into = &granted
	for {
		sent, err := c.do(ctx, acquire)
		switch {
		case err == nil:
			return c.delivered(ctx, granted, sent)
		case ctx.Err() != nil:
			c.abandon(ctx, resources, key)
			return nil, err
		case !errors.Is(err, ErrHeld) || time.Until(acquire.waitUntil) <= 0 || sleep(ctx, firstPause) != nil:
			return nil, err
		}
		// The service lets no request wait for longer at a time.
	}
}

func (c *Client) acquireCall(resources []string, r Request, key string) call {
	body := wire.AcquireRequest{
		Resources: resources, Holder: cmp.Or(r.Holder, c.holder), Metadata: r.Metadata,
		TTLMS: millis(r.TTL), MinHoldMS: millis(r.MinHold), MaxHoldMS: millis(r.MaxHold),
	}
	if len(resources) == 1 {
		body.Resource, body.Resources = resources[0], nil
	}
	acquire := call{method: http.MethodPost, path: "/locks", key: key, body: func(wait time.Duration) any {
		body.WaitMS = millis(wait)
		return body
	}}
	if r.Wait > 0 {
		const century = 100 * 365 * 24 * time.Hour // later than that, time.Time would overflow
		acquire.waitUntil = time.Now().Add(min(r.Wait, century))
	}
	return acquire
}

// delivered makes a Lease of a grant, unless it came too late.
func (c *Client) delivered(ctx context.Context, granted wire.Lease, sent time.Time) (*Lease, error) {
	l := c.newLease(granted, sent)
	if l.Validity() > 0 {
		return l, nil
	}
	_ = l.releaseAfter(ctx)
	return nil, fmt.Errorf("%w: the grant arrived when it was over; a longer TTL may help", ErrUnavailable)
}

// abandon releases what a cancelled request may have been granted: it is found under
// the key, and would otherwise block the resource until its TTL ends.
func (c *Client) abandon(ctx context.Context, resources []string, key string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTime)
	defer cancel()
	found := c.acquireCall(resources, Request{}, key)
	var granted wire.Lease
	found.into = &granted
	if sent, err := c.do(ctx, found); err == nil {
		_ = c.newLease(granted, sent).Release(ctx) // else its TTL ends it
	}
}

func (c *Client) newLease(granted wire.Lease, sent time.Time) *Lease {
	l := &Lease{client: c, id: granted.LeaseID, ttl: time.Duration(granted.TTLMS) * time.Millisecond}
	l.renewed(sent, granted)
	return l
}

// Extend gives a lease its TTL again by its lease id, for leases that another
// process acquired. A ttl of 0 gives the lease its own TTL again. Errors as for Lease.Extend.
// An extend never shortens a lease.
func (c *Client) Extend(ctx context.Context, leaseID string, ttl time.Duration) (*Lease, error) {
	l := &Lease{client: c, id: leaseID, ttl: ttl}
	if err := l.Extend(ctx); err != nil {
		return nil, err
	}
	l.ttl = time.Duration(l.last.TTLMS) * time.Millisecond
	return l, nil
}

// Release releases a lease by its lease id. Errors as for Lease.Release.
func (c *Client) Release(ctx context.Context, leaseID string) error {
	return (&Lease{client: c, id: leaseID}).Release(ctx)
}

// Lease looks up a live lease by its lease id, for a process that works under a
// lease which another process acquired. It changes nothing at the service. The
// caller may keep the lease alive, and leaves it to the acquirer to release it.
// Errors: ErrLeaseLost (it has ended), ErrUnavailable (safe to repeat), or
// another *ProblemError.
func (c *Client) Lease(ctx context.Context, leaseID string) (*Lease, error) {
	l := &Lease{client: c, id: leaseID}
	if err := l.refresh(ctx); err != nil {
		return nil, err
	}
	l.ttl = time.Duration(l.last.TTLMS) * time.Millisecond
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
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = granted
	l.until = sent.Add(time.Duration(granted.WaitedMS+granted.ValidityMS) * time.Millisecond)
}

// refresh asks how long the lease is valid still.
func (l *Lease) refresh(ctx context.Context) error {
	var now wire.Lease
	sent, err := l.client.do(ctx, call{method: http.MethodGet, path: currentLease, lease: l.id, into: &now})
	if err == nil {
		l.renewed(sent, now)
	}
	return err
}

// Resource is what the lease is of; "" for a lease of several resources, see Parts.
func (l *Lease) Resource() string { return l.Wire().Resource }

// ID is the lease id, the capability of the lease. It is a secret.
func (l *Lease) ID() string { return l.id }

// Token is the fencing token, the same for the whole life of the lease; 0 for a
// lease of several resources, see Parts.
func (l *Lease) Token() fencing.Token { return fencing.Token(l.Wire().FencingToken) }

// Part is one resource of a lease.
type Part struct {
	Resource string
	Token    fencing.Token // the same for the whole life of the lease
	Proof    string        // as Lease.Proof
}

// Parts are the resources of the lease, with a token each, in the order of their
// names: one for a lease of one resource.
func (l *Lease) Parts() []Part {
	now := l.Wire()
	if len(now.Resources) == 0 {
		return []Part{{now.Resource, fencing.Token(now.FencingToken), now.FenceProof}}
	}
	parts := make([]Part, len(now.Resources))
	for i, p := range now.Resources {
		parts[i] = Part{p.Resource, fencing.Token(p.FencingToken), p.FenceProof}
	}
	return parts
}

// TTL is the lease's time to live, which every Extend gives it again.
func (l *Lease) TTL() time.Duration { return l.ttl }

// Until is the end of the lease's validity, on this process's monotonic clock: counted
// from before the last request that succeeded. From then on another lease may hold
// the resource.
func (l *Lease) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until
}

// Validity is how long the lease is still sure to hold; 0 when it may be over.
func (l *Lease) Validity() time.Duration { return max(0, time.Until(l.Until())) }

// Wire is the lease as the service shows it to its holder, with the validity as
// of now. The lease id in it is a secret.
func (l *Lease) Wire() wire.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.last
	now.WaitedMS, now.ValidityMS = 0, max(0, time.Until(l.until).Milliseconds())
	return now
}

// Extend gives the lease its TTL again. Errors: ErrLeaseLost (final),
// ErrUnavailable (the lease keeps its old validity; safe to repeat).
func (l *Lease) Extend(ctx context.Context) error { return l.extend(ctx, 0) }

func (l *Lease) extend(ctx context.Context, attempt time.Duration) error {
	var granted wire.Lease
	sent, err := l.client.do(ctx, call{
		method: http.MethodPost, path: currentLease + "/extend", lease: l.id, into: &granted, attempt: attempt,
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
	_, err := l.client.do(ctx, call{method: http.MethodDelete, path: currentLease, lease: l.id})
	return err
}

// releaseAfter releases with a deadline of its own: the caller's context may
// have ended, and that should not block the resource for the TTL. There is time for
// every server: the one that granted the lease may be frozen.
func (l *Lease) releaseAfter(ctx context.Context) error {
	limit := l.client.timeout * time.Duration(len(l.client.servers))
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	return l.Release(releasing)
}

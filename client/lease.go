package client

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

// Request describes what to acquire. The zero value of a field leaves it to
// the service.
type Request struct {
	TTL      time.Duration // whole milliseconds
	Wait     time.Duration // how long to stand in line; 0 tries once
	Holder   string        // public label; default the client's
	Metadata json.RawMessage
}

// Lease is a lease that this process holds. It is safe for concurrent use.
type Lease struct {
	client   *Client
	resource string
	id       string
	token    fencing.Token
	ttl      time.Duration

	mu    sync.Mutex
	until time.Time // the end of validity, on the monotonic clock
}

// Acquire takes a lease. Errors: ErrHeld (a *ProblemError that tells who has
// it), ErrUnavailable, a *ProblemError for anything else, or ctx's. It may be
// repeated: what a lost answer granted is found again, or ends with its TTL.
//
// The caller keeps the lease alive (Extend) and releases it; Do does both.
func (c *Client) Acquire(ctx context.Context, resource string, r Request) (*Lease, error) {
	body := wire.AcquireRequest{Resource: resource, Holder: r.Holder, Metadata: r.Metadata}
	if body.Holder == "" {
		body.Holder = c.holder
	}
	body.TTLMS, body.WaitMS = millis(r.TTL), millis(r.Wait)
	var granted wire.Lease
	// The key makes it safe to ask another server although the first one may
	// have granted: it finds the same lease.
	sent, err := c.do(ctx, call{
		method: http.MethodPost, path: "/locks", body: body, key: newKey(), wait: r.Wait, into: &granted,
	})
	if err != nil {
		return nil, err
	}
	l := &Lease{
		client: c, resource: granted.Resource, id: granted.LeaseID,
		token: fencing.Token(granted.FencingToken), ttl: time.Duration(granted.TTLMS) * time.Millisecond,
	}
	l.renewed(sent, granted)
	if waited := time.Since(sent); waited > l.ttl/20 {
		l.recount(ctx)
	}
	return l, nil
}

// recount asks how long the lease is valid still. After a wait in line the
// time of the request is far too early to count from, and the time of the
// answer would be unsafe: this process may have been paused before it read it.
// If nobody answers, the early count stays.
func (l *Lease) recount(ctx context.Context) {
	var now wire.Lease
	sent, err := l.client.do(ctx, call{method: http.MethodGet, path: l.path(""), into: &now})
	if err == nil {
		l.renewed(sent, now)
	}
}

func millis(d time.Duration) *int64 {
	if d == 0 {
		return nil
	}
	ms := d.Milliseconds()
	return &ms
}

// renewed notes the validity that an answer gives, counted from when its
// request was sent.
func (l *Lease) renewed(sent time.Time, granted wire.Lease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = sent.Add(time.Duration(granted.ValidityMS) * time.Millisecond)
}

// Resource is what the lease is of.
func (l *Lease) Resource() string { return l.resource }

// ID is the capability of the lease. It is a secret.
func (l *Lease) ID() string { return l.id }

// Token is the fencing token, the same for the whole life of the lease.
func (l *Lease) Token() fencing.Token { return l.token }

// Validity is how long the lease is still sure to hold; 0 when it may be over.
func (l *Lease) Validity() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, time.Until(l.until))
}

// Extend gives the lease its TTL anew. Errors: ErrLeaseLost (final),
// ErrUnavailable (the lease goes on for what is left of it; safe to repeat).
func (l *Lease) Extend(ctx context.Context) error {
	var granted wire.Lease
	sent, err := l.client.do(ctx, call{
		method: http.MethodPost, path: l.path("/extend"), body: wire.ExtendRequest{TTLMS: millis(l.ttl)}, into: &granted,
	})
	if err == nil {
		l.renewed(sent, granted)
	}
	return err
}

// Release gives the lease back. ErrLeaseLost: it had ended before.
func (l *Lease) Release(ctx context.Context) error {
	_, err := l.client.do(ctx, call{method: http.MethodDelete, path: l.path("")})
	return err
}

func (l *Lease) path(suffix string) string { return "/leases/" + url.PathEscape(l.id) + suffix }

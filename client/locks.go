package client

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"time"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
)

// Inspect returns whether a resource is held, by which holder, for how much longer,
// and its queue. Errors: ErrUnavailable, ErrDenied, ErrInvalid, or another *ProblemError.
func (c *Client) Inspect(ctx context.Context, resource string) (Lock, error) {
	if err := checkResource(resource); err != nil {
		return Lock{}, failed("inspect", resource, err)
	}
	var answer wire.Lock
	if _, err := c.do(ctx, call{method: http.MethodGet, path: lockPath(resource), named: resource, into: &answer}); err != nil {
		return Lock{}, failed("inspect", resource, err)
	}
	return lockOf(answer), nil
}

// Locks lists the held resources that begin with prefix, in no particular order. A lock that is taken or
// released during the listing may be missed or appear twice. The iteration ends with the first error.
func (c *Client) Locks(ctx context.Context, prefix string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		if err := checkText("prefix", prefix); err != nil {
			yield(Lock{}, failed("list", prefix, err))
			return
		}
		query := url.Values{"prefix": {prefix}, "limit": {"1000"}}
		for {
			var page wire.LockPage
			if _, err := c.do(ctx, call{method: http.MethodGet, path: "/locks?" + query.Encode(), into: &page}); err != nil {
				yield(Lock{}, failed("list", prefix, err))
				return
			}
			for _, lock := range page.Locks {
				if !yield(lockOf(lock), nil) {
					return
				}
			}
			if page.NextCursor == "" {
				return
			}
			query.Set("cursor", page.NextCursor)
		}
	}
}

// Break ends the lease of a resource that has the token (Lock.Token of Inspect), and never a later one, so it
// is safe to repeat. It is for administrators. The holder learns of it with its next request, and its token
// becomes stale when the next lease is used. Errors: a *ProblemError of the kind "lock-not-held" if the
// resource is free, or "other-lease", with the FencingToken of the lease that holds it; ErrUnavailable (safe to
// repeat), ErrDenied, ErrInvalid.
func (c *Client) Break(ctx context.Context, resource string, token fencing.Token) error {
	if !token.Valid() {
		return failed("break", resource, fmt.Errorf("%w: fencing_token %d is not one that a lease has", ErrInvalid, token))
	}
	return c.breakLease(ctx, wire.BreakRequest{Resource: resource, FencingToken: int64(token)})
}

// BreakAny ends the lease that holds the resource, whatever its token. It is not repeated after a try that may
// have taken effect. Errors are those of Break. But after ErrUnavailable the lease may have ended, and another
// BreakAny may end the next lease: call Inspect first.
func (c *Client) BreakAny(ctx context.Context, resource string) error {
	return c.breakLease(ctx, wire.BreakRequest{Resource: resource, Any: true})
}

func (c *Client) breakLease(ctx context.Context, req wire.BreakRequest) error {
	if err := checkResource(req.Resource); err != nil {
		return failed("break", req.Resource, err)
	}
	_, err := c.do(ctx, call{
		method: http.MethodPost, path: breaksPath, body: func(time.Duration) any { return req }, breaks: req.FencingToken, once: req.Any,
	})
	return failed("break", req.Resource, err)
}

const (
	locksPath  = "/locks"
	breaksPath = "/breaks"
	cancelPath = "/cancel"
)

func lockPath(resource string) string { return "/locks/" + url.PathEscape(resource) }

package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"github.com/fencelock/fencelock/api/wire"
)

// Inspect returns whether a resource is held, by which holder, for how much longer,
// and its queue. Errors: ErrUnavailable, ErrDenied, ErrInvalid, or another *ProblemError.
func (c *Client) Inspect(ctx context.Context, resource string) (wire.Lock, error) {
	var lock wire.Lock
	if err := checkResource(resource); err != nil {
		return lock, failed("inspect", resource, err)
	}
	_, err := c.do(ctx, call{method: http.MethodGet, path: lockPath(resource), named: resource, into: &lock})
	return lock, failed("inspect", resource, err)
}

// Locks lists the held resources that begin with prefix, in no particular order.
// A lock that is taken or released meanwhile may be missed or come twice. It
// ends with the first error.
func (c *Client) Locks(ctx context.Context, prefix string) iter.Seq2[wire.Lock, error] {
	return func(yield func(wire.Lock, error) bool) {
		if err := checkText("prefix", prefix); err != nil {
			yield(wire.Lock{}, failed("list", prefix, err))
			return
		}
		query := url.Values{"prefix": {prefix}, "limit": {"1000"}}
		for {
			var page wire.LockPage
			if _, err := c.do(ctx, call{method: http.MethodGet, path: "/locks?" + query.Encode(), into: &page}); err != nil {
				yield(wire.Lock{}, failed("list", prefix, err))
				return
			}
			for _, lock := range page.Locks {
				if !yield(lock, nil) {
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

// Break ends the lease of a resource, which is for administrators. Its holder learns
// it from its next request; its token is stale once the next lease is
// used. Errors: a *ProblemError of the kind "lock-not-held" if the resource is free,
// ErrUnavailable (safe to repeat), ErrDenied, ErrInvalid.
func (c *Client) Break(ctx context.Context, resource string) error {
	if err := checkResource(resource); err != nil {
		return failed("break", resource, err)
	}
	_, err := c.do(ctx, call{method: http.MethodDelete, path: lockPath(resource), named: resource})
	return failed("break", resource, err)
}

func lockPath(resource string) string { return "/locks/" + url.PathEscape(resource) }

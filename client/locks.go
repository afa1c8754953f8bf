package client

import (
	"context"
	"iter"
	"net/http"
	"net/url"

	"github.com/fencelock/fencelock/api/wire"
)

// Inspect tells whether a resource is held, by whom, for how long yet, and who
// waits for it. Errors: ErrUnavailable, ErrDenied, or another *ProblemError.
func (c *Client) Inspect(ctx context.Context, resource string) (wire.Lock, error) {
	var lock wire.Lock
	_, err := c.do(ctx, call{method: http.MethodGet, path: lockPath(resource), into: &lock})
	return lock, err
}

// Locks lists the held resources that begin with prefix, in no particular order.
// A lock that is taken or released meanwhile may be missed or come twice. It
// ends with the first error.
func (c *Client) Locks(ctx context.Context, prefix string) iter.Seq2[wire.Lock, error] {
	return func(yield func(wire.Lock, error) bool) {
		query := url.Values{"prefix": {prefix}, "limit": {"1000"}}
		for {
			var page wire.LockPage
			if _, err := c.do(ctx, call{method: http.MethodGet, path: "/locks?" + query.Encode(), into: &page}); err != nil {
				yield(wire.Lock{}, err)
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

// Break takes a lock from whoever holds it, which is for administrators. The
// holder is not told until it asks; its token is stale once the next lease is
// used. Errors: a *ProblemError of the kind "lock-not-held" if nobody holds it,
// ErrUnavailable (safe to repeat), ErrDenied.
func (c *Client) Break(ctx context.Context, resource string) error {
	_, err := c.do(ctx, call{method: http.MethodDelete, path: lockPath(resource)})
	return err
}

func lockPath(resource string) string { return "/locks/" + url.PathEscape(resource) }

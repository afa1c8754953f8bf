package client

import (
	"context"
	"errors"
	"math/rand/v2"
)

// Elect stands for the leadership of all processes that call it for the same resource: who
// holds its lease leads. It runs lead while this process leads, under the rules of Do, and
// stands again when the leadership was lost, because the lease expired or was broken or the
// service was unavailable. Candidates lead in the order in which they came.
//
//   - lead gets a context that is cancelled, with the cause ErrLeaseLost, a margin before
//     another process may lead, and the lease, whose token is larger than that of every
//     leader before. Pass it to storage that checks it: a leader that was paused does not
//     know that it was replaced.
//   - To resign, return from lead before that. Elect releases the lease, the next candidate
//     leads at once, and Elect returns lead's error.
//   - An error that lead returns after its context was cancelled by the loss is dropped:
//     lead runs again with the next lease, once at a time.
//
// Elect returns when lead resigns, when ctx ends, and with the errors of Acquire but for
// ErrUnavailable, which WithOnRetry observes. When a leader dies, the next one leads after
// its TTL at the latest.
//
// Watch tells who leads, also to processes that are not candidates.
func (c *Client) Elect(ctx context.Context, resource string, lead func(context.Context, *Lease) error, opts ...DoOption) error {
	for {
		led, lost := false, false
		err := c.Do(ctx, resource, func(ctx context.Context, l *Lease) error {
			led = true
			err := lead(ctx, l)
			lost = ctx.Err() != nil && errors.Is(context.Cause(ctx), ErrLeaseLost)
			return err
		}, opts...)
		unled := !led && (errors.Is(err, ErrUnavailable) || errors.Is(err, ErrLeaseLost))
		if !lost && !unled || ctx.Err() != nil {
			return err
		}
		_ = sleep(ctx, firstPause+rand.N(firstPause)) //nolint:gosec // no secret
	}
}

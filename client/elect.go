package client

import (
	"context"
	"errors"
	"math/rand/v2"
)

// Elect competes for the leadership among all processes that call it for the same resource: the holder of the
// resource's lease leads. It runs lead while this process leads, under the rules of Do. If the leadership is
// lost, because the lease expired or was broken or the service was unavailable, it competes again. Candidates
// lead in the order of their arrival.
//
//   - lead gets a context that is cancelled, with the cause ErrLeaseLost, a margin before
//     another process may lead, and the lease, whose token is larger than that of every
//     leader before. Pass it to storage that checks it: a leader that was paused does not
//     know that it was replaced.
//   - To resign, return from lead while its context is not cancelled. Elect releases the lease, the first
//     candidate in the queue leads, and Elect returns lead's error.
//   - If the leadership was lost, Elect drops the error that lead returns, and runs lead again with the next
//     lease. Two runs of lead never overlap.
//
// Elect returns when lead resigns, when ctx ends, and with the errors of Acquire except ErrUnavailable, which
// WithOnRetry observes.
//
// If a leader dies, the next one leads about a tenth of a second after the leader's TTL has passed since its
// last extension. This takes two seconds more if the first candidate in the queue has died, too, because its
// place is kept for that long. The same two seconds may pass after a leader resigned. A short TTL makes the
// change quicker, and costs more requests.
//
// Watch reports who leads, also to processes that are not candidates.
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

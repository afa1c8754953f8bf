package client

import "time"

// WithPatience sets how long a call is repeated that fails: that no server responds, or
// that servers answer they cannot serve it now, for lack of a quorum or over a limit.
// Default 15s; 0 does not repeat. An nginx with its default settings answers 502 for up to
// 10 s after both of two servers were restarted, one after the other. This is the rule for every method of a Client and a
// Lease:
//
//   - The patience begins when a try has failed. A try asks one server, and fails when its
//     answer is overdue: after four times what answers have taken, at least 250 ms and at
//     most the time of WithTimeout, and twice as long after each round over all servers.
//     Every server is asked at least once. If no try succeeds while the patience lasts,
//     the call returns ErrUnavailable, a second later at most.
//   - An acquire with a Wait (TryDo and TryAcquire have one of 0) ends a second after it at
//     most, whatever the servers do.
//   - To wait in the queue is not a failure. Without a Wait, Do and Acquire wait as long as
//     their context allows. Waiting requests fail once there has been no quorum for 5 s, so
//     that by default such a Do returns ErrUnavailable about 20 s after the quorum was lost.
//   - A lease that is kept alive is extended for as long as it lives, whatever the
//     patience.
//
// WithOnRetry observes what happens meanwhile.
func WithPatience(d time.Duration) Option { return func(c *Client) { c.patience = d } }

// WithPoll sets how long one request may wait in the queue: a longer wait is a series of
// requests that keep the place. Whole seconds, at least 1s; default 45s. It must be
// shorter than the time limits of the proxies on the way, which are 60s in nginx and most
// load balancers of clouds, 50s in Debian's HAProxy, and 15s in Envoy.
func WithPoll(d time.Duration) Option { return func(c *Client) { c.poll = d } }

// WithOnRetry has f called for every try that failed and is repeated. The goroutine of the
// call does it, and several may at once: f must not block.
func WithOnRetry(f func(Retry)) Option { return func(c *Client) { c.onRetry = f } }

// Retry is a call that failed and is repeated.
type Retry struct {
	Err     *Error        // of the last try; it wraps ErrUnavailable
	Tries   int           // so far
	Failing time.Duration // since the first failure that still lasts
	Pause   time.Duration // before the next try
}

func (c *Client) retrying(call *call, t *tries, err error, pause time.Duration) {
	if c.onRetry != nil && !call.quiet {
		c.onRetry(Retry{Err: &Error{Op: call.op(), Resource: call.resource, Err: err}, Tries: t.number, Failing: t.failing(), Pause: pause})
	}
}

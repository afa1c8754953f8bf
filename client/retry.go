package client

import "time"

// WithPatience sets how long a call is repeated that fails: that no server answers, or
// that servers answer they cannot serve it now, for want of a quorum or over a limit.
// Default 15s; 0 does not repeat. An nginx with its default settings answers 502 for up to
// 10 s after both of two servers were restarted, one after the other. This is the rule for every method of a Client and a
// Lease:
//
//   - The patience begins when a try has failed. A try asks one server, and fails without
//     an answer after the time of WithTimeout. Every server is asked at least once. If
//     no try succeeds while the patience lasts, the call returns ErrUnavailable. That is
//     a timeout, the patience and a second after it began at most.
//   - To wait in the queue is no failure, and Do and Acquire wait as long as they are told
//     to. Waiting requests fail once there has been no quorum for 5 s, so that by default
//     a Do returns ErrUnavailable about 20 s after the quorum was lost. A server that is
//     lost costs the wait nothing while any request of the Client is answered.
//   - An acquire that does not wait (TryDo, TryAcquire, Wait(0)) is patient for 2 s at
//     most, so that it tells soon.
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

package client

import "time"

// WithPatience sets how long a failing call is repeated: no server responds, or the servers cannot serve it now
// because there is no quorum or a limit is exceeded. Default 15s; with 0 calls are not repeated. (With its
// default settings, nginx responds with 502 for up to 10 s after both of two servers were restarted, one after
// the other.) The rules for every method of a Client and a Lease:
//
//   - The patience begins when a try fails. A try asks one server, and fails when its response is overdue:
//     after four times the usual time of a response, at least 250 ms and at most the time of WithTimeout, and
//     twice as long after each round over all servers. Every server is asked at least once. If no try succeeds
//     during the patience, the call returns ErrUnavailable, at most a second after the patience ends.
//   - An acquire with a Wait (0 for TryDo and TryAcquire) ends at most a second after its Wait, whatever the
//     servers do.
//   - A wait in the queue is not a failure. Without a Wait, Do and Acquire wait as long as their context allows.
//     But the service refuses waiting requests after 5 s without a quorum, so by default such a Do returns
//     ErrUnavailable about 20 s after the quorum was lost.
//   - A lease that is kept alive is extended until its validity ends, whatever the patience.
//
// WithOnRetry observes the tries.
func WithPatience(d time.Duration) Option { return func(c *Client) { c.patience = d } }

// WithPoll sets how long one request may wait in the queue. A longer wait is a series of requests that keep the
// place. Whole seconds, at least 1s; default 45s. It must be shorter than the time limits of the proxies
// between client and server, which are 60s in nginx and most cloud load balancers, 50s in Debian's HAProxy, and
// 15s in Envoy.
//
// A client has 192 connections to a server for requests that wait, and 64 for others. While more than half of
// the 192 are in use, a poll lasts at most a second, so that other calls get a connection.
func WithPoll(d time.Duration) Option { return func(c *Client) { c.poll = d } }

// WithOnRetry sets a function that is called for every try that failed and will be repeated. The goroutine of
// the call calls it, possibly several at once, so it must not block.
func WithOnRetry(f func(Retry)) Option { return func(c *Client) { c.onRetry = f } }

// Retry describes a call that failed and will be repeated.
type Retry struct {
	Err     *Error        // of the last try; it wraps ErrUnavailable
	Tries   int           // tries so far
	Failing time.Duration // time since the first failure without a success in between
	Pause   time.Duration // before the next try
}

func (c *Client) retrying(call *call, t *tries, err error, pause time.Duration) {
	if c.onRetry != nil && !call.quiet {
		c.onRetry(Retry{Err: &Error{Op: call.op(), Resource: call.resource, Err: err}, Tries: t.number, Failing: t.failing(), Pause: pause})
	}
}

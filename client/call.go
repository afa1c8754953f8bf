package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// The pace of repeated requests.
const (
	firstPause   = 50 * time.Millisecond
	maxPause     = time.Second
	maxPollPause = 300 * time.Millisecond // of a wait without an answer, whose place is kept for 2 s
	maxWait      = 10 * time.Minute       // that a request may ask a server to wait
	shortPoll    = time.Second            // the first poll after one that got no response
	abandonTime  = 10 * time.Second       // to end what no caller waits for any more
	grace        = time.Second            // after its wait, in which an acquire ends, and a release after work
	shortestLast = time.Second            // what the last try has, though patience ends earlier
	shortestTry  = 250 * time.Millisecond
)

// call is one request, to be sent to whichever server answers. Every call but one that
// says so may be sent twice: an acquire carries a key, a break the token of the lease, and
// the others change nothing twice.
type call struct {
	method, path string
	resource     string                       // for errors
	body         func(wait time.Duration) any // sent as JSON; nil for none
	key          string                       // Idempotency-Key; "" for none
	lease        string                       // Fencelock-Lease, a lease id; "" for none
	named        string                       // Fencelock-Resource, the resource of the path; "" for none
	waitUntil    time.Time                    // how long it may wait in the queue; zero for not at all
	deadline     time.Time                    // when it ends in any case; zero for never
	attempt      time.Duration                // bounds one try, without the wait; 0 for the client's timeout
	into         any                          // decoded from a success; nil for none
	quiet        bool                         // its retries are not observed: no caller waits for it
	breaks       int64                        // the token of the lease that it breaks; 0 for none, or any
	name         string                       // what it does, where op does not tell
	token        fencing.Token                // Fencing-Token; 0 for none
	proof        string                       // Fencing-Proof; "" for none
	once         bool                         // it is not sent again after a try that may have taken effect
	late         []*gathered                  // tries in batches that it gave up, and that may take effect
}

// waits says whether the call is a wait in the queue, which is a series of polls.
func (c *call) waits() bool { return !c.waitUntil.IsZero() }

// left is how long the call may still wait.
func (c *call) left() time.Duration {
	return min(max(0, time.Until(c.waitUntil)), maxWait).Truncate(time.Millisecond)
}

// op is what the call does, as Error.Op says it.
func (c *call) op() string {
	switch lease := c.lease != ""; {
	case c.name != "":
		return c.name
	case c.method == http.MethodPost && lease:
		return "extend"
	case c.path == breaksPath:
		return "break"
	case c.path == cancelPath:
		return "cancel"
	case c.method == http.MethodPost:
		return "acquire"
	case c.method == http.MethodDelete:
		return "release"
	case lease:
		return "look up"
	case strings.HasPrefix(c.path, "/locks?"):
		return "list"
	default:
		return "inspect"
	}
}

// tries is how a call has gone so far.
type tries struct {
	patience  time.Duration
	number    int
	silent    int           // rounds over all servers without an answer for good
	ambiguous bool          // a try without an answer may have taken effect
	queued    bool          // a poll has kept a place in the queue
	deadline  time.Time     // when the call ends in any case; zero for never
	poll      time.Duration // how long the next poll may be
	pause     time.Duration // before the next try
	since     time.Time     // when the failures began that still last; zero if none do
}

func (c *Client) newTries(call *call) *tries {
	return &tries{patience: c.patience, poll: c.poll, pause: firstPause, deadline: call.deadline}
}

// left is how long the call may still take.
func (t *tries) left() time.Duration {
	if t.deadline.IsZero() {
		return forever
	}
	return time.Until(t.deadline)
}

// over says that there is to be no try after a pause.
func (t *tries) over(pause time.Duration) bool {
	return t.failing()+pause > t.patience || t.left() <= pause
}

// failed notes a try that failed with ErrUnavailable.
func (t *tries) failed(err error) {
	if !answered(err) {
		t.poll = min(t.poll, shortPoll)
	}
	if t.since.IsZero() {
		t.since = time.Now()
	}
}

// held notes a poll that ended without a grant.
func (t *tries) held(longest time.Duration) {
	t.queued, t.since, t.pause = true, time.Time{}, firstPause
	t.poll = min(2*t.poll, longest)
}

// failing is for how long the call has failed.
func (t *tries) failing() time.Duration {
	if t.since.IsZero() {
		return 0
	}
	return time.Since(t.since)
}

// answered says whether a server of the service answered with the error, and not a proxy
// for lack of one.
func answered(err error) bool {
	problem, ok := asType[*ProblemError](err)
	return ok && problem.Type != noType
}

// do sends the call until a server answers it for good, or its deadline has come, or the
// client's patience ends (WithPatience), or ctx. It returns when the answered request was sent, and after an
// error whether the call may have taken effect.
func (c *Client) do(ctx context.Context, call call) (sent time.Time, err error) {
	sent, _, err = c.try(ctx, &call)
	return sent, err
}

func (c *Client) try(ctx context.Context, call *call) (sent time.Time, ambiguous bool, err error) {
	if err := c.made(); err != nil {
		return sent, false, err
	}
	t := c.newTries(call)
	for ctx.Err() == nil {
		sent, err = c.askAll(ctx, call, t)
		pause := firstPause
		switch {
		case err == nil:
			return sent, false, nil
		case errors.Is(err, ErrHeld) && call.left() > 0:
			t.held(c.poll)
		case ctx.Err() != nil:
			continue
		case !errors.Is(err, ErrUnavailable):
			return sent, t.ambiguous, t.settle(call, err)
		case call.once && t.ambiguous:
			return sent, true, err
		default:
			pause = t.nextPause(call, err)
			if t.over(pause) {
				return sent, t.ambiguous || t.queued, err
			}
			c.retrying(call, t, err, pause)
		}
		_ = sleep(ctx, pause)
	}
	return sent, t.ambiguous || t.queued, cause(ctx)
}

// cause is why ctx has ended: its error, and its cause if that is another one.
func cause(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err { //nolint:errorlint // the very same
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// nextPause spreads callers that failed together, and obeys Retry-After of a limit.
func (t *tries) nextPause(call *call, err error) time.Duration {
	if call.waits() && !answered(err) {
		t.pause = min(t.pause, maxPollPause)
	}
	d := t.pause/2 + rand.N(t.pause) //nolint:gosec // no secret
	t.pause = min(2*t.pause, maxPause)
	if problem, ok := asType[*ProblemError](err); ok && problem.Status == http.StatusTooManyRequests {
		d = max(d, problem.RetryAfter)
	}
	return d
}

// settle turns "it is gone" into success for a release or a break of which an earlier try
// may have done it.
func (t *tries) settle(call *call, err error) error {
	problem, ok := asType[*ProblemError](err)
	if ok && t.ambiguous && call.gone(problem) {
		return nil
	}
	return err
}

// gone says whether the refusal means that what the call was to end has ended.
func (c *call) gone(refusal *ProblemError) bool {
	switch {
	case c.method == http.MethodDelete:
		return refusal.Kind() == "lease-not-held"
	case c.breaks == 0:
		return false
	case refusal.Kind() == "other-lease":
		return refusal.HeldDetails != nil && refusal.FencingToken > c.breaks
	}
	return refusal.Kind() == "lock-not-held"
}

// askAll asks each server once, beginning with the one that answered last.
func (c *Client) askAll(ctx context.Context, call *call, t *tries) (sent time.Time, err error) {
	first := c.at.Load()
	for i := range c.peers {
		n := (int(first) + i) % len(c.peers)
		sent = time.Now()
		err = c.ask(ctx, c.peers[n], call, t, len(c.peers)-i)
		if !errors.Is(err, ErrUnavailable) {
			c.at.Store(uint32(n))
			return sent, err
		}
		t.failed(err)
		if ctx.Err() != nil || call.once && t.ambiguous || t.number >= len(c.peers) && t.over(0) {
			break
		}
	}
	t.silent++
	return sent, err
}

// ask sends the call to one server; unasked are those that have not been asked in this
// round, with this one. Without an answer in time the error is ErrUnavailable.
func (c *Client) ask(caller context.Context, server *peer, call *call, t *tries, unasked int) error {
	if t.number++; t.number == 1 {
		unasked = max(unasked, 2) //nolint:mnd // there is time for another try
	}
	left := call.left()
	kept := min(left, t.poll) // how long the server may keep this request
	share := t.left() / time.Duration(unasked)
	limit := min(c.limit(call, t), share)
	ctx, cancel := context.WithTimeout(caller, min(limit+kept, t.left()))
	defer cancel()
	m, err := c.message(ctx, call, left)
	if err != nil {
		return err
	}
	if kept < left {
		m.prefer = kept
	}
	if kept > shortPoll || kept > 0 && limit+kept > share { // a short one is soon over, unless it takes the time of other servers
		defer c.watch(ctx, server, min(limit, share/2), cancel)() //nolint:mnd // the probe has as long to be answered
	}
	asked := time.Now()
	resp, err := c.send(ctx, server, m)
	if err == nil {
		server.answered(resp.server)
		if kept == 0 {
			c.pace.took(time.Since(asked))
		}
		err = resp.read(call.into)
	}
	return c.judge(caller, err, t)
}

// pace is what answers take, which tells when one is overdue.
type pace struct{ slowest atomic.Int64 }

// took notes an answer that did not wait in the queue. Slow ones fade.
func (p *pace) took(d time.Duration) {
	const fade = 0.9
	p.slowest.Store(max(int64(d), int64(fade*float64(p.slowest.Load()))))
}

// limit is for one try: four times what answers take, and twice as much after each round over
// all servers without one, so that slow servers are waited for and frozen ones are not.
func (p *pace) limit(silent int, longest time.Duration) time.Duration {
	const overdue = 4
	limit := max(shortestTry, overdue*time.Duration(p.slowest.Load()))
	for range silent {
		if limit >= longest {
			break
		}
		limit *= 2
	}
	return min(limit, longest)
}

// limit bounds a try, without its wait: by what answers take, by the call, by the client's
// timeout, and by what is left of its patience. A call that is not sent again is waited for:
// to give it up leaves its caller in doubt.
func (c *Client) limit(call *call, t *tries) time.Duration {
	limit := c.timeout
	if !call.once {
		limit = c.pace.limit(t.silent, c.timeout)
	}
	if call.attempt > 0 {
		limit = min(limit, call.attempt)
	}
	if failing := t.failing(); failing > 0 {
		limit = min(limit, max(t.patience-failing, shortestLast))
	}
	return limit
}

// judge makes the call's error of a try's.
func (c *Client) judge(caller context.Context, err error, t *tries) error {
	problem, refused := asType[*ProblemError](err)
	switch {
	case err == nil:
		return nil
	case refused:
		t.ambiguous = t.ambiguous || problem.Status >= http.StatusInternalServerError
		return err
	case errors.Is(err, errNotOurs):
		return err
	}
	t.ambiguous = t.ambiguous || mayHaveArrived(err)
	if caller.Err() != nil {
		return cause(caller)
	}
	if c.ownsTransport {
		// A network that has lost this connection may have lost those that are idle.
		c.http.CloseIdleConnections()
	}
	// The try's own time limit must not look like the caller's.
	return fmt.Errorf("%w: %s", ErrUnavailable, reason(err))
}

// mayHaveArrived says whether a request that failed may have reached the server.
func mayHaveArrived(err error) bool {
	dial, ok := asType[*net.OpError](err)
	return !errors.Is(err, errNotSent) && (!ok || dial.Op != "dial")
}

func reason(err error) string {
	err = withoutURL(err)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return "no response in time"
	}
	return err.Error()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

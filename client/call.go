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
	maxPollPause = 300 * time.Millisecond // between attempts of a wait without a response, whose place is kept for 2 s
	maxWait      = 10 * time.Minute       // the longest wait in one request
	shortPoll    = time.Second            // the first poll after one that got no response
	answerTime   = 50 * time.Millisecond  // the minimum time for a response before the caller's deadline
	abandonTime  = 10 * time.Second       // the time to end everything that an abandoned call may have left at the service
	grace        = time.Second            // after its wait, an acquire may take this much longer; a release after work may take this long
	shortestLast = time.Second            // the minimum time of the last try, even if the patience ends earlier
	shortestTry  = 250 * time.Millisecond
	afterEnd     = 250 * time.Millisecond // how long the caller waits for a release after its context has ended; a server that is up needs less
)

// call is one operation, to be sent to any server that responds. Sending it twice is safe: an acquire carries a
// key, a break carries the token of the lease, and the other calls have no second effect. The exception are
// calls with once set.
type call struct {
	method, path string
	resource     string                       // for errors
	body         func(wait time.Duration) any // sent as JSON; nil for none
	key          string                       // Idempotency-Key; "" for none
	lease        string                       // Fencelock-Lease, a lease id; "" for none
	named        string                       // Fencelock-Resource, the resource of the path; "" for none
	waitUntil    time.Time                    // the end of its wait in the queue; zero if it does not wait
	deadline     time.Time                    // when it ends in any case; zero for no limit
	attempt      time.Duration                // the time limit of one try, without the wait; 0 for the client's timeout
	into         any                          // gets the decoded body of a successful response; nil if it is not needed
	quiet        bool                         // its retries are not reported to onRetry, because no caller waits for it
	breaks       int64                        // the token of the lease that it breaks; 0 for none, or any
	name         string                       // the operation, if method and path do not determine it
	token        fencing.Token                // Fencing-Token; 0 for none
	proof        string                       // Fencing-Proof; "" for none
	once         bool                         // it is not repeated after a try that may have taken effect
	owed         bool                         // it must be done although its caller is gone: if the credential function fails, it is called again
	patience     *time.Duration               // nil for the client's
	late         []*gathered                  // tries in batches that the call gave up, and that may still take effect
}

// waits reports whether the call waits in the queue, as a series of polls.
func (c *call) waits() bool { return !c.waitUntil.IsZero() }

// left returns how long the call may still wait in the queue.
func (c *call) left() time.Duration {
	return min(max(0, time.Until(c.waitUntil)), maxWait).Truncate(time.Millisecond)
}

// op is the operation of the call, as in Error.Op.
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

// tries is the progress of a call.
type tries struct {
	patience  time.Duration
	number    int
	silent    int           // rounds over all servers without a final response
	ambiguous bool          // an attempt without a response may have taken effect
	queued    bool          // a poll has kept a place in the queue
	deadline  time.Time     // when the call ends in any case; zero for no limit
	poll      time.Duration // the longest wait of the next poll
	pause     time.Duration // before the next try
	since     time.Time     // the first of the failures without a success in between; zero if the last try did not fail
	last      error         // the error of the last try; nil before the first has ended
}

func (c *Client) newTries(call *call) *tries {
	patience := c.patience
	if call.patience != nil {
		patience = *call.patience
	}
	return &tries{patience: patience, poll: c.poll, pause: firstPause, deadline: call.deadline}
}

// left returns how long the call may still take.
func (t *tries) left() time.Duration {
	if t.deadline.IsZero() {
		return forever
	}
	return time.Until(t.deadline)
}

// over reports whether the call ends without another try after this pause.
func (t *tries) over(pause time.Duration) bool {
	return t.failing()+pause > t.patience || t.left() <= pause
}

// failed records a try that failed with ErrUnavailable.
func (t *tries) failed(err error) {
	t.last = err
	if !answered(err) {
		t.poll = min(t.poll, shortPoll)
	}
	if t.since.IsZero() {
		t.since = time.Now()
	}
}

// held records a poll that ended without a grant.
func (t *tries) held(refusal error, longest time.Duration) {
	t.last = refusal
	t.queued, t.since, t.pause = true, time.Time{}, firstPause
	t.poll = min(2*t.poll, longest)
}

// failing returns how long the call has been failing.
func (t *tries) failing() time.Duration {
	if t.since.IsZero() {
		return 0
	}
	return time.Since(t.since)
}

// answered reports whether the error is the response of a fencelock server. A proxy that reaches no server
// responds with other errors.
func answered(err error) bool {
	problem, ok := asType[*ProblemError](err)
	return ok && problem.Type != noType
}

// do sends the call until a server gives a final response, the deadline has come, the client's patience is over
// (WithPatience), or ctx ends. It returns when the successful request was sent. After an error it reports
// whether the call may have taken effect.
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
			t.held(err, c.poll)
		case ctx.Err() != nil:
			continue
		case !errors.Is(err, ErrUnavailable):
			_, refused := asType[*ProblemError](err)
			return sent, t.ambiguous || t.queued && !refused, t.settle(call, err)
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
	return sent, t.ambiguous || t.queued, t.ended(ctx)
}

// ended returns the error of a call whose context has ended. After a deadline the error also says what the call
// waited for: a resource that is held, or a server that responds.
func (t *tries) ended(ctx context.Context) error {
	switch {
	case t.number == 0 || !errors.Is(ctx.Err(), context.DeadlineExceeded):
		return cause(ctx)
	case t.last == nil:
		return fmt.Errorf("%w: no response in time: %w", ErrUnavailable, cause(ctx))
	}
	return fmt.Errorf("%w: %w", t.last, cause(ctx))
}

// cause returns why ctx has ended: its error, joined with its cause if that is another error.
func cause(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if cause == err { //nolint:errorlint // the very same
		return err
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// nextPause returns the pause before the next try. It is random, so that callers that failed together do not
// retry together, and obeys the Retry-After of a rate limit.
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

// settle turns a "gone" response to a release or a break into success, if an earlier try may have ended the
// lease.
func (t *tries) settle(call *call, err error) error {
	problem, ok := asType[*ProblemError](err)
	if ok && t.ambiguous && call.gone(problem) {
		return nil
	}
	return err
}

// gone reports whether the refusal means that the lease that the call should end has ended.
func (c *call) gone(refusal *ProblemError) bool {
	switch {
	case c.method == http.MethodDelete:
		return refusal.Kind() == "lease-not-held"
	case c.breaks == 0:
		return false
	case refusal.Kind() == "other-lease":
		return int64(refusal.FencingToken) > c.breaks
	}
	return refusal.Kind() == "lock-not-held"
}

// askAll sends the call to each server once, beginning with the server that responded last.
func (c *Client) askAll(ctx context.Context, call *call, t *tries) (sent time.Time, err error) {
	first := c.at.Load()
	for i := range c.peers {
		n := (int(first) + i) % len(c.peers)
		sent, err = c.ask(ctx, c.peers[n], call, t, len(c.peers)-i)
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

// ask sends the call to one server, and returns when it was sent. unasked is the number of servers not yet
// asked in this round, including this one. Without a response in time the error is ErrUnavailable.
func (c *Client) ask(caller context.Context, server *peer, call *call, t *tries, unasked int) (sent time.Time, err error) {
	if t.number++; t.number == 1 {
		unasked = max(unasked, 2) //nolint:mnd // so that time is left for another try
	}
	queued := time.Now()
	turn, err := c.turn(caller, server, call)
	sent = turn.sent
	if err != nil {
		return sent, c.judge(caller, err, t)
	}
	defer turn.end() //nolint:contextcheck // it outlives its caller: the next turn is another's
	if t.number == 1 && !t.deadline.IsZero() {
		t.deadline = t.deadline.Add(sent.Sub(queued))
	}
	kept := min(turn.wait, t.poll) // how long the server may keep this request waiting
	if kept > shortPoll && server.waits.busy() {
		kept = shortPoll
	}
	share := t.left() / time.Duration(unasked)
	limit := min(c.limit(call, t), share)
	ctx, cancel := context.WithDeadline(caller, sent.Add(min(limit+kept, t.left())))
	defer cancel()
	if kept < turn.wait {
		turn.message.prefer = kept
	}
	if kept > shortPoll || kept > 0 && limit+kept > share { // a short wait ends soon and needs no probe, unless it takes the time that the other servers need
		defer c.watch(ctx, server, min(limit, share/2), cancel)() //nolint:mnd // a probe may take as long as the wait before it
	}
	resp, err := c.send(ctx, turn)
	if err == nil {
		server.answered(resp.server)
		if kept == 0 {
			c.pace.took(time.Since(sent))
		}
		err = resp.read(call.into)
	}
	return sent, c.judge(caller, err, t)
}

// pace records how long responses take, so that the client notices an overdue one.
type pace struct{ slowest atomic.Int64 }

// took records the time of a response without a wait in the queue. Slow responses are forgotten gradually.
func (p *pace) took(d time.Duration) {
	const fade = 0.9
	p.slowest.Store(max(int64(d), int64(fade*float64(p.slowest.Load()))))
}

// answerTime returns how long before the caller's deadline a wait must end, so that the caller still learns who
// holds the resource.
func (p *pace) answerTime(left time.Duration) time.Duration {
	const times, quarter = 4, 4
	return min(max(answerTime, times*time.Duration(p.slowest.Load())), left/quarter)
}

// limit returns the time limit of one try: four times the usual time of a response, doubled after each round in
// which no server responded. So the client waits for slow servers and leaves frozen ones.
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

// limit returns the time limit of a try, without its wait in the queue. Usual response times, the call's own
// limit, the client's timeout and the remaining patience bound it. A call that is not repeated gets the whole
// timeout, because giving it up leaves its caller in doubt.
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

// judge turns the error of a try into the error of the call.
func (c *Client) judge(caller context.Context, err error, t *tries) error {
	problem, refused := asType[*ProblemError](err)
	switch {
	case err == nil:
		return nil
	case refused:
		t.ambiguous = t.ambiguous || problem.Status >= http.StatusInternalServerError
		return err
	case errors.Is(err, errNotOurs), errors.Is(err, errNotMade):
		return err
	}
	t.ambiguous = t.ambiguous || mayHaveArrived(err)
	if caller.Err() != nil {
		return cause(caller)
	}
	if c.ownsTransport && !errors.Is(err, errNotSent) {
		// If this connection was lost in the network, idle connections may be lost, too.
		c.http.CloseIdleConnections()
	}
	// The error must not contain the try's own time limit, which would look like the caller's.
	return fmt.Errorf("%w: %s", ErrUnavailable, reason(err))
}

// mayHaveArrived reports whether a request that failed may have reached the server.
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

package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// The pace of repeated requests.
const (
	firstPause  = 50 * time.Millisecond
	maxPause    = time.Second
	maxWait     = 10 * time.Minute // that a server lets one request wait in the queue
	probeEvery  = 5 * time.Second  // while a request waits in the queue
	abandonTime = 2 * time.Second  // to release what a cancelled request was granted
)

// call is one request, to be sent to whichever server answers. Every call may be
// sent twice: an acquire carries a key, and the others change nothing twice.
type call struct {
	method, path string
	body         func(wait time.Duration) any // sent as JSON; nil for none
	key          string                       // Idempotency-Key; "" for none
	lease        string                       // Fencelock-Lease, a lease id; "" for none
	waitUntil    time.Time                    // how long it may wait in the queue; zero for not at all
	attempt      time.Duration                // bounds one try, without the wait; 0 for the client's timeout
	into         any                          // decoded from a success; nil for none
}

// tries is how a call has gone so far.
type tries struct {
	contact   atomic.Int64 // when a server last answered, since begun
	begun     time.Time
	ambiguous bool // a try without an answer may have taken effect
}

func (t *tries) touch() { t.contact.Store(int64(time.Since(t.begun))) }

// sinceContact is for how long no server has answered.
func (t *tries) sinceContact() time.Duration {
	return time.Since(t.begun) - time.Duration(t.contact.Load())
}

// do sends the call until a server answers it for good, or none has answered
// for as long as the client is patient. It returns when the answered request
// was sent.
func (c *Client) do(ctx context.Context, call call) (sent time.Time, err error) {
	if err := c.made(); err != nil {
		return sent, err
	}
	t := &tries{begun: time.Now()}
	pause := firstPause
	for {
		sent, err = c.askAll(ctx, call, t)
		if !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			return sent, t.settle(call, err)
		}
		next := c.pause(pause, err)
		if t.sinceContact()+next > c.patience || sleep(ctx, next) != nil {
			return sent, err
		}
		pause = min(2*pause, maxPause)
	}
}

// pause spreads callers that failed together, and obeys Retry-After of a limit.
func (c *Client) pause(d time.Duration, err error) time.Duration {
	d = d/2 + rand.N(d) //nolint:gosec // no secret
	if problem, ok := errors.AsType[*ProblemError](err); ok && problem.Status == http.StatusTooManyRequests {
		d = max(d, problem.RetryAfter)
	}
	return d
}

// settle turns "it is gone" into success for a deletion of which an earlier try
// may have done it.
func (t *tries) settle(call call, err error) error {
	problem, ok := errors.AsType[*ProblemError](err)
	if ok && t.ambiguous && call.method == http.MethodDelete && problem.Status == http.StatusNotFound {
		return nil
	}
	return err
}

// askAll asks each server once, beginning with the one that answered last.
func (c *Client) askAll(ctx context.Context, call call, t *tries) (sent time.Time, err error) {
	first := c.at.Load()
	for i := range c.servers {
		n := (int(first) + i) % len(c.servers)
		sent = time.Now()
		err = c.ask(ctx, c.servers[n], call, t)
		if !errors.Is(err, ErrUnavailable) {
			c.at.Store(uint32(n))
			return sent, err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return sent, err
}

func (c *Client) ask(caller context.Context, server string, call call, t *tries) error {
	wait := min(max(0, time.Until(call.waitUntil)), maxWait).Truncate(time.Millisecond)
	attempt := call.attempt
	if attempt <= 0 || attempt > c.timeout {
		attempt = c.timeout
	}
	ctx, cancel := context.WithTimeout(caller, attempt+wait)
	defer cancel()
	req, err := c.request(ctx, server, call, wait)
	if err != nil {
		return err
	}
	watched := c.watch(ctx, cancel, server, wait, t)
	resp, err := c.http.Do(req)
	if err == nil {
		defer func() { _ = resp.Body.Close() }()
		err = read(resp, call.into)
	}
	cancel()
	watched()
	return c.judge(caller, err, t)
}

// judge makes the call's error of a try's.
func (c *Client) judge(caller context.Context, err error, t *tries) error {
	problem, answered := errors.AsType[*ProblemError](err)
	switch {
	case err == nil:
		return nil
	case answered:
		t.ambiguous = t.ambiguous || problem.Status >= http.StatusInternalServerError
		return err
	case errors.Is(err, errNotOurs):
		return err
	}
	dial, ok := errors.AsType[*net.OpError](err)
	t.ambiguous = t.ambiguous || !ok || dial.Op != "dial"
	// Other connections to a server that swallows requests are no better.
	c.http.CloseIdleConnections()
	if caller.Err() != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, caller.Err())
	}
	// The try's own time limit must not look like the caller's.
	return fmt.Errorf("%w: %s", ErrUnavailable, reason(err))
}

func reason(err error) string {
	err = withoutURL(err)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return "no answer in time"
	}
	return err.Error()
}

func (c *Client) request(ctx context.Context, server string, call call, wait time.Duration) (*http.Request, error) {
	var body io.Reader
	if call.body != nil {
		text, err := json.Marshal(call.body(wait))
		if err != nil {
			return nil, fmt.Errorf("client: request body: %w", err)
		}
		body = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, call.method, server+call.path, body)
	if err != nil {
		return nil, fmt.Errorf("client: %w", withoutURL(err))
	}
	if body != nil {
		req.Header.Set("Content-Type", wire.TypeJSON)
	}
	if call.key != "" {
		req.Header.Set(wire.HeaderIdempotencyKey, call.key)
	}
	if call.lease != "" {
		req.Header.Set(wire.HeaderLease, call.lease)
	}
	if c.bearer != nil {
		credential, err := c.bearer(ctx)
		if err != nil {
			return nil, fmt.Errorf("client: %w", err)
		}
		req.Header.Set("Authorization", "Bearer "+credential)
	}
	return req, nil
}

// watch probes a request's server while the request waits in the queue, and cancels the
// request when the server does not answer: a frozen one would keep it for ever. ended
// waits for the watch to end, which it does with ctx.
func (c *Client) watch(ctx context.Context, cancel func(), server string, wait time.Duration, t *tries) (ended func()) {
	if wait <= probeEvery {
		return func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for sleep(ctx, probeEvery) == nil {
			if err := c.probe(ctx, server); err != nil {
				cancel()
				return
			}
			t.touch()
		}
	}()
	return func() { <-done }
}

// probe returns an error if a server does not answer at all.
func (c *Client) probe(ctx context.Context, server string) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server+"/healthz", nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, io.LimitReader(resp.Body, maxBody))
	return err
}

// withoutURL drops the URL from the error, which the caller knows.
func withoutURL(err error) error {
	if failed, ok := errors.AsType[*url.Error](err); ok {
		return failed.Err
	}
	return err
}

var errNotOurs = errors.New("the answer is not the lock service's")

// maxBody bounds an answer, in bytes: the longest is a page of locks.
const maxBody = 16 << 20

func read(resp *http.Response, into any) error {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return fmt.Errorf("the answer broke off: %w", err)
	}
	if resp.StatusCode >= http.StatusBadRequest {
		return problemOf(resp, body)
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("client: %w: is the address right? %w", errNotOurs, err)
	}
	return nil
}

func problemOf(resp *http.Response, body []byte) error {
	e := &ProblemError{}
	if json.Unmarshal(body, &e.Problem) != nil || e.Type == "" { // not from the service: a proxy's
		e.Problem = wire.Problem{Type: "about:blank", Title: http.StatusText(resp.StatusCode)}
	}
	e.Status = resp.StatusCode
	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
		e.RetryAfter = time.Duration(seconds) * time.Second
	}
	return e
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

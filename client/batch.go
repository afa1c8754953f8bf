package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fencelock/fencelock/api/wire"
)

// Calls that many goroutines make at once share requests, since most of a call's cost is its request. The
// client sends a call at once while fewer than batchAfter requests are under way to the server, so a single
// caller sends one request for each call. Otherwise acquires that do not wait in the queue, extends and
// releases gather. They are sent together as one POST /locks/batch when a request under way ends, and at the
// latest after gatherAtMost; only one batch is under way at a time. For its caller, a call in a batch behaves
// like a call that is sent alone: it has its own key, time limit, outcome and tries at other servers. A caller
// that gives up leaves the batch, which continues for the others; if the batch grants that caller a lease, the
// client releases it. When all callers have left, the request is cancelled. Calls with different credentials
// are in different batches. If a server, or a proxy, refuses a batch as a whole, the client sends it single
// requests for a minute.

const (
	batchAfter    = 2                    // the default of WithBatchAfter
	gatherAtMost  = 5 * time.Millisecond // short compared with a request
	maxBatch      = 128                  // operations in one batch
	maxBatchBytes = 60 << 10             // of a batch's body; a server accepts 64 KiB
	noBatchesFor  = time.Minute
)

// WithBatchAfter sets how many requests may be under way to a server before further calls of this client are
// sent in batches; default 2. Acquires with a Wait of 0, extends and releases then gather for up to 5ms, and
// are sent together in one POST /locks/batch. Each call keeps its own outcome and time limit. With 0 every such
// call is sent in a batch, with a negative number none.
func WithBatchAfter(requests int) Option { return func(c *Client) { c.batchAfter = requests } }

// errNotSent: the call gave up before it was sent.
var errNotSent = errors.New("the request was not sent")

// batcher gathers the calls to one server.
type batcher struct {
	client *Client
	server *peer

	mu       sync.Mutex
	underWay int // requests under way, each a single call or a batch
	waiting  []*gathered
	timer    *time.Timer // sends calls that have gathered for gatherAtMost; nil before the first
	refused  time.Time   // no batch is sent before this time
}

// gathered is a call that waits for a batch, or is part of one.
type gathered struct {
	*message

	values context.Context //nolint:containedctx // the batch has the values of its first call's context, for traces
	in     *batch          // nil until it is sent

	sent  chan struct{} // closed when in is set, or alone becomes true
	done  chan struct{} // closed when resp and err are set
	alone bool          // it is sent as a single request and counted as under way. It has a place in its lane, unless it was in a batch before
	left  bool          // its caller has given up
	resp  response
	err   error
}

// batch is one request.
type batch struct {
	calls   []*gathered
	sent    time.Time
	lane    lane
	waiting int // the number of callers that have not left
	cancel  context.CancelFunc
}

// turn is a message that may be sent now: it has a place in a lane, or is part of a batch that has one.
type turn struct {
	message  *message
	server   *peer
	wait     time.Duration // how long the server is asked to keep it waiting in the queue
	sent     time.Time     // not after the request is sent: validity counts from here
	lane     lane          // nil for a message in a batch
	counted  bool          // the batcher counts it as under way
	gathered *gathered     // nil for a message that is sent alone
}

// turn waits in the client's own queue, at most for the client's time limit, until the call may be sent to the server.
func (c *Client) turn(ctx context.Context, server *peer, call *call) (*turn, error) {
	t := &turn{server: server}
	if call.waits() {
		if err := server.waits.enter(ctx, c.timeout); err != nil {
			t.sent = time.Now()
			return t, err
		}
		t.lane = server.waits
	}
	t.wait = call.left()
	m, err := c.message(ctx, call, t.wait)
	if t.message = m; err == nil && !call.waits() {
		err = c.gather(ctx, t)
	}
	if t.sent.IsZero() {
		t.sent = time.Now()
	}
	if err != nil {
		t.end()
	}
	return t, err
}

// gather waits until a message without a wait may be sent, alone or in a batch.
func (c *Client) gather(ctx context.Context, t *turn) error {
	b, lane := t.server.batcher, t.server.laneOf(t.message.extends())
	if t.message.fitsBatch() {
		g := b.enter(ctx, t.message)
		t.counted = g == nil
		if g != nil {
			return b.await(ctx, t, g, lane)
		}
	}
	if err := lane.enter(ctx, c.timeout); err != nil {
		return err
	}
	t.lane = lane
	return nil
}

// await waits until a gathered message is sent in a batch, or may be sent alone.
func (b *batcher) await(ctx context.Context, t *turn, g *gathered, lane lane) error {
	timer := time.NewTimer(b.client.timeout)
	defer timer.Stop()
	select {
	case <-g.sent:
	case <-timer.C:
		return b.leave(g, fmt.Errorf("too many calls of this client are under way to the server for %s", b.client.timeout))
	case <-ctx.Done():
		return b.leave(g, ctx.Err())
	}
	if g.alone {
		t.counted, t.lane = true, lane
		return nil
	}
	t.gathered, t.sent = g, g.in.sent
	return nil
}

// end gives up the place in the lane.
func (t *turn) end() {
	if t.lane != nil {
		t.lane.leave()
	}
	if t.counted {
		t.server.batcher.ended()
	}
}

// send sends the message, or waits for its batch.
func (c *Client) send(ctx context.Context, t *turn) (response, error) {
	g := t.gathered
	if g == nil {
		return c.sendAlone(ctx, t.server, t.message)
	}
	select {
	case <-g.done:
	case <-ctx.Done():
		return response{}, t.server.batcher.leave(g, ctx.Err())
	}
	if !g.alone {
		return g.resp, g.err
	}
	t.counted = true // the batch was refused: it is sent alone now
	lane := t.server.laneOf(t.message.extends())
	if err := lane.enter(ctx, c.timeout); err != nil {
		return response{}, err
	}
	t.lane = lane
	return c.sendAlone(ctx, t.server, t.message)
}

// extends reports whether the message extends a lease. Such messages are sent first.
func (m *message) extends() bool { return m.operation() == wire.OperationExtend }

// operation returns the message's operation in a batch; "" if it cannot be part of one.
func (m *message) operation() string {
	switch {
	case m.waits():
		return ""
	case m.method == http.MethodPost && m.path == locksPath:
		return wire.OperationAcquire
	case m.method == http.MethodPost && m.path == currentLease+"/extend":
		return wire.OperationExtend
	case m.method == http.MethodDelete && m.path == currentLease:
		return wire.OperationRelease
	}
	return ""
}

// fitsBatch reports whether the message can be part of a batch. A lease id that the service did not make may
// change when it is sent as JSON instead of a header.
func (m *message) fitsBatch() bool {
	strange := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' }
	return m.operation() != "" && m.weight() <= maxBatchBytes/fewest && strings.IndexFunc(m.lease+m.key, strange) < 0
}

// fewest is the number of messages of the maximum size in a batch. A larger message is sent alone.
const fewest = 16

// appendTo appends the message in its form in a batch.
func (m *message) appendTo(body []byte) []byte {
	body = append(append(append(body, `{"operation":"`...), m.operation()...), '"')
	if m.key != "" {
		body = append(append(append(body, `,"idempotency_key":"`...), m.key...), '"')
	}
	if m.lease != "" {
		body = append(append(append(body, `,"lease_id":"`...), m.lease...), '"')
	}
	if m.json != nil {
		body = append(append(body, `,"body":`...), m.json...)
	}
	return append(body, '}')
}

// enter returns nil if the message may be sent at once, and counts it as under way. Otherwise the message
// begins to gather.
func (b *batcher) enter(ctx context.Context, m *message) *gathered {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.client.batchAfter < 0 || b.underWay < b.client.batchAfter || time.Now().Before(b.refused) {
		b.underWay++
		return nil
	}
	g := &gathered{message: m, values: context.WithoutCancel(ctx), sent: make(chan struct{}), done: make(chan struct{})}
	at := len(b.waiting)
	if m.extends() {
		for at > 0 && !b.waiting[at-1].extends() {
			at--
		}
	}
	if b.waiting = slices.Insert(b.waiting, at, g); len(b.waiting) == 1 {
		b.wake()
	}
	return g
}

// wake sends the gathered calls after gatherAtMost.
func (b *batcher) wake() {
	if b.timer != nil {
		b.timer.Reset(gatherAtMost)
		return
	}
	b.timer = time.AfterFunc(gatherAtMost, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for len(b.waiting) > 0 && b.sendNext() {
		}
		if len(b.waiting) > 0 { // no place is free
			b.timer.Reset(gatherAtMost)
		}
	})
}

// ended records that a request is not under way any more.
func (b *batcher) ended() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endedLocked()
}

func (b *batcher) endedLocked() {
	b.underWay--
	for b.underWay < b.client.batchAfter && len(b.waiting) > 0 && b.sendNext() {
	}
}

// sendNext sends the first gathered call together with all others that fit into its batch. Only one batch is
// under way at a time, so that it gets its response soon; calls that gather meanwhile form the next one. While
// it is under way, a second batch may contain extends only. sendNext returns false if no place is free.
func (b *batcher) sendNext() bool {
	if len(b.waiting) == 1 && b.client.batchAfter > 0 {
		return b.sendOne()
	}
	lane, extendsOnly := b.server.batches, false
	if !lane.try() {
		lane, extendsOnly = b.server.renewals, true
		if !b.waiting[0].extends() || !lane.try() {
			return false
		}
	}
	calls, size := make([]*gathered, 0, len(b.waiting)), 0
	b.waiting = slices.DeleteFunc(b.waiting, func(g *gathered) bool {
		fits := len(calls) < maxBatch && (len(calls) == 0 || g.credential == calls[0].credential) && (!extendsOnly || g.extends())
		if weight := g.weight(); fits && size+weight <= maxBatchBytes {
			calls, size = append(calls, g), size+weight
			return true
		}
		return false
	})
	b.underWay++
	ctx, cancel := context.WithCancel(calls[0].values)
	sent := &batch{calls: calls, sent: time.Now(), lane: lane, waiting: len(calls), cancel: cancel}
	for _, g := range calls {
		g.in = sent
		close(g.sent)
	}
	go b.perform(ctx, sent)
	return true
}

// sendOne lets the only gathered call be sent alone.
func (b *batcher) sendOne() bool {
	g := b.waiting[0]
	if !b.server.laneOf(g.extends()).try() {
		return false
	}
	b.waiting = nil
	b.underWay++
	g.alone = true
	close(g.sent)
	return true
}

// weight is an upper bound of the message's bytes in a batch.
func (m *message) weight() int {
	const names = 80
	return names + len(m.key) + len(m.lease) + len(m.json)
}

// leave ends the wait of g's caller for the given reason. The error is errNotSent if the message was not sent.
func (b *batcher) leave(g *gathered, reason error) error {
	b.mu.Lock()
	sent, last := g.in, false
	g.left = true
	switch {
	case g.alone:
		if sent == nil {
			b.server.laneOf(g.extends()).leave()
		}
		b.endedLocked()
	case sent != nil:
		sent.waiting--
		if last = sent.waiting == 0; !last {
			g.late = append(g.late, g)
		}
	default:
		b.waiting = slices.DeleteFunc(b.waiting, func(other *gathered) bool { return other == g })
	}
	b.mu.Unlock()
	switch {
	case sent == nil || g.alone:
		return fmt.Errorf("%w: %w", errNotSent, reason)
	case last: // like a single request, it must not be under way when its caller continues
		sent.cancel()
		<-g.done
	}
	return reason
}

// perform sends a batch, and gives each call its result.
func (b *batcher) perform(ctx context.Context, sent *batch) {
	defer sent.cancel()
	resp, err := b.request(ctx, sent)
	sent.lane.leave()
	results, understood := resp.results(len(sent.calls))
	b.mu.Lock()
	defer b.mu.Unlock()
	alone := err == nil && !understood && resp.refusesBatches()
	if alone {
		b.refused = time.Now().Add(noBatchesFor)
	}
	for i, g := range sent.calls {
		switch {
		case alone:
			g.alone = true
			if !g.left {
				b.underWay++
			}
		case err != nil:
			g.err = err
		case understood:
			g.resp = resp.of(results[i])
		case resp.status < http.StatusMultipleChoices:
			g.err = fmt.Errorf("client: %w: is the address right?", errNotOurs)
		default:
			g.resp = resp
		}
		close(g.done)
	}
	b.endedLocked()
	if len(b.waiting) > 0 {
		b.sendNext()
	}
}

func (b *batcher) request(ctx context.Context, sent *batch) (response, error) {
	body := []byte(`{"operations":[`)
	for i, g := range sent.calls {
		if i > 0 {
			body = append(body, ',')
		}
		body = g.appendTo(body)
	}
	req, err := newRequest(ctx, http.MethodPost, b.server.url+locksPath+"/batch", append(body, `]}`...), sent.calls[0].credential)
	if err != nil {
		return response{}, err
	}
	return b.client.exchange(req)
}

// results returns the n results of a batch; false if the response is not that of a batch.
func (r *response) results(n int) ([]wire.BatchResult, bool) {
	var all wire.BatchResults
	understood := r.status == http.StatusOK && json.Unmarshal(r.body, &all) == nil && len(all.Results) == n
	return all.Results, understood
}

// of returns one result of the batch as the response to a single request.
func (r *response) of(result wire.BatchResult) response {
	one := *r
	one.status, one.body, one.retryAfter = result.Status, result.Body, time.Duration(result.RetryAfterS)*time.Second
	return one
}

// refusesBatches reports whether the response refuses the batch itself: an older server or a proxy does not
// know the route, or does not accept the body. In this case no operation was done.
func (r *response) refusesBatches() bool {
	switch r.status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false // a single request would get the same response
	}
	return r.status >= http.StatusBadRequest && r.status < http.StatusInternalServerError || r.status == http.StatusNotImplemented
}

// endLate ends the leases that batches granted to tries after their call had given them up, except the lease
// that another try got under the same key. If a batch got no response and the call got no lease, abandon ends
// what the batch granted.
func (c *Client) endLate(ctx context.Context, tries []*gathered, got wire.Lease, abandon func(context.Context)) {
	for _, g := range tries {
		select {
		case <-g.done:
		case <-ctx.Done():
			return
		}
		var late wire.Lease
		switch {
		case g.alone: // it was not sent
		case g.err != nil && got.LeaseID == "":
			abandon(ctx)
		case g.err == nil && g.resp.read(&late) == nil && !sameTokens(late, got):
			_, _ = c.do(ctx, call{method: http.MethodDelete, path: currentLease, lease: late.LeaseID, quiet: true}) // else the TTL ends it
		}
	}
}

// sameTokens reports whether two grants under one key are the same lease.
func sameTokens(a, b wire.Lease) bool {
	return a.FencingToken == b.FencingToken && slices.EqualFunc(a.Resources, b.Resources, func(p, q wire.LeasePart) bool {
		return p.FencingToken == q.FencingToken
	})
}

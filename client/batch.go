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

// Calls that many goroutines make at once share requests, since most of what a call costs is its
// request. The first batchAfter calls to a server that are under way are sent as they are, so a
// caller alone sends a request for each. Further acquires that do not wait in the queue, extends
// and releases gather; when one that is under way is answered, and gatherAtMost later in any case,
// they are sent together as one POST /locks/batch. For its caller a call in a batch is like one that is
// sent alone: it has its own key, time limit and outcome, and its own tries at the next server. A
// caller that gives up leaves the batch to the others, and a lease that it was granted is released when
// the batch is answered. The request is cancelled when all have left. Calls with different
// credentials are in different batches. A server, or a proxy, that refuses the batch as a whole is sent
// single requests for a minute.

const (
	batchAfter    = 2                    // the default of WithBatchAfter
	gatherAtMost  = 5 * time.Millisecond // is short beside what an answer may take
	maxBatch      = 128                  // operations
	maxBatchBytes = 60 << 10             // of a body, of which a server takes 64 KiB
	noBatchesFor  = time.Minute
)

// WithBatchAfter sets how many requests may be under way to a server before further calls of this
// client (acquires with a Wait of 0, extends and releases) gather for up to 5ms, to be sent together in one POST
// /locks/batch; default 2. Each call has its own outcome and time limit. 0 sends every such call in a batch, and a negative number none.
func WithBatchAfter(requests int) Option { return func(c *Client) { c.batchAfter = requests } }

// errNotSent: the call gave up while it was gathered.
var errNotSent = errors.New("the request was not sent")

// batcher gathers the calls to one server.
type batcher struct {
	client *Client
	server *peer

	mu       sync.Mutex
	underWay int // requests, of one call or of several
	waiting  []*gathered
	timer    *time.Timer // sends what has been waiting for long; nil before the first
	refused  time.Time   // until then no batch is sent
}

// gathered is a call that waits for a batch, or is in one.
type gathered struct {
	*message

	values context.Context //nolint:containedctx // the batch has the values of its first call's, for traces
	in     *batch          // nil until it is sent

	done  chan struct{} // closed when the rest is set
	alone bool          // it is to be sent alone, and is counted as under way
	resp  response
	err   error
}

// batch is one request.
type batch struct {
	calls   []*gathered
	waiting int // callers that have not left
	cancel  context.CancelFunc
}

// send sends the message, alone or in a batch.
func (c *Client) send(ctx context.Context, server *peer, m *message) (response, error) {
	if !m.fitsBatch() {
		return c.sendAlone(ctx, server, m)
	}
	b := server.batcher
	g := b.enter(ctx, m)
	if g == nil {
		defer b.ended()
		return c.sendAlone(ctx, server, m)
	}
	select {
	case <-g.done:
	case <-ctx.Done():
		return response{}, b.leave(ctx, g)
	}
	if g.alone {
		defer b.ended()
		return c.sendAlone(ctx, server, m)
	}
	return g.resp, g.err
}

// operation is what the message is in a batch; "" if it cannot be in one.
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

// fitsBatch says whether the message can be in a batch. A lease id that no service has made may not
// be the same in JSON as in a header.
func (m *message) fitsBatch() bool {
	strange := func(r rune) bool { return r <= ' ' || r >= 0x7f || r == '"' || r == '\\' }
	return m.operation() != "" && m.weight() <= maxBatchBytes/fewest && strings.IndexFunc(m.lease+m.key, strange) < 0
}

// fewest messages that fill a batch: a larger one is sent alone.
const fewest = 16

// appendTo appends the message as a batch has it.
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

// enter counts the message as under way and returns nil, or has it gathered.
func (b *batcher) enter(ctx context.Context, m *message) *gathered {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.client.batchAfter < 0 || b.underWay < b.client.batchAfter || time.Now().Before(b.refused) {
		b.underWay++
		return nil
	}
	g := &gathered{message: m, values: context.WithoutCancel(ctx), done: make(chan struct{})}
	if b.waiting = append(b.waiting, g); len(b.waiting) == 1 {
		b.wake()
	}
	return g
}

// wake sends in gatherAtMost what waits now.
func (b *batcher) wake() {
	if b.timer != nil {
		b.timer.Reset(gatherAtMost)
		return
	}
	b.timer = time.AfterFunc(gatherAtMost, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for len(b.waiting) > 0 {
			b.sendNext()
		}
	})
}

// ended says that a request is not under way any more.
func (b *batcher) ended() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.endedLocked()
}

func (b *batcher) endedLocked() {
	b.underWay--
	for b.underWay < b.client.batchAfter && len(b.waiting) > 0 {
		b.sendNext()
	}
}

// sendNext sends the first that waits, with all others that can be in its batch.
func (b *batcher) sendNext() {
	calls, size := make([]*gathered, 0, len(b.waiting)), 0
	b.waiting = slices.DeleteFunc(b.waiting, func(g *gathered) bool {
		fits := len(calls) < maxBatch && (len(calls) == 0 || g.credential == calls[0].credential)
		if weight := g.weight(); fits && size+weight <= maxBatchBytes {
			calls, size = append(calls, g), size+weight
			return true
		}
		return false
	})
	b.underWay++
	if len(calls) == 1 && b.client.batchAfter > 0 {
		calls[0].alone = true
		close(calls[0].done)
		return
	}
	ctx, cancel := context.WithCancel(calls[0].values)
	sent := &batch{calls: calls, waiting: len(calls), cancel: cancel}
	for _, g := range calls {
		g.in = sent
	}
	go b.perform(ctx, sent)
}

// weight is more than the bytes of the message in a batch.
func (m *message) weight() int {
	const names = 80
	return names + len(m.key) + len(m.lease) + len(m.json)
}

// leave ends what the caller of g waits for, since its context has ended. The error is errNotSent
// if the message was not sent.
func (b *batcher) leave(ctx context.Context, g *gathered) error {
	b.mu.Lock()
	sent, last := g.in, false
	switch {
	case g.alone:
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
		return fmt.Errorf("%w: %w", errNotSent, ctx.Err())
	case last: // as a single request, it is not under way when its caller continues
		sent.cancel()
		<-g.done
	}
	return ctx.Err()
}

// perform sends a batch, and gives each call its outcome.
func (b *batcher) perform(ctx context.Context, sent *batch) {
	defer sent.cancel()
	resp, err := b.request(ctx, sent)
	results, understood := resp.results(len(sent.calls))
	b.mu.Lock()
	defer b.mu.Unlock()
	alone := err == nil && !understood && resp.refusesBatches()
	if alone {
		b.refused = time.Now().Add(noBatchesFor)
		b.underWay += len(sent.calls)
	}
	for i, g := range sent.calls {
		switch {
		case alone:
			g.alone = true
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

// results are those of a batch of n; false if it is not the answer to one.
func (r *response) results(n int) ([]wire.BatchResult, bool) {
	var all wire.BatchResults
	understood := r.status == http.StatusOK && json.Unmarshal(r.body, &all) == nil && len(all.Results) == n
	return all.Results, understood
}

// of is one result of the batch as the response to a single request.
func (r *response) of(result wire.BatchResult) response {
	one := *r
	one.status, one.body, one.retryAfter = result.Status, result.Body, time.Duration(result.RetryAfterS)*time.Second
	return one
}

// refusesBatches says whether the response refuses the batch as such: an older server, or a proxy,
// does not know the route, or it does not like the body. No operation was done then.
func (r *response) refusesBatches() bool {
	switch r.status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false // each call would get it, too
	}
	return r.status >= http.StatusBadRequest && r.status < http.StatusInternalServerError || r.status == http.StatusNotImplemented
}

// endLate ends what tries were granted in batches after their call had given them up, but not the
// lease that another try found under the same key. Where the batch got no response and the call no lease, abandon ends it.
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

// sameTokens says whether two grants under one key are the same lease.
func sameTokens(a, b wire.Lease) bool {
	return a.FencingToken == b.FencingToken && slices.EqualFunc(a.Resources, b.Resources, func(p, q wire.LeasePart) bool {
		return p.FencingToken == q.FencingToken
	})
}

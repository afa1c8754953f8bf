// Package cleanup removes votes, released locks and tickets from nodes in the background
// (rule 16).
package cleanup

import (
	"context"
	"errors"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Cleaner sends retractions, releases and dequeues in the background. It repeats each until the node has
// replied, or until the target of the operation has expired. While a node is down, it repeats only one
// operation to probe the node. It is safe for concurrent use.
type Cleaner struct {
	nodes []node.Node
	bound int

	mu      sync.Mutex
	pending int
	absent  []absent // by node
	closed  bool
	idle    chan struct{} // closed when nothing is pending and the cleaner is closed
}

// absent queues the operations for a node that is down. Only one operation at a time probes whether the node
// responds again, because a busy server has a hundred thousand of them.
type absent struct {
	waiting []*cleanup
	pause   time.Duration // before the last probe
	due     bool          // a probe is scheduled
}

const (
	firstPause = 20 * time.Millisecond
	maxPause   = 2 * time.Second
	// maxPending bounds the operations that wait for nodes that are down. Beyond it the cleaner drops
	// operations; their targets expire by themselves.
	maxPending = 100_000
)

// Recheck is how often an operation that found nothing is sent again. The node may not have read the
// acquire yet, because the acquire came over another connection than the retraction or the release.
type Recheck int

const (
	// Never: the reply to the operation is final.
	Never Recheck = 0
	// Once: for a release, because another server's acquire may still arrive.
	Once Recheck = 1
	// Always: for a retraction of an acquire that got no reply.
	Always Recheck = math.MaxInt
)

// rejoinTime is the longest time from the reads of a rejoin to the node's first vote. latePause is the
// first pause before a release that may come too early. It is longer than a node takes to read earlier
// data from other connections. It may be long, because a node is quarantined for far longer than its
// rejoin takes.
const (
	rejoinTime = 4 * time.Second
	latePause  = 200 * time.Millisecond
)

// New makes a cleaner of the nodes.
func New(nodes []node.Node) *Cleaner {
	return &Cleaner{nodes: nodes, bound: maxPending, absent: make([]absent, len(nodes)), idle: make(chan struct{})}
}

// Send sends op to node i, until the given time at most.
func (c *Cleaner) Send(i int, op node.Op, until time.Time, again Recheck) {
	c.SendThrough(nil, i, op, until, again)
}

// SendThrough is Send whose operations are submitted by submit, which may drop one that is not wanted any more: it
// then returns false. nil submits to the node.
func (c *Cleaner) SendThrough(submit Submit, i int, op node.Op, until time.Time, again Recheck) {
	if c.begin() {
		t := &cleanup{cleaner: c, op: op, until: until, recheck: again, pause: firstPause, through: submit}
		t.submit(i)
	}
}

// Submit submits an operation to the node with this index, or returns false.
type Submit = func(op *node.Op, nodeIndex int, sink node.Sink) bool

// SendAfter is Send after a first pause.
func (c *Cleaner) SendAfter(first time.Duration, i int, op node.Op, until time.Time, again Recheck) {
	if c.begin() {
		t := &cleanup{cleaner: c, op: op, until: until, recheck: again, pause: first}
		t.again(i)
	}
}

// SendLater sends op, after a while, to node i, which may soon get the target of op from a rejoin or from
// another server.
func (c *Cleaner) SendLater(i int, op node.Op) {
	c.SendAfter(latePause, i, op, time.Now().Add(rejoinTime), Never)
}

// Pending counts the unfinished operations.
func (c *Cleaner) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending
}

// begin counts another pending operation, unless there are too many.
func (c *Cleaner) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.pending >= c.bound {
		return false
	}
	c.pending++
	return true
}

func (c *Cleaner) finished() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget(1)
}

// forget subtracts n. The caller holds c.mu.
func (c *Cleaner) forget(n int) {
	c.pending -= n
	if c.closed && c.pending == 0 && n > 0 {
		close(c.idle)
	}
}

// await queues t for node i, which is down; it returns false after close.
func (c *Cleaner) await(i int, t *cleanup) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	a := &c.absent[i]
	if len(a.waiting) == 0 && !t.waited { // the pause belongs to an earlier outage
		a.pause = 0
	}
	t.waited = true
	a.waiting = append(a.waiting, t)
	c.tryLater(i)
	return true
}

// tryLater schedules a probe with one of the operations for node i. The caller holds c.mu.
func (c *Cleaner) tryLater(i int) {
	if a := &c.absent[i]; !a.due {
		a.due = true
		time.AfterFunc(pause.Grow(&a.pause, firstPause, maxPause), func() { c.try(i) })
	}
}

// try sends one of the operations for node i, and drops those that are too late.
func (c *Cleaner) try(i int) {
	c.mu.Lock()
	a, now := &c.absent[i], time.Now()
	a.due = false
	all := len(a.waiting)
	a.waiting = slices.DeleteFunc(a.waiting, func(t *cleanup) bool { return !now.Before(t.until) })
	c.forget(all - len(a.waiting))
	next := a.take(1)
	c.mu.Unlock()
	for _, t := range next {
		t.submit(i)
	}
}

// heard continues with the operations for node i. Each reply sends two of them, so that all are sent soon and
// never at once. An error that does not prove that the node is down, such as a time limit, is inconclusive:
// another probe follows.
func (c *Cleaner) heard(i int, err error) {
	c.mu.Lock()
	var next []*cleanup
	if a := &c.absent[i]; err == nil {
		a.pause = 0
		next = a.take(2) //nolint:mnd // twice as many after each round trip
	} else if len(a.waiting) > 0 {
		c.tryLater(i)
	}
	c.mu.Unlock()
	for _, t := range next {
		t.submit(i)
	}
}

// take removes n of the waiting operations, or all if there are fewer.
func (a *absent) take(n int) []*cleanup {
	rest := len(a.waiting) - min(n, len(a.waiting))
	taken := slices.Clone(a.waiting[rest:])
	clear(a.waiting[rest:])
	if a.waiting = a.waiting[:rest]; rest == 0 {
		a.waiting = nil
	}
	return taken
}

func (c *Cleaner) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// Close waits until every pending operation has got one reply, or until ctx ends. A closed cleaner sends
// nothing.
func (c *Cleaner) Close(ctx context.Context) {
	c.mu.Lock()
	if !c.closed && c.pending == 0 {
		close(c.idle)
	}
	c.closed = true
	for i := range c.absent {
		c.forget(len(c.absent[i].take(math.MaxInt)))
	}
	c.mu.Unlock()
	select {
	case <-c.idle:
	case <-ctx.Done():
	}
}

// cleanup is one operation until it is done.
type cleanup struct {
	cleaner *Cleaner
	op      node.Op
	until   time.Time
	recheck Recheck
	pause   time.Duration
	waited  bool   // it has waited for the node while the node was down
	through Submit // nil for the node's own
}

// submit sends a copy of the operation, because the node may still use the previous copy.
func (t *cleanup) submit(i int) {
	op := t.op
	op.Deadline = t.until
	switch {
	case t.through == nil:
		t.cleaner.nodes[i].Submit(&op, i, t)
	case !t.through(&op, i, t):
		t.cleaner.finished()
		t.cleaner.heard(i, errDropped) // if it was to probe the node, another one does
	}
}

var errDropped = errors.New("the operation was dropped")

// Deliver processes the node's reply.
func (t *cleanup) Deliver(i int, reply node.Reply) {
	switch {
	case t.done(reply.Outcome):
		t.cleaner.finished()
	case errors.Is(reply.Err, node.ErrNodeDown) && t.cleaner.await(i, t):
		return
	default:
		t.op.Epoch = max(t.op.Epoch, reply.Epoch) // a release must carry the node's epoch, or a later one
		t.again(i)
	}
	t.cleaner.heard(i, reply.Err)
}

// again sends the operation after the pause, unless it is too late for that.
func (t *cleanup) again(i int) {
	if !time.Now().Add(t.pause).Before(t.until) || t.cleaner.isClosed() {
		t.cleaner.finished()
		return
	}
	pause := t.pause
	t.pause = min(2*t.pause, maxPause) // set before the next reply can arrive
	time.AfterFunc(pause, func() { t.submit(i) })
}

func (t *cleanup) done(o node.Outcome) bool {
	switch {
	case o != node.NotHeld || t.recheck == Never:
		return o == node.Granted || o == node.NotHeld
	case t.recheck != Always:
		t.recheck--
		t.pause = max(t.pause, latePause)
	}
	return false
}

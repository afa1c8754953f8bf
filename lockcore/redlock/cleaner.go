package redlock

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// cleaner sends retractions, releases and dequeues in the background (rule 16):
// each is repeated until its node has answered, or what it takes away has ended by
// itself.
type cleaner struct {
	nodes []node.Node
	bound int

	mu      sync.Mutex
	pending int
	dropped int64
	closed  bool
	idle    chan struct{} // closed when nothing is pending and the cleaner is closed
}

// The pace of repetition, and how many operations may wait for dead nodes. What one
// beyond that would take away is left to its TTL.
const (
	cleanFirstPause = 20 * time.Millisecond
	cleanMaxPause   = 2 * time.Second
	cleanBound      = 100_000
)

// recheck is how often an operation that found nothing is sent again. The acquire
// may still lie in the node's socket, to be read after a retraction or a release
// that came by another connection.
type recheck int

const (
	recheckNever  recheck = 0
	recheckOnce   recheck = 1           // a release: another server's acquire may be on its way
	recheckAlways recheck = math.MaxInt // a retraction of an acquire that was never answered
)

// rejoinTime is how long a node may take from what a rejoin reads for it to its
// first vote, and latePause how soon it is looked what a node came to hold: seldom,
// since a node is silent for far longer than its rejoin takes, and later than the
// node reads what other connections had brought before.
const (
	rejoinTime = 4 * time.Second
	latePause  = 200 * time.Millisecond
)

func newCleaner(nodes []node.Node) *cleaner {
	return &cleaner{nodes: nodes, bound: cleanBound, idle: make(chan struct{})}
}

// send does op on node i, and gives up at the instant until.
func (c *cleaner) send(i int, op node.Op, until time.Time, again recheck) {
	if c.begin() {
		d := &cleanup{cleaner: c, op: op, until: until, recheck: again, pause: cleanFirstPause}
		d.submit(i)
	}
}

// sendLater does op on node i for the first time after latePause: the node may
// soon come to hold what op takes away.
func (c *cleaner) sendLater(i int, op node.Op, until time.Time) {
	if c.begin() {
		d := &cleanup{cleaner: c, op: op, until: until, pause: latePause}
		d.Deliver(i, node.Reply{Outcome: node.NotAdmitted})
	}
}

// begin counts one more that is pending, unless there are too many.
func (c *cleaner) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.pending >= c.bound {
		c.dropped++
		return false
	}
	c.pending++
	return true
}

func (c *cleaner) finished() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending--
	if c.closed && c.pending == 0 {
		close(c.idle)
	}
}

func (c *cleaner) isClosed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed
}

// close waits for what is under way to be answered once, or for ctx.
func (c *cleaner) close(ctx context.Context) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	if c.pending == 0 {
		close(c.idle)
	}
	c.mu.Unlock()
	select {
	case <-c.idle:
	case <-ctx.Done():
	}
}

// disposal is one operation until it is done.
type cleanup struct {
	cleaner *cleaner
	op      node.Op
	until   time.Time
	recheck recheck
	pause   time.Duration
}

// submit sends the operation. It is copied: the last try's may still be in use.
func (d *cleanup) submit(i int) {
	op := d.op
	op.Deadline = d.until
	d.cleaner.nodes[i].Submit(&op, i, d)
}

// Deliver takes the node's answer.
func (d *cleanup) Deliver(i int, reply node.Reply) {
	if d.done(reply.Outcome) || !time.Now().Add(d.pause).Before(d.until) || d.cleaner.isClosed() {
		d.cleaner.finished()
		return
	}
	pause := d.pause
	d.pause = min(2*d.pause, cleanMaxPause) // before the next answer can come
	time.AfterFunc(pause, func() { d.submit(i) })
}

func (d *cleanup) done(o node.Outcome) bool {
	switch {
	case o != node.NotHeld || d.recheck == recheckNever:
		return o == node.Granted || o == node.NotHeld
	case d.recheck != recheckAlways:
		d.recheck--
		d.pause = max(d.pause, latePause)
	}
	return false
}

package lockcore

import (
	"context"
	"sync"
	"time"
)

// cleaner takes back votes in the background (rule 16): each release is
// repeated until its node has answered, or the vote has ended by itself.
//
// A release that found nothing, after an acquire that was never answered, is
// repeated as well: the acquire may still lie in the frozen node's socket and
// be read after a release that came by a newer connection.
type cleaner struct {
	nodes []Node
	bound int

	mu      sync.Mutex
	pending int
	dropped int64
	closed  bool
	idle    chan struct{} // closed when nothing is pending and the cleaner is closed
}

// The pace of repetition, and how many releases may wait for dead nodes. One
// beyond that is left to its TTL.
const (
	cleanFirstPause = 20 * time.Millisecond
	cleanMostPause  = 2 * time.Second
	cleanBound      = 100_000
)

// rejoinTime is how long a node may take from what a rejoin reads for it to its
// first vote, and rejoinPause how soon it is looked whether it votes: seldom,
// since a node is silent for far longer than its rejoin takes.
const (
	rejoinTime  = 4 * time.Second
	rejoinPause = 200 * time.Millisecond
)

func newCleaner(nodes []Node) *cleaner {
	return &cleaner{nodes: nodes, bound: cleanBound, idle: make(chan struct{})}
}

// release takes back the vote that op names on node i. It gives up at the
// instant until; uncertain says that the vote may be given later yet.
func (c *cleaner) release(i int, op Op, until time.Time, uncertain bool) {
	if c.begin() {
		d := &disposal{cleaner: c, op: op, until: until, uncertain: uncertain, pause: cleanFirstPause}
		d.submit(i)
	}
}

// releaseLater takes back what node i may come to hold when it is admitted.
func (c *cleaner) releaseLater(i int, op Op, until time.Time) {
	if c.begin() {
		d := &disposal{cleaner: c, op: op, until: until, pause: rejoinPause}
		d.Deliver(i, Reply{Outcome: NotAdmitted})
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

// disposal is one vote on its way back.
type disposal struct {
	cleaner   *cleaner
	op        Op
	until     time.Time
	uncertain bool
	pause     time.Duration
}

// submit sends the release. The op is copied: the last try's may still be in use.
func (d *disposal) submit(i int) {
	op := d.op
	op.Deadline = d.until
	d.cleaner.nodes[i].Submit(&op, i, d)
}

// Deliver takes the node's answer.
func (d *disposal) Deliver(i int, reply Reply) {
	gone := reply.Outcome == Granted || reply.Outcome == NotHeld && !d.uncertain
	if gone || !time.Now().Add(d.pause).Before(d.until) || d.cleaner.isClosed() {
		d.cleaner.finished()
		return
	}
	pause := d.pause
	d.pause = min(2*d.pause, cleanMostPause) // before the next answer can come
	time.AfterFunc(pause, func() { d.submit(i) })
}

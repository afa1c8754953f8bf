package lockcore

import (
	"context"
	"math"
	"sync"
	"time"
)

// cleaner takes back votes in the background (rule 16): each release is
// repeated until its node has answered, or the vote has ended by itself.
//
// A release that found nothing is repeated as well where the acquire may still
// lie in the node's socket, to be read after a release that came by another
// connection: always after an acquire that was never answered, and once where
// the rest of a quorum gave the lease up.
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
	forever         = math.MaxInt // doubts that do not end
)

// rejoinTime is how long a node may take from what a rejoin reads for it to its
// first vote, and latePause how soon it is looked what a node came to hold: seldom,
// since a node is silent for far longer than its rejoin takes, and later than the
// node reads what other connections had brought before.
const (
	rejoinTime = 4 * time.Second
	latePause  = 200 * time.Millisecond
)

func newCleaner(nodes []Node) *cleaner {
	return &cleaner{nodes: nodes, bound: cleanBound, idle: make(chan struct{})}
}

// release takes back the vote that op names on node i. It gives up at the
// instant until. doubts is how often an answer that there is no such vote is not
// believed, since it may be given later yet.
func (c *cleaner) release(i int, op Op, until time.Time, doubts int) {
	if c.begin() {
		d := &disposal{cleaner: c, op: op, until: until, doubts: doubts, pause: cleanFirstPause}
		d.submit(i)
	}
}

// releaseLater takes back what node i may come to hold soon.
func (c *cleaner) releaseLater(i int, op Op, until time.Time) {
	if c.begin() {
		d := &disposal{cleaner: c, op: op, until: until, pause: latePause}
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
	cleaner *cleaner
	op      Op
	until   time.Time
	doubts  int
	pause   time.Duration
}

// submit sends the release. The op is copied: the last try's may still be in use.
func (d *disposal) submit(i int) {
	op := d.op
	op.Deadline = d.until
	d.cleaner.nodes[i].Submit(&op, i, d)
}

// Deliver takes the node's answer.
func (d *disposal) Deliver(i int, reply Reply) {
	if d.gone(reply.Outcome) || !time.Now().Add(d.pause).Before(d.until) || d.cleaner.isClosed() {
		d.cleaner.finished()
		return
	}
	pause := d.pause
	d.pause = min(2*d.pause, cleanMostPause) // before the next answer can come
	time.AfterFunc(pause, func() { d.submit(i) })
}

func (d *disposal) gone(o Outcome) bool {
	switch {
	case o != NotHeld || d.doubts == 0:
		return o == Granted || o == NotHeld
	case d.doubts != forever:
		d.doubts--
		d.pause = max(d.pause, latePause)
	}
	return false
}

package waitqueue

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/internal/pause"
	"github.com/fencelock/fencelock/lockcore/node"
)

const (
	ticketTTL      = 3 * time.Second // from a heartbeat
	heartbeatPause = time.Second
	// restoredAtOnce is how many tickets are enqueued again with one call of a node: a
	// crowd costs far less so than one by one, and a batch has no room for all.
	restoredAtOnce = 100
	wakeGrace      = 3 * time.Millisecond // for a quorum of nodes to wake a waiter
	// wakeDelay is how long the wake of a dequeued ticket may be on its way. A later
	// wake means that the ticket is on the node again: a delayed enqueue came after
	// the dequeue.
	wakeDelay = 100 * time.Millisecond
)

// Run subscribes to the wakes of every node and keeps this server's tickets alive,
// until ctx ends.
func (q *Queue) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i, n := range q.cfg.Nodes {
		wg.Go(func() { n.Subscribe(ctx, q.server, listener{q, i}) })
		wg.Go(func() { q.heartbeat(ctx, i) })
	}
	wg.Wait()
}

// listener takes the wakes of one node.
type listener struct {
	*Queue
	node int
}

// Wake wakes the resource's first waiter here, whichever ticket the node named: the
// node may lack earlier ones. The waiter tries when a quorum of nodes has woken it,
// or a moment after the first did. A ticket without a waiter is dequeued on the node.
func (l listener) Wake(resource string, t node.Ticket) {
	if l.wakeFirst(resource, t) {
		return
	}
	op := node.Op{Kind: node.OpDequeue, Resource: resource, Ticket: t}
	if op.Validate() == nil { // else no node can have such a ticket
		l.cfg.Cleanup(l.node, op, time.Now().Add(time.Minute))
	}
}

// wakeFirst reports whether the ticket is that of a waiter, or was a moment ago.
func (l listener) wakeFirst(resource string, t node.Ticket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.tickets[t.ID]
	if w == nil || w.resource != resource {
		return l.removed[t.ID]
	}
	w.firstOn |= 1 << l.node
	first := l.waiters[resource][0]
	if first != w && bits.OnesCount8(w.firstOn) >= l.quorum {
		first.wokenBy = 0 // by wakes that were meant for the other one
		l.moveToFront(w)
		w.wake()
		return true
	}
	before := first.wokenBy
	first.wokenBy |= 1 << l.node
	switch {
	case bits.OnesCount8(first.wokenBy) >= l.quorum:
		first.wake()
	case before == 0:
		time.AfterFunc(wakeGrace, func() { l.wakeLate(first) })
	}
	return true
}

// moveToFront puts a waiter first whose ticket is first on a quorum of nodes. Its
// request may have come back, and the nodes remember that it arrived before those here.
// A single node proves nothing: it may lack tickets, and the waiter that it names tries
// in vain while that of the others' first ticket never does. Who was first may not have
// sent its ticket yet.
func (q *Queue) moveToFront(w *Waiter) {
	waiters := q.waiters[w.resource]
	place := slices.Index(waiters, w)
	copy(waiters[1:place+1], waiters[:place])
	waiters[0] = w
	if place > 0 && !waiters[1].sent && !waiters[1].heldBack {
		q.sendTicket(waiters[1])
	}
}

func (q *Queue) wakeLate(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.wokenBy != 0 {
		w.wake()
	}
}

// Subscribed lets every first waiter try: wakes may have been lost.
func (l listener) Subscribed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, waiters := range l.waiters {
		waiters[0].wake()
	}
}

// heartbeat keeps this server's tickets alive on node i. When they had expired (the
// node lost its data, or this server was stopped for too long) it enqueues them
// again, with the same arrivals. So it does with those that the node never took, since
// many came at once. An unlisted server without tickets sends none: each is a commit.
func (q *Queue) heartbeat(ctx context.Context, i int) {
	for {
		if !q.cfg.Unlisted || q.Len() > 0 {
			q.beat(ctx, i)
		}
		if pause.For(ctx, heartbeatPause) != nil {
			return
		}
	}
}

func (q *Queue) beat(ctx context.Context, i int) {
	r := make(reply, 1)
	q.cfg.Nodes[i].Submit(&node.Op{Kind: node.OpHeartbeat, Ticket: node.Ticket{Server: q.server}, TTL: ticketTTL}, i, r)
	if got := r.wait(ctx); got.Outcome == node.Granted {
		q.restore(ctx, i, got.Existing)
	}
}

// restore enqueues the tickets again that node i misses: all if it does not know the server.
func (q *Queue) restore(ctx context.Context, i int, known bool) {
	for crowd := range slices.Chunk(q.missingOn(i, known), restoredAtOnce) {
		replies := make([]reply, len(crowd))
		for k, w := range crowd {
			replies[k] = q.restoreOne(i, w)
		}
		failed := false
		for k, r := range replies {
			if r == nil {
				continue
			}
			got := r.wait(ctx)
			(*enqueueing)(crowd[k]).Deliver(i, got)
			failed = failed || got.Outcome != node.Granted
		}
		if failed {
			return // the next heartbeat repeats it, or the waiter's own next try
		}
	}
}

// missingOn are the waiters whose tickets node i misses.
func (q *Queue) missingOn(i int, known bool) (missing []*Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, waiters := range q.waiters {
		for _, w := range waiters {
			if !known {
				w.missing.Or(1 << i)
			}
			if w.missing.Load()&(1<<i) != 0 {
				missing = append(missing, w)
			}
		}
	}
	return missing
}

// restoreOne sends the ticket, unless the waiter has been removed or holds it back: nil.
func (q *Queue) restoreOne(i int, w *Waiter) reply {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tickets[w.Ticket.ID] != w || w.heldBack {
		return nil
	}
	r := make(reply, 1)
	w.missing.And(^uint32(1 << i))
	q.submitTicket(i, w, node.Op{}, r)
	return r
}

// reply is a sink for one reply.
type reply chan node.Reply

func (r reply) Deliver(_ int, got node.Reply) { r <- got }

func (r reply) wait(ctx context.Context) node.Reply {
	select {
	case got := <-r:
		return got
	case <-ctx.Done():
		return node.Reply{Err: ctx.Err()}
	}
}

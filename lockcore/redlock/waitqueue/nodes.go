package waitqueue

import (
	"cmp"
	"context"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/node"
)

const (
	ticketTTL      = 3 * time.Second        // counted from a heartbeat
	heartbeatPause = 500 * time.Millisecond // so that the tickets of a lost server live for at least two seconds
	// restoredAtOnce is the number of tickets that are enqueued again with one call to a node. Calls with
	// many tickets cost far less than single ones, but a batch has no room for all tickets.
	restoredAtOnce = 100
	wakeGrace      = 3 * time.Millisecond // how long a waiter that one node has woken waits for a quorum of nodes to wake it
	// wakeDelay is the maximum delay of a wake for a dequeued ticket. A later wake means that the ticket
	// is on the node again, because a delayed enqueue arrived after the dequeue.
	wakeDelay = 100 * time.Millisecond
)

// Run subscribes to the wakes of every node and keeps this server's tickets alive, until ctx ends.
func (q *Queue) Run(ctx context.Context) {
	var wg sync.WaitGroup
	for i, n := range q.cfg.Nodes {
		wg.Go(func() { n.Subscribe(ctx, q.server, listener{q, i}) })
		wg.Go(func() { q.heartbeat(ctx, i) })
	}
	wg.Wait()
}

// listener processes the wakes of one node.
type listener struct {
	*Queue
	node int
}

// Wake wakes the resource's first waiter here, whichever ticket the node named, because the node may lack
// earlier tickets. The waiter tries when a quorum of nodes has woken it, or a moment after the first one
// did. If no waiter has the ticket, it is dequeued on the node.
func (l listener) Wake(resource string, t node.Ticket) {
	if l.wakeFirst(resource, t) {
		return
	}
	op := node.Op{Kind: node.OpDequeue, Resource: resource, Ticket: t}
	if op.Validate() == nil { // otherwise no node can have such a ticket
		l.cfg.Cleanup(l.node, op, time.Now().Add(time.Minute), l.submitDequeue)
	}
}

// wakeFirst reports whether the ticket belongs to a waiter, or did until a moment ago.
func (l listener) wakeFirst(resource string, t node.Ticket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.tickets[t.ID]
	if w == nil || w.resource != resource {
		return l.removed[t.ID]
	}
	named := w.firstOn&(1<<l.node) != 0
	w.firstOn |= 1 << l.node
	if w.lingers != nil {
		if !named {
			l.wokeNext(resource)
		}
		return true
	}
	first := l.waiters[resource][0]
	if first != w && bits.OnesCount8(w.firstOn) >= l.quorum {
		first.wokenBy = 0 // those wakes were meant for the other waiter
		l.moveToFront(w)
		w.wake()
		return true
	}
	l.wokeFirst(first)
	return true
}

// wokeNext wakes the first waiter after a place that is kept before it, once for each node that names that
// place. The request with the kept place may have got its lease at another server, and that lease ends at
// another time. If the place is still valid, the node refuses the waiter, and names the place again.
func (l listener) wokeNext(resource string) {
	if waiters := l.waiters[resource]; waiters != nil {
		l.wokeFirst(waiters[0])
	}
}

// wokeFirst counts the node among those that woke the first waiter of a resource. q.mu is held.
func (l listener) wokeFirst(first *Waiter) {
	before := first.wokenBy
	first.wokenBy |= 1 << l.node
	switch {
	case bits.OnesCount8(first.wokenBy) >= l.quorum:
		first.wake()
	case before == 0:
		time.AfterFunc(wakeGrace, func() { l.wakeLate(first) })
	}
}

// moveToFront moves a waiter to the front if its ticket is first on a quorum of nodes. This happens if
// its request was repeated, and the nodes remember that it arrived before the waiters here. A single node
// proves nothing, because it may lack tickets: the waiter that it names would try in vain, and the waiter
// whose ticket is first on the other nodes would never try. The waiter that was first may not have sent
// its ticket yet.
func (q *Queue) moveToFront(w *Waiter) {
	waiters := q.waiters[w.resource]
	place := slices.Index(waiters, w)
	copy(waiters[1:place+1], waiters[:place])
	waiters[0] = w
	q.passed(w.resource)
}

func (q *Queue) wakeLate(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.wokenBy != 0 {
		w.wake()
	}
}

// Subscribed makes every first waiter try, because wakes may have been lost before the subscription.
func (l listener) Subscribed() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, resource := range slices.Sorted(maps.Keys(l.waiters)) {
		l.waiters[resource][0].wake()
	}
}

// heartbeat keeps this server's tickets alive on node i. If they may have expired, because the node lost
// its data or this server was stopped for too long, it enqueues them again with the same arrivals. It
// also enqueues tickets that the node never accepted because many came at once. An unlisted server
// without tickets sends no heartbeat, because each one is a commit.
func (q *Queue) heartbeat(ctx context.Context, i int) {
	expiry := time.Now().Add(ticketTTL) // no ticket of this server expires on the node before this time
	for {
		if q.cfg.Unlisted && q.Len() == 0 {
			expiry = time.Now().Add(ticketTTL)
		} else {
			expiry = q.beat(ctx, i, expiry)
		}
		if !pause.For(ctx, heartbeatPause) {
			return
		}
	}
}

// beat sends one heartbeat, and returns when the tickets expire next. If the tickets may have expired
// already, it restores all of them, even on a node that knows this server: a new ticket that arrived
// before the heartbeat makes the server known again, but does not return the expired tickets to their
// queues.
func (q *Queue) beat(ctx context.Context, i int, expiry time.Time) time.Time {
	sent, r := time.Now(), make(reply, 1)
	q.submitHeartbeat(i, r)
	switch got := r.wait(ctx); got.Outcome {
	case node.Granted:
		q.restore(ctx, i, got.Existing && time.Now().Before(expiry))
		return sent.Add(ticketTTL)
	case node.NotAdmitted: // it may have lost the tickets
		return sent
	}
	return expiry
}

func (q *Queue) submitHeartbeat(i int, r reply) {
	q.cfg.Nodes[i].Submit(&node.Op{Kind: node.OpHeartbeat, Ticket: node.Ticket{Server: q.server}, TTL: ticketTTL}, i, r)
}

// restore enqueues again the tickets that node i lacks: all tickets if it does not know the server.
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
			if got.Outcome == node.Granted {
				listener{q, i}.restored(crowd[k])
			} else {
				failed = true
			}
		}
		if failed {
			return // the next heartbeat repeats it, or the waiter's next try sends it
		}
	}
}

// restored wakes a first waiter whose ticket the node lacked: the node may have freed the resource meanwhile
// without waking a waiter.
func (l listener) restored(w *Waiter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if waiters := l.waiters[w.resource]; len(waiters) > 0 && waiters[0] == w {
		l.wokeFirst(w)
	}
}

// missingOn returns the waiters whose tickets node i lacks, in the order of their arrival.
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
	slices.SortFunc(missing, func(a, b *Waiter) int { return cmp.Compare(a.Ticket.Arrival, b.Ticket.Arrival) })
	return missing
}

// restoreOne sends the ticket. It returns nil if no request waits with the ticket any more, or if the
// ticket is held back. While an attempt carries the ticket, it leaves that to a later heartbeat: a node that
// grants the attempt dequeues the ticket, and nobody would dequeue one that arrives after that.
func (q *Queue) restoreOne(i int, w *Waiter) reply {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tickets[w.Ticket.ID] != w || w.lingers != nil || w.ticket == ticketHeldBack || w.tries {
		return nil
	}
	r := make(reply, 1)
	w.missing.And(^uint32(1 << i))
	q.submitTicket(i, w, node.Op{}, r)
	return r
}

// reply is a sink for a single reply.
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

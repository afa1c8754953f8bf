package redlock

import (
	"container/list"
	"context"
	"encoding/base64"
	"math/bits"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/internal/pause"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
)

// line is this server's part of the lines before resources. The order among
// servers is kept on the nodes, as tickets; here every waiting request has its
// waiter, and only the first of a resource asks the nodes again: when its turn
// is told, when the lease in the way ends, and now and then in case the word
// was lost. The others cost nothing while they wait.
type queue struct {
	cfg    Config
	nodes  []node.Node
	clean  *cleaner
	epoch  func() node.Epoch
	server string
	quorum int

	mu       sync.Mutex
	waiters  map[string]*list.List // of *waiter, by arrival
	tickets  map[string]*waiter    // by ticket id
	dequeued recent                // tickets that left lately
	waiting  int
	arrival  int64         // the last one given
	closed   chan struct{} // no more waiting: the server stops
	closing  bool
}

// waiter is one request in the queue.
type waiter struct {
	resource string
	ticket   node.Ticket
	at       *list.Element
	changed  chan struct{} // holds a signal after any change of what follows
	tryAt    time.Time     // the first in the queue asks the nodes at this time,
	tryNow   bool          // or now: its turn was told
	wokenBy  uint8         // nodes that told it since it last asked, a bit each
}

// The pace of the line. A server's tickets live for ticketTTL after it last
// kept them alive, so that a dead server's waiters are passed over within it.
const (
	ticketTTL      = 3 * time.Second
	heartbeatPause = time.Second
	wakeGrace      = 3 * time.Millisecond // for a quorum of nodes to tell the turn
	firstRetry     = time.Second
	maxRetry       = 15 * time.Second
	expirySlack    = 2 * time.Millisecond
)

func newQueue(cfg Config, nodes []node.Node, clean *cleaner, epoch func() node.Epoch) *queue {
	var id [9]byte
	cfg.Random.Fill(id[:])
	return &queue{
		cfg: cfg, nodes: nodes, clean: clean, epoch: epoch, quorum: quorum.Of(len(nodes)),
		server:  base64.RawURLEncoding.EncodeToString(id[:]),
		waiters: make(map[string]*list.List), tickets: make(map[string]*waiter),
		closed: make(chan struct{}),
	}
}

// join puts a request at the end of this server's line.
func (q *queue) enqueue(resource, holder string) (*waiter, error) {
	var id [9]byte
	q.cfg.Random.Fill(id[:])
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closing:
		return nil, lockcore.ErrStopping
	case q.waiting >= q.cfg.MaxWaiters:
		return nil, lockcore.ErrTooManyWaiters
	}
	q.arrival = max(q.arrival+1, time.Now().UnixMicro())
	w := &waiter{
		resource: resource,
		ticket: node.Ticket{
			ID: base64.RawURLEncoding.EncodeToString(id[:]), Server: q.server, Arrival: q.arrival, Holder: holder,
		},
		changed: make(chan struct{}, 1),
	}
	queue := q.waiters[resource]
	if queue == nil {
		queue = list.New()
		q.waiters[resource] = queue
	}
	w.at = queue.PushBack(w)
	q.tickets[w.ticket.ID] = w
	q.waiting++
	return w, nil
}

func waiterAt(e *list.Element) *waiter {
	w, _ := e.Value.(*waiter) // nothing else is put in
	return w
}

// firstOf is the first in the queue; a queue that is kept is never empty.
func firstOf(queue *list.List) *waiter { return waiterAt(queue.Front()) }

// leave takes a request out, and gives the next one the first place: it looks
// again when the lease that was just granted, if one was, ends.
func (q *queue) remove(w *waiter, freeAt time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue := q.waiters[w.resource]
	wasFirst := queue.Front() == w.at
	queue.Remove(w.at)
	delete(q.tickets, w.ticket.ID)
	q.dequeued.add(w.ticket.ID)
	q.waiting--
	if queue.Len() == 0 {
		delete(q.waiters, w.resource)
		return
	}
	if next := firstOf(queue); wasFirst {
		next.tryAt = freeAt
		next.signal()
	}
}

// dequeue takes the ticket off the nodes.
func (q *queue) dequeue(w *waiter) {
	for i := range q.nodes {
		q.clean.send(i, w.dequeueOp(), time.Now().Add(lockcore.MaxWait), recheckNever)
	}
}

func (w *waiter) dequeueOp() node.Op {
	return node.Op{Kind: node.OpDequeue, Resource: w.resource, Ticket: w.ticket}
}

// signal says that something changed for the waiter.
func (w *waiter) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// isFirst reports whether nobody of this server is before the waiter.
func (q *queue) isFirst(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiters[w.resource].Front() == w.at
}

// asks notes that the waiter is about to ask the nodes.
func (q *queue) trying(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.wokenBy, w.tryNow = 0, false
}

// postpone sets when the waiter asks again unless its turn is told before.
func (q *queue) postpone(w *waiter, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.tryAt = time.Now().Add(pause)
}

// wait is how long the waiter has nothing to do: 0 to ask now, negative for
// until something is signalled.
func (q *queue) wait(w *waiter) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.waiters[w.resource].Front() != w.at:
		return -1
	case w.tryNow:
		return 0
	}
	return max(0, time.Until(w.tryAt))
}

// await returns nil when the waiter should ask the nodes, errTimedOut after
// the deadline, ErrStopping, or the context's error.
func (q *queue) await(ctx context.Context, w *waiter, deadline <-chan time.Time) error {
	for {
		pause := q.wait(w)
		if pause == 0 {
			return q.mustStop(ctx, deadline)
		}
		if err := q.rest(ctx, w, pause, deadline); err != nil {
			return err
		}
	}
}

// enough reports, as await does, that the waiter must not ask once more, though
// its turn may be told again and again.
func (q *queue) mustStop(ctx context.Context, deadline <-chan time.Time) error {
	select {
	case <-deadline:
		return errTimedOut
	case <-q.closed:
		return lockcore.ErrStopping
	default:
		return ctx.Err()
	}
}

// rest waits for the pause (without an end if it is negative) or a signal.
func (q *queue) rest(ctx context.Context, w *waiter, pause time.Duration, deadline <-chan time.Time) error {
	var due <-chan time.Time
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-w.changed:
	case <-due:
	case <-deadline:
		return errTimedOut
	case <-q.closed:
		return lockcore.ErrStopping
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// stand puts the waiter's ticket on every node, behind those of this server
// that came before. Nobody waits for the answers: a node that misses it gets
// it with the waiter's first question.
func (q *queue) sendTicket(w *waiter) {
	op := &node.Op{Kind: node.OpEnqueue, Epoch: q.epoch(), Resource: w.resource, Ticket: w.ticket, Deadline: time.Now().Add(q.cfg.NodeTimeout)}
	for i, n := range q.nodes {
		n.Submit(op, i, unheard{})
	}
}

// unheard is a sink for replies that nobody waits for.
type unheard struct{}

func (unheard) Deliver(int, node.Reply) {}

// nodeQueue is the line as one node's Waker speaks to it.
type nodeQueue struct {
	*queue
	node int
}

// freed lets the first of this server's line ask, right behind a release that
// this server has sent: each node takes the two in that order, so that the
// lease changes hands in one round trip. If another server's ticket is first,
// the nodes say so.
func (q *queue) released(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if queue := q.waiters[resource]; queue != nil {
		firstOf(queue).wake()
	}
}

// Turn passes the word to the first of this server's line, whoever of it the
// node named: the node may not know the ones before. The word of a quorum
// makes it ask; a smaller number does after a moment. A ticket that nobody
// here has is taken off the node.
func (q nodeQueue) Wake(resource string, t node.Ticket) {
	if !q.wakeFirst(resource, t) {
		op := node.Op{Kind: node.OpDequeue, Resource: resource, Ticket: t}
		if op.Validate() != nil {
			return // no node can have such a ticket: the word is false
		}
		q.clean.send(q.node, op, time.Now().Add(time.Minute), recheckNever)
	}
}

// wakeFirst reports whether the ticket is somebody's here.
func (q nodeQueue) wakeFirst(resource string, t node.Ticket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.tickets[t.ID]
	if w == nil || w.resource != resource {
		return q.dequeued.lately(t.ID) // granted a moment ago: off the node already
	}
	first := firstOf(q.waiters[resource])
	before := first.wokenBy
	first.wokenBy |= 1 << q.node
	switch {
	case bits.OnesCount8(first.wokenBy) >= q.quorum:
		first.wake()
	case before == 0:
		time.AfterFunc(wakeGrace, func() { q.wakeLate(first) })
	}
	return true
}

func (q *queue) wakeLate(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.wokenBy != 0 {
		w.wake()
	}
}

// ask says that it is time to ask the nodes.
func (w *waiter) wake() {
	w.tryNow = true
	w.signal()
}

// recent remembers when the last few hundred tickets left.
type recent struct {
	left map[string]time.Time
	ring [512]string
	next int
}

// wakeDelay is how long a node's word for a ticket that left may be on its way.
// Later the ticket must be on the node again, put there by a message that was
// delayed and overtaken by the one that took it off.
const wakeDelay = 100 * time.Millisecond

func (r *recent) add(id string) {
	if r.left == nil {
		r.left = make(map[string]time.Time, len(r.ring))
	}
	delete(r.left, r.ring[r.next])
	r.ring[r.next] = id
	r.left[id] = time.Now()
	r.next = (r.next + 1) % len(r.ring)
}

// lately reports whether the ticket left a moment ago.
func (r *recent) lately(id string) bool {
	at, known := r.left[id]
	return known && time.Since(at) < wakeDelay
}

// Subscribed lets every first waiter look: the word may have been lost.
func (q nodeQueue) Subscribed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, queue := range q.waiters {
		firstOf(queue).wake()
	}
}

// run listens to every node and keeps this server's tickets alive, until ctx ends.
func (q *queue) run(ctx context.Context) {
	var wg sync.WaitGroup
	for i, n := range q.nodes {
		wg.Go(func() { n.Subscribe(ctx, q.server, nodeQueue{queue: q, node: i}) })
		wg.Go(func() { q.heartbeat(ctx, i) })
	}
	wg.Wait()
}

// stop answers everybody who waits, and lets nobody in.
func (q *queue) stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closing {
		q.closing = true
		close(q.closed)
	}
}

// keep keeps this server's tickets alive on node i. Where they had died (the
// node lost its data, or this server was frozen for too long) it puts them
// back, with the arrivals they had.
func (q *queue) heartbeat(ctx context.Context, i int) {
	for {
		reply := q.call(ctx, i, node.Op{Kind: node.OpHeartbeat, Ticket: node.Ticket{Server: q.server}, TTL: ticketTTL})
		if reply.Outcome == node.Granted && !reply.Existing {
			q.restore(ctx, i)
		}
		if pause.For(ctx, heartbeatPause) != nil {
			return
		}
	}
}

func (q *queue) restore(ctx context.Context, i int) {
	for _, w := range q.all() {
		a, waits := q.resendTicket(i, w)
		if waits && a.wait(ctx).Outcome != node.Granted {
			return // the next keep finds it, or the waiter's own next question
		}
	}
}

// resendTicket puts the waiter back in the queue on node i, unless it has left since it
// was listed. It is sent under the lock, so that what takes the ticket off comes
// behind it.
func (q *queue) resendTicket(i int, w *waiter) (a answer, waits bool) {
	a = make(answer, 1)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tickets[w.ticket.ID] != w {
		return nil, false
	}
	q.nodes[i].Submit(&node.Op{Kind: node.OpEnqueue, Epoch: q.epoch(), Resource: w.resource, Ticket: w.ticket}, i, a)
	return a, true
}

// standing lists everybody in the queue.
func (q *queue) all() (all []*waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, queue := range q.waiters {
		for e := queue.Front(); e != nil; e = e.Next() {
			all = append(all, waiterAt(e))
		}
	}
	return all
}

// answer is a sink for one reply.
type answer chan node.Reply

func (a answer) Deliver(_ int, reply node.Reply) { a <- reply }

func (a answer) wait(ctx context.Context) node.Reply {
	select {
	case reply := <-a:
		return reply
	case <-ctx.Done():
		return node.Reply{Err: ctx.Err()}
	}
}

// ask sends one operation to one node and waits for its answer.
func (q *queue) call(ctx context.Context, i int, op node.Op) node.Reply {
	a := make(answer, 1)
	q.nodes[i].Submit(&op, i, a)
	return a.wait(ctx)
}

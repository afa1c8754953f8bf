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
)

// line is this server's part of the lines before resources. The order among
// servers is kept on the nodes, as tickets; here every waiting request has its
// waiter, and only the first of a resource asks the nodes again: when its turn
// is told, when the lease in the way ends, and now and then in case the word
// was lost. The others cost nothing while they wait.
type line struct {
	cfg    Config
	nodes  []node.Node
	clean  *cleaner
	view   func() node.View
	server string
	quorum int

	mu      sync.Mutex
	queues  map[string]*list.List // of *waiter, by arrival
	tickets map[string]*waiter    // by ticket id
	gone    recent                // tickets that left lately
	waiting int
	arrival int64         // the last one given
	closed  chan struct{} // no more waiting: the server stops
	closing bool
}

// waiter is one request in line.
type waiter struct {
	resource string
	ticket   node.Ticket
	at       *list.Element
	turn     chan struct{} // holds a signal after any change of what follows
	askAt    time.Time     // the first in line asks the nodes at this time,
	due      bool          // or now: its turn was told
	told     uint8         // nodes that told it since it last asked, a bit each
}

// The pace of the line. A server's tickets live for ticketTTL after it last
// kept them alive, so that a dead server's waiters are passed over within it.
const (
	ticketTTL   = 3 * time.Second
	keepPause   = time.Second
	turnGrace   = 3 * time.Millisecond // for a quorum of nodes to tell the turn
	firstPoll   = time.Second
	mostPoll    = 15 * time.Second
	expirySlack = 2 * time.Millisecond
)

func newLine(cfg Config, nodes []node.Node, clean *cleaner, view func() node.View) *line {
	var id [9]byte
	cfg.random(id[:])
	return &line{
		cfg: cfg, nodes: nodes, clean: clean, view: view, quorum: QuorumOf(len(nodes)),
		server: base64.RawURLEncoding.EncodeToString(id[:]),
		queues: make(map[string]*list.List), tickets: make(map[string]*waiter),
		closed: make(chan struct{}),
	}
}

// join puts a request at the end of this server's line.
func (q *line) join(resource, holder string) (*waiter, error) {
	var id [9]byte
	q.cfg.random(id[:])
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
		turn: make(chan struct{}, 1),
	}
	queue := q.queues[resource]
	if queue == nil {
		queue = list.New()
		q.queues[resource] = queue
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

// firstOf is the first in line; a queue that is kept is never empty.
func firstOf(queue *list.List) *waiter { return waiterAt(queue.Front()) }

// leave takes a request out, and gives the next one the first place: it looks
// again when the lease that was just granted, if one was, ends.
func (q *line) leave(w *waiter, freeAt time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	queue := q.queues[w.resource]
	wasFirst := queue.Front() == w.at
	queue.Remove(w.at)
	delete(q.tickets, w.ticket.ID)
	q.gone.add(w.ticket.ID)
	q.waiting--
	if queue.Len() == 0 {
		delete(q.queues, w.resource)
		return
	}
	if next := firstOf(queue); wasFirst {
		next.askAt = freeAt
		next.signal()
	}
}

// takeOff takes the ticket off the nodes.
func (q *line) takeOff(w *waiter) {
	for i := range q.nodes {
		q.clean.send(i, w.leaving(), time.Now().Add(lockcore.MaxWait), recheckNever)
	}
}

func (w *waiter) leaving() node.Op {
	return node.Op{Kind: node.OpDequeue, Resource: w.resource, Ticket: w.ticket}
}

// signal says that something changed for the waiter.
func (w *waiter) signal() {
	select {
	case w.turn <- struct{}{}:
	default:
	}
}

// isFirst reports whether nobody of this server is before the waiter.
func (q *line) isFirst(w *waiter) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.queues[w.resource].Front() == w.at
}

// asks notes that the waiter is about to ask the nodes.
func (q *line) asks(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.told, w.due = 0, false
}

// postpone sets when the waiter asks again unless its turn is told before.
func (q *line) postpone(w *waiter, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.askAt = time.Now().Add(pause)
}

// wait is how long the waiter has nothing to do: 0 to ask now, negative for
// until something is signalled.
func (q *line) wait(w *waiter) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.queues[w.resource].Front() != w.at:
		return -1
	case w.due:
		return 0
	}
	return max(0, time.Until(w.askAt))
}

// await returns nil when the waiter should ask the nodes, errTimedOut after
// the deadline, ErrStopping, or the context's error.
func (q *line) await(ctx context.Context, w *waiter, deadline <-chan time.Time) error {
	for {
		pause := q.wait(w)
		if pause == 0 {
			return q.enough(ctx, deadline)
		}
		if err := q.rest(ctx, w, pause, deadline); err != nil {
			return err
		}
	}
}

// enough reports, as await does, that the waiter must not ask once more, though
// its turn may be told again and again.
func (q *line) enough(ctx context.Context, deadline <-chan time.Time) error {
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
func (q *line) rest(ctx context.Context, w *waiter, pause time.Duration, deadline <-chan time.Time) error {
	var due <-chan time.Time
	if pause > 0 {
		timer := time.NewTimer(pause)
		defer timer.Stop()
		due = timer.C
	}
	select {
	case <-w.turn:
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
func (q *line) stand(w *waiter) {
	op := &node.Op{Kind: node.OpEnqueue, View: q.view(), Resource: w.resource, Ticket: w.ticket, Deadline: time.Now().Add(q.cfg.NodeTimeout)}
	for i, n := range q.nodes {
		n.Submit(op, i, unheard{})
	}
}

// unheard is a sink for replies that nobody waits for.
type unheard struct{}

func (unheard) Deliver(int, node.Reply) {}

// nodeLine is the line as one node's Waker speaks to it.
type nodeLine struct {
	*line
	node int
}

// freed lets the first of this server's line ask, right behind a release that
// this server has sent: each node takes the two in that order, so that the
// lease changes hands in one round trip. If another server's ticket is first,
// the nodes say so.
func (q *line) freed(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if queue := q.queues[resource]; queue != nil {
		firstOf(queue).ask()
	}
}

// Turn passes the word to the first of this server's line, whoever of it the
// node named: the node may not know the ones before. The word of a quorum
// makes it ask; a smaller number does after a moment. A ticket that nobody
// here has is taken off the node.
func (q nodeLine) Turn(resource string, t node.Ticket) {
	if !q.passWord(resource, t) {
		op := node.Op{Kind: node.OpDequeue, Resource: resource, Ticket: t}
		if op.Validate() != nil {
			return // no node can have such a ticket: the word is false
		}
		q.clean.send(q.node, op, time.Now().Add(time.Minute), recheckNever)
	}
}

// passWord reports whether the ticket is somebody's here.
func (q nodeLine) passWord(resource string, t node.Ticket) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.tickets[t.ID]
	if w == nil || w.resource != resource {
		return q.gone.lately(t.ID) // granted a moment ago: off the node already
	}
	first := firstOf(q.queues[resource])
	before := first.told
	first.told |= 1 << q.node
	switch {
	case bits.OnesCount8(first.told) >= q.quorum:
		first.ask()
	case before == 0:
		time.AfterFunc(turnGrace, func() { q.lateTurn(first) })
	}
	return true
}

func (q *line) lateTurn(w *waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.told != 0 {
		w.ask()
	}
}

// ask says that it is time to ask the nodes.
func (w *waiter) ask() {
	w.due = true
	w.signal()
}

// recent remembers when the last few hundred tickets left.
type recent struct {
	left map[string]time.Time
	ring [512]string
	next int
}

// wordDelay is how long a node's word for a ticket that left may be on its way.
// Later the ticket must be on the node again, put there by a message that was
// delayed and overtaken by the one that took it off.
const wordDelay = 100 * time.Millisecond

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
	return known && time.Since(at) < wordDelay
}

// Subscribed lets every first waiter look: the word may have been lost.
func (q nodeLine) Subscribed() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, queue := range q.queues {
		firstOf(queue).ask()
	}
}

// run listens to every node and keeps this server's tickets alive, until ctx ends.
func (q *line) run(ctx context.Context) {
	var wg sync.WaitGroup
	for i, n := range q.nodes {
		wg.Go(func() { n.Wakes(ctx, q.server, nodeLine{line: q, node: i}) })
		wg.Go(func() { q.keep(ctx, i) })
	}
	wg.Wait()
}

// stop answers everybody who waits, and lets nobody in.
func (q *line) stop() {
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
func (q *line) keep(ctx context.Context, i int) {
	for {
		reply := q.ask(ctx, i, node.Op{Kind: node.OpHeartbeat, Ticket: node.Ticket{Server: q.server}, TTL: ticketTTL})
		if reply.Outcome == node.Granted && !reply.Existing {
			q.restore(ctx, i)
		}
		if sleep(ctx, keepPause) != nil {
			return
		}
	}
}

func (q *line) restore(ctx context.Context, i int) {
	for _, w := range q.standing() {
		a, waits := q.standAgain(i, w)
		if waits && a.wait(ctx).Outcome != node.Granted {
			return // the next keep finds it, or the waiter's own next question
		}
	}
}

// standAgain puts the waiter back in line on node i, unless it has left since it
// was listed. It is sent under the lock, so that what takes the ticket off comes
// behind it.
func (q *line) standAgain(i int, w *waiter) (a answer, waits bool) {
	a = make(answer, 1)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.tickets[w.ticket.ID] != w {
		return nil, false
	}
	q.nodes[i].Submit(&node.Op{Kind: node.OpEnqueue, View: q.view(), Resource: w.resource, Ticket: w.ticket}, i, a)
	return a, true
}

// standing lists everybody in line.
func (q *line) standing() (all []*waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, queue := range q.queues {
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
func (q *line) ask(ctx context.Context, i int, op node.Op) node.Reply {
	a := make(answer, 1)
	q.nodes[i].Submit(&op, i, a)
	return a.wait(ctx)
}

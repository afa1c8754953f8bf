package waitqueue

import (
	"container/list"
	"context"
	"encoding/base64"
	"errors"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock/quorum"
	"github.com/fencelock/fencelock/lockcore/redlock/random"
)

// Config is what a Queue needs. Every field is set.
type Config struct {
	Nodes       []node.Node
	NodeTimeout time.Duration // how long a node has to take a ticket
	MaxWaiters  int           // of this server, over all resources
	Random      random.Source
	Epoch       func() node.Epoch
	// Cleanup sends op to a node in the background, again until it is answered or
	// until is past.
	Cleanup func(nodeIndex int, op node.Op, until time.Time)
}

// Queue holds the requests that wait at this server. It is safe for concurrent use.
type Queue struct {
	cfg    Config
	server string
	quorum int

	mu       sync.Mutex
	waiters  map[string]*list.List // of *Waiter, by resource, in the order of arrival
	tickets  map[string]*Waiter    // by ticket id
	removed  recent                // tickets that were removed lately
	arrival  int64                 // the last one given
	stopping chan struct{}         // closed by Stop
	stopped  bool
}

// Waiter is one request in the queue.
type Waiter struct {
	Ticket   node.Ticket
	resource string
	at       *list.Element
	changed  chan struct{} // holds a signal after any change of what follows
	tryAt    time.Time     // the first waiter of a resource tries at this time,
	tryNow   bool          // or now: it was woken
	wokenBy  uint8         // the nodes that woke it since its last try, a bit each
	lingers  *time.Timer   // its request was broken off, and may come again; nil while it waits
}

// lingerTime is for how long a broken-off request keeps its place.
const lingerTime = 2 * time.Second

// ErrTimedOut ends a wait at its deadline.
var ErrTimedOut = errors.New("waited long enough")

// New makes an empty queue. Nothing wakes before Run.
func New(cfg Config) *Queue {
	return &Queue{
		cfg: cfg, server: drawID(cfg.Random), quorum: quorum.Of(len(cfg.Nodes)),
		waiters: make(map[string]*list.List), tickets: make(map[string]*Waiter),
		stopping: make(chan struct{}),
	}
}

// drawID draws an id of 12 characters, short since nodes keep it with every ticket.
func drawID(r random.Source) string {
	var id [9]byte
	r.Fill(id[:])
	return base64.RawURLEncoding.EncodeToString(id[:])
}

// Enqueue adds a request behind those of this server, and puts its ticket on the
// nodes unless it is the first: the first brings its ticket with its try. Nothing
// waits for the nodes' answers; a node that misses the ticket gets it with the
// waiter's first try. Errors: ErrStopping, ErrTooManyWaiters.
//
// id, if not "", is made of an idempotency key: a request that was broken off and
// comes again with it has its place again. While a request with the id waits here,
// another one gets a place of its own.
func (q *Queue) Enqueue(resource, holder, id string) (*Waiter, error) {
	drawn := drawID(q.cfg.Random)
	q.mu.Lock()
	defer q.mu.Unlock()
	former := q.tickets[id]
	switch {
	case q.stopped:
		return nil, lockcore.ErrStopping
	case former != nil && former.resource == resource && former.lingers != nil:
		former.lingers.Stop()
		former.lingers = nil
		former.wake()
		return former, nil
	case len(q.tickets) >= q.cfg.MaxWaiters:
		return nil, lockcore.ErrTooManyWaiters
	}
	keyed := id != "" && former == nil
	if !keyed {
		id = drawn
	}
	q.arrival = max(q.arrival+1, time.Now().UnixMicro())
	w := &Waiter{
		resource: resource, changed: make(chan struct{}, 1),
		Ticket: node.Ticket{ID: id, Server: q.server, Arrival: q.arrival, Holder: holder, Keyed: keyed},
	}
	waiters := q.waiters[resource]
	if waiters == nil {
		waiters = list.New()
		q.waiters[resource] = waiters
	}
	w.at = waiters.PushBack(w)
	q.tickets[id] = w
	if waiters.Len() > 1 {
		deadline := time.Now().Add(q.cfg.NodeTimeout)
		for i := range q.cfg.Nodes {
			q.submitTicket(i, w, deadline, ignored{})
		}
	}
	return w, nil
}

// submitTicket sends the waiter's ticket to node i. It is called under the lock, so
// that a dequeue comes behind it.
func (q *Queue) submitTicket(i int, w *Waiter, deadline time.Time, sink node.Sink) {
	op := &node.Op{Kind: node.OpEnqueue, Epoch: q.cfg.Epoch(), Resource: w.resource, Ticket: w.Ticket, Deadline: deadline}
	q.cfg.Nodes[i].Submit(op, i, sink)
}

// ignored is a sink for replies that nothing waits for.
type ignored struct{}

func (ignored) Deliver(int, node.Reply) {}

func waiterAt(e *list.Element) *Waiter {
	w, _ := e.Value.(*Waiter) // nothing else is put in
	return w
}

// firstOf is the first waiter; a list that is kept is never empty.
func firstOf(waiters *list.List) *Waiter { return waiterAt(waiters.Front()) }

// Granted takes a waiter out that has its lease, which the nodes dequeued with the
// grant. The next waiter tries when that lease ends, unless it is woken before.
func (q *Queue) Granted(w *Waiter, ttl time.Duration) { q.remove(w, time.Now().Add(ttl)) }

// Dequeue takes a waiter out that gives up, here and on the nodes. The next one tries
// now. Of a keyed ticket the nodes remember the arrival.
func (q *Queue) Dequeue(w *Waiter) {
	q.remove(w, time.Now())
	ticket := w.Ticket
	ticket.Keyed = false
	for i := range q.cfg.Nodes {
		q.dequeueOn(i, w.resource, ticket, lockcore.MaxWait)
	}
}

// BreakOff takes a waiter out whose request has gone. A keyed one keeps its place
// for lingerTime, in which no other waiter passes it, or on the nodes for as long as
// this server lives if it stops: its request may come again, here or elsewhere.
func (q *Queue) BreakOff(w *Waiter) {
	if !w.Ticket.Keyed {
		q.Dequeue(w)
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped {
		return
	}
	var timer *time.Timer
	timer = time.AfterFunc(lingerTime, func() {
		q.mu.Lock()
		over := w.lingers == timer
		q.mu.Unlock()
		if over {
			q.Dequeue(w)
		}
	})
	w.lingers = timer
}

func (q *Queue) dequeueOn(i int, resource string, t node.Ticket, within time.Duration) {
	q.cfg.Cleanup(i, node.Op{Kind: node.OpDequeue, Resource: resource, Ticket: t}, time.Now().Add(within))
}

func (q *Queue) remove(w *Waiter, nextTry time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	waiters := q.waiters[w.resource]
	wasFirst := waiters.Front() == w.at
	waiters.Remove(w.at)
	delete(q.tickets, w.Ticket.ID)
	q.removed.add(w.Ticket.ID)
	if waiters.Len() == 0 {
		delete(q.waiters, w.resource)
		return
	}
	if next := firstOf(waiters); wasFirst {
		next.tryAt = nextTry
		next.signal()
	}
}

// signal says that something changed for the waiter.
func (w *Waiter) signal() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// wake makes the waiter try now. It is called under the lock.
func (w *Waiter) wake() {
	w.tryNow = true
	w.signal()
}

// Len is how many requests wait at this server.
func (q *Queue) Len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.tickets)
}

// Await returns nil when the waiter should try to acquire: it then is the first of
// this server for the resource. Errors: ErrTimedOut after the deadline,
// ErrStopping, the context's error. A waiter that is woken again and again ends
// by them all the same.
func (q *Queue) Await(ctx context.Context, w *Waiter, deadline <-chan time.Time) error {
	for {
		pause, tries := q.untilTry(w)
		if tries {
			return q.ended(ctx, deadline)
		}
		if err := q.rest(ctx, w, pause, deadline); err != nil {
			return err
		}
	}
}

// rest waits for the pause (without an end if it is 0) or a change.
func (q *Queue) rest(ctx context.Context, w *Waiter, pause time.Duration, deadline <-chan time.Time) error {
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
		return ErrTimedOut
	case <-q.stopping:
		return lockcore.ErrStopping
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// untilTry reports whether the waiter tries now, which clears what woke it; else
// for how long it has nothing to do: 0 for until something changes.
func (q *Queue) untilTry(w *Waiter) (pause time.Duration, tries bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiters[w.resource].Front() != w.at {
		return 0, false
	}
	if pause = time.Until(w.tryAt); !w.tryNow && pause > 0 {
		return pause, false
	}
	w.tryNow, w.wokenBy = false, 0
	return 0, true
}

// ended is the reason why a waiter must not try once more.
func (q *Queue) ended(ctx context.Context, deadline <-chan time.Time) error {
	select {
	case <-deadline:
		return ErrTimedOut
	case <-q.stopping:
		return lockcore.ErrStopping
	default:
		return ctx.Err()
	}
}

// Postpone sets when the waiter tries again unless it is woken before.
func (q *Queue) Postpone(w *Waiter, pause time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.tryAt = time.Now().Add(pause)
}

// Released lets the resource's first waiter try right behind a release that this
// server has sent: each node takes the two in that order, so that the lease changes
// hands in one round trip. If another server's ticket is first, the nodes say so.
func (q *Queue) Released(resource string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if waiters := q.waiters[resource]; waiters != nil {
		firstOf(waiters).wake()
	}
}

// Stop ends every wait with ErrStopping, and lets no request in.
func (q *Queue) Stop() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.stopped {
		q.stopped = true
		close(q.stopping)
	}
}

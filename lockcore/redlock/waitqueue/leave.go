package waitqueue

import (
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
)

// Exit is how a request leaves its queue without a grant.
type Exit int

const (
	// GivesUp: the next waiter tries now. The nodes remember the arrival of a keyed ticket. A request whose
	// caller hung up gives up, too: it may never be repeated, and others would wait for a free resource.
	GivesUp Exit = iota
	// Satisfied: the request got another of its resources. The nodes forget the arrival of a keyed
	// ticket.
	Satisfied
	// ComesAgain: the request got its response before its wait was over. With a keyed ticket it keeps its
	// place for LingerTime, and no other waiter passes it until then. Without one, it gives up. When this
	// server stops, the ticket stays on the nodes until it expires, because the request will be repeated at
	// another server.
	ComesAgain
)

// Leave removes a waiter, here and on the nodes.
func (q *Queue) Leave(w *Waiter, how Exit) {
	if how == ComesAgain && w.Ticket.Keyed {
		q.keepPlace(w)
		return
	}
	q.mu.Lock()
	q.remove(w, time.Now())
	q.mu.Unlock()
	q.dequeueLeft(w, how)
}

// dequeueLeft dequeues the ticket of a waiter that was removed.
func (q *Queue) dequeueLeft(w *Waiter, how Exit) {
	ticket := w.Ticket
	ticket.Keyed = ticket.Keyed && how == Satisfied
	q.dequeue(w.resource, ticket)
}

// dequeue removes a ticket from the nodes. If it is Keyed, its wait is over on all servers.
func (q *Queue) dequeue(resource string, ticket node.Ticket) {
	op := node.Op{Kind: node.OpDequeue, Resource: resource, Ticket: ticket}
	for i := range q.cfg.Nodes {
		q.cfg.Cleanup(i, op, time.Now().Add(lockcore.MaxWait), q.submitDequeue)
	}
}

// submitDequeue sends a dequeue to node i, perhaps not for the first time. It returns false, and sends nothing,
// if the ticket belongs to a waiter again: its request has come again under its key. That waiter dequeues the
// ticket when it leaves.
//
// It does not hold the mutex while it sends, because a node may call Wake from within Submit.
func (q *Queue) submitDequeue(op *node.Op, i int, sink node.Sink) bool {
	if !q.beginDequeue(op, i) {
		return false
	}
	q.cfg.Nodes[i].Submit(op, i, sink)
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dequeuing[op.Ticket.ID]--; q.dequeuing[op.Ticket.ID] == 0 {
		delete(q.dequeuing, op.Ticket.ID)
	}
	q.submitted.Broadcast()
	return true
}

// beginDequeue keeps waiters with the ticket's id from the queue until the dequeue has been submitted. It returns
// false if there is one.
func (q *Queue) beginDequeue(op *node.Op, i int) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w := q.tickets[op.Ticket.ID]; w != nil && w.resource == op.Resource && w.Ticket.Holder == op.Ticket.Holder && !op.Ticket.Keyed {
		if w.ticket != ticketSent {
			w.ticket = ticketSent // by its predecessor; but perhaps this node does not have it
			w.missing.Or(1 << i)
		}
		return false
	}
	q.dequeuing[op.Ticket.ID]++
	return true
}

// keepPlace leaves the ticket of a request that comes again on the nodes for a while. Waiters behind it may
// try meanwhile, and the nodes refuse them while they have the ticket. They no longer have it if the request
// was granted at another server.
func (q *Queue) keepPlace(w *Waiter) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w.tries = false
	if q.stopped {
		if w.ticket != ticketSent {
			q.submitTickets(w)
		}
		return
	}
	nextTry := w.tryAt
	if w.tryNow { // it was woken, and has not tried yet
		nextTry = time.Now()
	}
	q.unlist(w, nextTry)
	if w.ticket != ticketSent {
		q.sendTicket(w)
	}
	w.firstOn = 0
	var lingers *time.Timer
	lingers = time.AfterFunc(LingerTime, func() { q.giveUpPlace(w, func() bool { return w.lingers == lingers }) })
	w.lingers = lingers
}

// giveUpPlace dequeues a waiter that keeps its place, if it still does so under the mutex.
func (q *Queue) giveUpPlace(w *Waiter, still func() bool) {
	q.mu.Lock()
	lingers := q.tickets[w.Ticket.ID] == w && w.lingers != nil && still()
	if lingers {
		w.lingers.Stop()
		q.remove(w, time.Now())
	}
	q.mu.Unlock()
	if lingers {
		q.dequeueLeft(w, GivesUp)
	}
}

// GiveUp dequeues a waiter that kept its place: its request was repeated, and does not wait any more.
func (q *Queue) GiveUp(resource, id string) {
	q.mu.Lock()
	w := q.tickets[id]
	q.mu.Unlock()
	if w != nil && w.resource == resource {
		q.giveUpPlace(w, func() bool { return true })
	}
}

// Cancel ends the wait under an idempotency key, from which the id is derived. It ends the wait here, with
// ErrCancelled, and on the nodes, where the ticket may belong to another server. No later request under the
// key has its place.
func (q *Queue) Cancel(resource, id string) {
	q.GiveUp(resource, id)
	q.mu.Lock()
	for _, w := range q.waiters[resource] {
		if w.key == id {
			w.cancelled = true
			w.signal()
		}
	}
	q.mu.Unlock()
	q.dequeue(resource, node.Ticket{ID: id, Server: q.server, Keyed: true})
}

// Forget removes what is left of the place of a request that no longer waits. That is the ticket, if the
// request kept its place (ComesAgain), and the arrival on the nodes, unless the request was repeated here or
// at another server.
func (q *Queue) Forget(resource, id, holder string) {
	q.GiveUp(resource, id)
	q.mu.Lock()
	again := q.tickets[id] != nil
	q.mu.Unlock()
	if again {
		return
	}
	op := node.Op{Kind: node.OpForget, Resource: resource, Ticket: node.Ticket{ID: id, Server: q.server, Holder: holder}}
	for i := range q.cfg.Nodes {
		q.cfg.Cleanup(i, op, time.Now().Add(lockcore.MaxWait), q.submit)
	}
}

// submit sends op to node i.
func (q *Queue) submit(op *node.Op, i int, sink node.Sink) bool {
	q.cfg.Nodes[i].Submit(op, i, sink)
	return true
}

// remove ends a waiter. The next one tries at nextTry at the latest. The caller holds q.mu.
func (q *Queue) remove(w *Waiter, nextTry time.Time) {
	if w.lingers == nil {
		q.unlist(w, nextTry)
	}
	delete(q.tickets, w.Ticket.ID)
	q.removed[w.Ticket.ID] = true
	time.AfterFunc(wakeDelay, func() { q.forget(w.Ticket.ID) })
}

// unlist removes a waiter from its resource's queue. If the waiter was first, the next one becomes first:
// it tries at nextTry at the latest, takes over the release that the other was to follow, and inherits
// what the other knew about the resource. The caller holds q.mu.
func (q *Queue) unlist(w *Waiter, nextTry time.Time) {
	waiters := q.waiters[w.resource]
	place := slices.Index(waiters, w)
	waiters = slices.Delete(waiters, place, place+1)
	q.waiters[w.resource] = waiters
	switch {
	case len(waiters) == 0:
		delete(q.waiters, w.resource)
	case place == 0:
		next := waiters[0]
		if next.ticket != ticketSent { // without a ticket, no node would wake it
			nextTry = time.Now()
		}
		next.tryAt = nextTry
		if w.lostAt.After(next.lostAt) {
			next.lost, next.lostAt = w.lost, w.lostAt
		}
		if r := w.behind; r != nil {
			r.behind, next.behind, w.behind = next, r, nil
		}
		next.signal()
	}
}

func (q *Queue) forget(id string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.removed, id)
}

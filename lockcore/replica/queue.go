package replica

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
)

// queue is the queue for a resource.
type queue struct {
	t        *Txn
	resource string
}

func (t *Txn) queue(resource string) queue { return queue{t: t, resource: resource} }

// length returns the number of tickets, including those of dead servers. It counts short queues; for a long
// queue it reads the stored number.
func (q queue) length() int {
	if kept, found := q.t.number(lengthKey(q.resource)); found {
		return int(kept)
	}
	return len(q.list(math.MaxInt))
}

// grow adds to the stored length, before the rows are written. Only the length of a long queue is stored. It
// does not notice expired tickets, but it expires itself, TicketTTL after the count.
func (q queue) grow(by int) {
	key, n := lengthKey(q.resource), q.length()+by
	if n <= node.MaxShown {
		q.t.tx.Delete(key)
		return
	}
	_, left := q.t.tx.Get(key)
	q.t.tx.Put(key, encodeNumber(int64(n)), cmp.Or(left, node.TicketTTL))
}

// list returns the first tickets, including those of dead servers.
func (q queue) list(limit int) (tickets []node.Ticket) {
	from, to := queueRange(q.resource)
	for _, row := range q.t.tx.Range(from, to, limit) {
		tickets = append(tickets, parseQueueKey(q.resource, row.Key))
	}
	return tickets
}

// first returns the first ticket whose server is alive. It removes the dead ones before it.
func (q queue) first() (first node.Ticket, found bool) {
	for from, to := queueRange(q.resource); ; {
		next := q.t.tx.Range(from, to, 1)
		if len(next) == 0 {
			return first, false
		}
		ticket := parseQueueKey(q.resource, next[0].Key)
		if q.t.alive(ticket.Server) {
			return ticket, true
		}
		q.remove(ticket)
		// A clock that was set back makes expired rows valid again, and one of a ticket's two rows may have
		// been overwritten since. A store that refuses writes keeps all of them, and returns an error when the
		// transaction ends.
		q.t.tx.Delete(next[0].Key)
		from = next[0].Key + "\x00"
	}
}

// add enqueues a ticket. A ticket that is already in the queue keeps its place.
func (q queue) add(ticket node.Ticket) {
	if left := q.t.aliveFor(ticket.Server); left <= node.EnqueuedTTL-node.EnqueuedAgain && (left <= 0 || !q.t.weak(KeepsAliveOnce)) {
		q.t.keepAlive(ticket.Server, node.EnqueuedTTL)
	}
	name := nameOf(ticket)
	arrival, there := q.t.number(ticketKey(q.resource, name))
	if !there {
		arrival = ticket.Arrival
	}
	if !there {
		q.grow(1)
	}
	q.t.tx.Put(queueKey(q.resource, arrival, name), []byte{}, node.TicketTTL)
	q.t.tx.Put(ticketKey(q.resource, name), encodeNumber(arrival), node.TicketTTL)
}

// remove dequeues a ticket. It reports whether it was in the queue.
func (q queue) remove(ticket node.Ticket) bool {
	if q.t.weak(KeepsTickets) {
		return false
	}
	name := nameOf(ticket)
	arrival, there := q.t.number(ticketKey(q.resource, name))
	if !there {
		return false
	}
	q.grow(-1)
	q.t.tx.Delete(queueKey(q.resource, arrival, name))
	q.t.tx.Delete(ticketKey(q.resource, name))
	return true
}

// notify wakes the server of a ticket.
func (q queue) notify(ticket node.Ticket) {
	ticket.Arrival = 0 // no node reports it
	q.t.tx.Notify(q.resource, ticket)
}

func (q queue) notifyFirst() {
	if first, found := q.first(); found {
		q.notify(first)
	}
}

// before reports whether a comes before b in a queue.
func before(a, b node.Ticket) bool {
	if a.Arrival != b.Arrival {
		return a.Arrival < b.Arrival
	}
	return nameOf(a) < nameOf(b)
}

// placed returns the operation with the place of its keyed ticket: the earliest arrival of its ID. The ticket
// that held the place is removed, and its server remembered, because the request still waits there.
func (t *Txn) placed(op *node.Op) *node.Op {
	if !op.Ticket.Keyed || op.Ticket.ID == "" {
		return op
	}
	placed := *op
	if raw, _ := t.tx.Get(placeKey(op.Ticket.ID)); len(raw) >= numberLen {
		arrival, _ := decodeNumber(raw[:numberLen])
		placed.Ticket.Arrival = min(arrival, op.Ticket.Arrival)
		former := parseName(string(raw[numberLen:]))
		if nameOf(former) != nameOf(op.Ticket) && t.queue(op.Resource).remove(former) {
			t.setServers(op.Ticket.ID, append(t.serversBut(op.Ticket.ID, former.Server), former.Server))
		}
	}
	t.tx.Put(placeKey(op.Ticket.ID), append(encodeNumber(placed.Ticket.Arrival), nameOf(op.Ticket)...), node.TicketTTL)
	return &placed
}

// serversBut returns, except for one, the servers whose tickets of a key were replaced while their requests
// waited, in the order of the replacements.
func (t *Txn) serversBut(id, but string) []string {
	raw, _ := t.tx.Get(serversKey(id))
	return slices.DeleteFunc(strings.Fields(string(raw)), func(server string) bool { return server == but })
}

func (t *Txn) setServers(id string, servers []string) {
	if len(servers) == 0 {
		t.tx.Delete(serversKey(id))
		return
	}
	t.tx.Put(serversKey(id), []byte(strings.Join(servers, " ")), node.TicketTTL)
}

// forgetPlace ends the wait under a key, after a lease or because the wait was given up. A grant alone does
// not end it, because other nodes may refuse, and then the wait continues. It returns the name of the ticket
// that has the place, if it is another ticket: then a request under the key waits at another server. Every
// such server is notified, so that it finds the lease.
func (t *Txn) forgetPlace(resource string, ticket node.Ticket) (other string) {
	q, servers := t.queue(resource), t.serversBut(ticket.ID, ticket.Server)
	if raw, _ := t.tx.Get(placeKey(ticket.ID)); len(raw) >= numberLen {
		other = string(raw[numberLen:])
	}
	t.tx.Delete(placeKey(ticket.ID))
	t.tx.Delete(serversKey(ticket.ID))
	if other == nameOf(ticket) {
		other = ""
	}
	if other != "" {
		q.remove(parseName(other))
		q.notify(parseName(other))
	}
	for _, server := range servers {
		if server != parseName(other).Server {
			q.notify(node.Ticket{ID: ticket.ID, Server: server})
		}
	}
	return other
}

// leavePlace ends the wait of one server under a key whose request may be repeated.
func (t *Txn) leavePlace(ticket node.Ticket) {
	if raw, _ := t.tx.Get(serversKey(ticket.ID)); raw != nil {
		t.setServers(ticket.ID, t.serversBut(ticket.ID, ticket.Server))
	}
}

func (t *Txn) enqueue(op *node.Op) {
	if op.Ticket.ID != "" {
		t.queue(op.Resource).add(op.Ticket)
	}
}

// dequeue removes a ticket. If it was first, the next one is notified.
func (t *Txn) dequeue(op *node.Op) node.Reply {
	q := t.queue(op.Resource)
	first := q.list(1)
	q.remove(op.Ticket)
	other := ""
	if op.Ticket.Keyed {
		other = t.forgetPlace(op.Resource, op.Ticket)
	} else {
		t.leavePlace(op.Ticket)
	}
	if len(first) > 0 && (nameOf(first[0]) == nameOf(op.Ticket) || nameOf(first[0]) == other) {
		if _, left := t.lock(op.Resource); left == 0 {
			q.notifyFirst()
		}
	}
	return node.Reply{Outcome: node.Granted}
}

// forget forgets the arrival of a dequeued ticket, unless its request was repeated.
func (t *Txn) forget(op *node.Op) node.Reply {
	key := placeKey(op.Ticket.ID)
	if raw, _ := t.tx.Get(key); len(raw) >= numberLen && string(raw[numberLen:]) == nameOf(op.Ticket) {
		t.tx.Delete(key)
	}
	return node.Reply{Outcome: node.Granted}
}

// heartbeat keeps a server's tickets alive.
func (t *Txn) heartbeat(op *node.Op) node.Reply {
	alive := t.alive(op.Ticket.Server)
	t.keepAlive(op.Ticket.Server, op.TTL)
	return node.Reply{Outcome: node.Granted, Existing: alive}
}

func (t *Txn) alive(server string) bool { return t.aliveFor(server) > 0 }

func (t *Txn) aliveFor(server string) time.Duration {
	_, left := t.tx.Get(serverKey(server))
	return left
}

func (t *Txn) keepAlive(server string, ttl time.Duration) {
	t.tx.Put(serverKey(server), []byte{}, ttl)
}

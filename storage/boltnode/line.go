package boltnode

import (
	"bytes"
	"encoding/binary"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore"
)

// ticketTTL is how long a ticket stays without standing in line again: longer
// than anybody may wait. It ends one that its server forgot to take off.
const ticketTTL = lockcore.MaxWait + time.Minute

// line is who waits for a resource. Its bucket holds
//
//	"#"                the number of tickets
//	"a" arrival name   nothing: the order
//	"n" name           end, arrival: each ticket once, whenever it arrived
//
// where name is "id server holder". An empty line has no bucket.
type line struct {
	t        *txn
	resource string
	bucket   *bbolt.Bucket
}

// standTTL is for how long a server lives that stands in line without having
// been kept alive.
const standTTL = 3 * time.Second

const (
	countKey  = "#"
	orderKeys = "a"
	nameKeys  = "n"
)

func (t *txn) line(resource string) *line {
	return &line{t: t, resource: resource, bucket: t.lines.Bucket([]byte(resource))}
}

func nameOf(t lockcore.Ticket) string { return t.ID + " " + t.Server + " " + t.Holder }

func parseName(name string) (t lockcore.Ticket) {
	id, rest, _ := strings.Cut(name, " ")
	server, holder, _ := strings.Cut(rest, " ")
	return lockcore.Ticket{ID: id, Server: server, Holder: holder}
}

func orderKey(arrival int64, name string) string {
	return string(binary.BigEndian.AppendUint64([]byte(orderKeys), uint64(arrival))) + name
}

// parseOrder reads a ticket from the key that orders it.
func parseOrder(key []byte) lockcore.Ticket {
	ticket := parseName(string(key[len(orderKeys)+numberLen:]))
	ticket.Arrival = number(key[len(orderKeys):], 0)
	return ticket
}

// count is how many stand in line, the dead included.
func (l *line) count() int {
	if l.bucket == nil {
		return 0
	}
	return int(binary.BigEndian.Uint64(l.bucket.Get([]byte(countKey))))
}

// each calls f for every ticket in order until it says to stop. f must not change the line.
func (l *line) each(f func(lockcore.Ticket) bool) {
	if l.bucket == nil {
		return
	}
	c := l.bucket.Cursor()
	for key, _ := c.Seek([]byte(orderKeys)); bytes.HasPrefix(key, []byte(orderKeys)); key, _ = c.Next() {
		if !f(parseOrder(key)) {
			return
		}
	}
}

// list gives the first few in line.
func (l *line) list(most int) (tickets []lockcore.Ticket) {
	l.each(func(ticket lockcore.Ticket) bool {
		tickets = append(tickets, ticket)
		return len(tickets) < most
	})
	return tickets
}

// first is the first in line that lives; the dead before it leave.
func (l *line) first() (first lockcore.Ticket, found bool) {
	for l.t.err == nil {
		next := l.list(1)
		if len(next) == 0 {
			return first, false
		}
		if l.lives(next[0]) {
			return next[0], true
		}
		l.leave(next[0])
	}
	return first, false
}

func (l *line) lives(ticket lockcore.Ticket) bool {
	e, _, ok := cutEnd(l.bucket.Get([]byte(nameKeys + nameOf(ticket))))
	return ok && l.t.left(e) > 0 && l.t.alive(ticket.Server)
}

// arrival is when a ticket began to stand in line.
func (l *line) arrival(ticket lockcore.Ticket) (arrival int64, standing bool) {
	if l.bucket == nil {
		return 0, false
	}
	_, rest, ok := cutEnd(l.bucket.Get([]byte(nameKeys + nameOf(ticket))))
	if !ok || len(rest) != numberLen {
		return 0, false
	}
	return number(rest, 0), true
}

// stand puts a ticket into the line. One that stands there keeps its place.
func (l *line) stand(ticket lockcore.Ticket) {
	if !l.t.alive(ticket.Server) {
		l.t.keepAlive(ticket.Server, standTTL)
	}
	arrival, standing := l.arrival(ticket)
	if !standing {
		arrival = ticket.Arrival
		l.open()
		l.add(1)
		l.put(orderKey(arrival, nameOf(ticket)), nil)
	}
	e := l.t.after(ticketTTL, ticketTTL)
	l.put(nameKeys+nameOf(ticket), binary.BigEndian.AppendUint64(e.append(nil), uint64(arrival)))
}

// leave takes a ticket off the line.
func (l *line) leave(ticket lockcore.Ticket) {
	arrival, standing := l.arrival(ticket)
	if !standing {
		return
	}
	if l.count() <= 1 {
		l.t.failed(l.t.lines.DeleteBucket([]byte(l.resource)))
		l.bucket = nil
		return
	}
	l.t.remove(l.bucket, orderKey(arrival, nameOf(ticket)))
	l.t.remove(l.bucket, nameKeys+nameOf(ticket))
	l.add(-1)
}

func (l *line) open() {
	if l.bucket != nil || l.t.err != nil {
		return
	}
	bucket, err := l.t.lines.CreateBucket([]byte(l.resource))
	l.t.failed(err)
	if err == nil {
		l.bucket = bucket
		l.put(countKey, make([]byte, numberLen))
	}
}

func (l *line) add(more int) {
	if l.bucket != nil {
		l.put(countKey, binary.BigEndian.AppendUint64(nil, uint64(l.count()+more)))
	}
}

func (l *line) put(key string, value []byte) {
	if l.bucket != nil {
		l.t.put(l.bucket, key, value)
	}
}

// tellFirst tells the first in line that its turn has come.
func (l *line) tellFirst() {
	if first, found := l.first(); found {
		l.tell(first)
	}
}

// tell tells a ticket's server, once this transaction is in the file.
func (l *line) tell(ticket lockcore.Ticket) {
	ticket.Arrival = 0 // no Waker tells it
	l.t.turns = append(l.t.turns, turn{resource: l.resource, ticket: ticket})
}

// before reports whether a stands in line before b.
func before(a, b lockcore.Ticket) bool {
	if a.Arrival != b.Arrival {
		return a.Arrival < b.Arrival
	}
	return nameOf(a) < nameOf(b)
}

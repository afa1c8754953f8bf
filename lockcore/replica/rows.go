package replica

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// The rows. Where more follows a resource, its length (2 bytes) is before it, so
// that no resource's keys begin with those of another.
//
//	s                                  the record, as JSON
//	l <resource>                       the lock; goes with its TTL
//	c <resource>                       the counter; goes with its TTL
//	k <owner>                          what an idempotency key is used for; goes with the lock
//	h <server>                         the server's heartbeat: its tickets are alive; goes with its TTL
//	q <length><resource><arrival><name> a ticket of the queue, in order of arrival
//	t <length><resource><name>         the ticket's arrival
//	n <resource>                       how many tickets the queue has
//
// A ticket's name is "id server holder"; neither id nor server has a blank
// (node.Op.Validate). Numbers are 8 bytes, big-endian.
const (
	recordKey     = "s"
	lockPrefix    = "l"
	counterPrefix = "c"
	scopePrefix   = "k"
	serverPrefix  = "h"
	queuePrefix   = "q"
	ticketPrefix  = "t"
	lengthPrefix  = "n"

	numberLen = 8
)

// LockKey is where a resource's lock is.
func LockKey(resource string) string { return lockPrefix + resource }

// CounterKey is where a resource's counter is.
func CounterKey(resource string) string { return counterPrefix + resource }

// ScopeKey is where an owner's scope is.
func ScopeKey(owner string) string { return scopePrefix + owner }

func serverKey(server string) string   { return serverPrefix + server }
func lengthKey(resource string) string { return lengthPrefix + resource }

// after is the end of the range of all keys that begin with prefix, which has a
// byte other than the last there is.
func after(prefix string) string {
	end := []byte(prefix)
	for end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	end[len(end)-1]++
	return string(end)
}

var errCorrupt = errors.New("a row cannot be read")

func encodeNumber(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func decodeNumber(raw []byte) (int64, bool) {
	if len(raw) != numberLen {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(raw)), true
}

// format is the version of what the rows hold.
const format = 1

// record is the admission record and the marks.
type record struct {
	Format       int           `json:"format"`
	Admitted     string        `json:"admitted,omitempty"` // the incarnation that was admitted
	Nodes        int           `json:"nodes,omitempty"`
	Hash         string        `json:"hash,omitempty"`
	Epoch        node.Epoch    `json:"epoch,omitempty"`
	Bootstrapped node.Epoch    `json:"bootstrapped,omitempty"`
	Staged       node.Epoch    `json:"staged,omitempty"` // the epoch of an admission under way
	Note         string        `json:"note,omitempty"`   // of its quarantine, until it is admitted
	MaxTTL       int64         `json:"max_ttl_ms,omitempty"`
	HighWater    fencing.Token `json:"high_water,omitempty"`
	Secrets      string        `json:"secrets,omitempty"` // node.Secrets, whose own JSON shows none
}

func (r *record) cluster() node.Cluster { return node.Cluster{Nodes: r.Nodes, Hash: r.Hash} }

func (r *record) setCluster(c node.Cluster) { r.Nodes, r.Hash = c.Nodes, c.Hash }

// empty: nothing was ever kept here but perhaps the note.
func (r *record) empty() bool { return *r == record{Format: r.Format, Note: r.Note} }

func (r *record) marks() node.Marks {
	return node.Marks{
		HighWater: r.HighWater, MaxTTL: time.Duration(r.MaxTTL) * time.Millisecond, Bootstrapped: r.Bootstrapped, Secrets: node.Secrets(r.Secrets),
	}
}

func decodeRecord(raw []byte) (r record, err error) {
	if raw == nil {
		return record{Format: format}, nil
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("the node's record: %w", err)
	}
	if r.Format != format {
		return r, fmt.Errorf("the node's record has format %d, this program reads %d", r.Format, format)
	}
	return r, nil
}

// lock is a resource's lock. What is left of it is the row's affair.
type lock struct {
	ttl   time.Duration // as last given; whole milliseconds
	grant fencing.Token
	owner string
	note  string // "" for a lease of its own, else the attempts of an idempotency key with commas between them, or shared
	meta  string
}

// shared is the note of a lock that more attempts were told of than are noted: no
// attempt retracts it.
const shared = "="

func (l *lock) keyed() bool { return l.note != "" }

func (l *lock) encode() []byte {
	raw := make([]byte, 0, 2*numberLen+2*binary.MaxVarintLen16+len(l.owner)+len(l.note)+len(l.meta))
	raw = binary.BigEndian.AppendUint64(raw, uint64(l.ttl.Milliseconds()))
	raw = binary.BigEndian.AppendUint64(raw, uint64(l.grant))
	for _, text := range []string{l.owner, l.note} {
		raw = binary.AppendUvarint(raw, uint64(len(text)))
		raw = append(raw, text...)
	}
	return append(raw, l.meta...)
}

func decodeLock(raw []byte) (l lock, ok bool) {
	if len(raw) < 2*numberLen {
		return l, false
	}
	l.ttl = time.Duration(binary.BigEndian.Uint64(raw)) * time.Millisecond
	l.grant = fencing.Token(binary.BigEndian.Uint64(raw[numberLen:]))
	rest := raw[2*numberLen:]
	for _, text := range []*string{&l.owner, &l.note} {
		size, n := binary.Uvarint(rest)
		if n <= 0 || size > uint64(len(rest)-n) {
			return l, false
		}
		*text, rest = string(rest[n:n+int(size)]), rest[n+int(size):]
	}
	l.meta = string(rest)
	return l, true
}

// nameOf tells tickets apart; among those that arrived at once it orders them.
func nameOf(t node.Ticket) string { return t.ID + " " + t.Server + " " + t.Holder }

func parseName(name string) (t node.Ticket) {
	id, rest, _ := strings.Cut(name, " ")
	server, holder, _ := strings.Cut(rest, " ")
	return node.Ticket{ID: id, Server: server, Holder: holder}
}

// sized is a resource with its length before it.
func sized(resource string) string {
	return string(binary.BigEndian.AppendUint16(nil, uint16(len(resource)))) + resource
}

func queueKeys(resource string) string { return queuePrefix + sized(resource) }

func queueKey(resource string, arrival int64, name string) string {
	return string(binary.BigEndian.AppendUint64([]byte(queueKeys(resource)), uint64(arrival))) + name
}

// parseQueueKey reads a ticket from the key that orders it.
func parseQueueKey(resource, key string) node.Ticket {
	rest := key[len(queueKeys(resource)):]
	ticket := parseName(rest[numberLen:])
	ticket.Arrival = int64(binary.BigEndian.Uint64([]byte(rest[:numberLen])))
	return ticket
}

func ticketKey(resource, name string) string { return ticketPrefix + sized(resource) + name }

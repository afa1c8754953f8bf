package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore/node"
)

// The rows. If more follows a resource in a key, its length (2 bytes) precedes it, so that no resource's keys
// begin with those of another.
//
//	s                                  the record
//	l <resource>                       the lock; goes with its TTL
//	c <resource>                       the counter; goes with its TTL
//	k <owner>                          what an idempotency key is used for; goes with the lock
//	h <server>                         the server's heartbeat: its tickets are alive; goes with its TTL
//	q <length><resource><arrival><name> a ticket of the queue, in order of arrival
//	t <length><resource><name>         the ticket's arrival
//	n <resource>                       how many tickets the queue has, if more than node.MaxShown
//	p <id>                             the earliest arrival of a keyed ticket, and its present name
//	p <id> servers                     where else the request of a keyed ticket waits
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
	placePrefix   = "p"

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
func placeKey(id string) string        { return placePrefix + id }
func serversKey(id string) string      { return placePrefix + id + " servers" }

// after returns the end of the range of all keys that begin with prefix. prefix must contain a byte other than
// 0xff.
func after(prefix string) string {
	end := []byte(prefix)
	for end[len(end)-1] == 0xff {
		end = end[:len(end)-1]
	}
	end[len(end)-1]++
	return string(end)
}

// Unreadable returns an ErrUnreadable that names the row, unless its key contains a secret.
func Unreadable(key string) error {
	switch kind := key[:1]; kind {
	case recordKey, lockPrefix, counterPrefix, lengthPrefix:
		return fmt.Errorf("%w: %q", ErrUnreadable, key)
	default:
		return fmt.Errorf("%w: one of kind %q", ErrUnreadable, kind)
	}
}

var errCorrupt = errors.New("this version cannot read it")

func encodeNumber(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) }

func decodeNumber(raw []byte) (int64, bool) {
	if len(raw) != numberLen {
		return 0, false
	}
	return int64(binary.BigEndian.Uint64(raw)), true
}

// record is the admission record and the marks. A node goes through these states:
//
//	empty → quarantined (Note) → staged (Staged, Note) → admitted (Admitted, without Note)
//
// An admitted node is quarantined again when its incarnation changes, or when its admission is withdrawn. A
// node that missed a bootstrap is staged without a quarantine. HighWater is at least every counter, and never
// decreases while the data exist. Bootstrapped is at most Epoch.
type record struct {
	Admitted     string // the incarnation that was admitted
	Nodes        int
	Hash         string
	Epoch        node.Epoch
	Bootstrapped node.Epoch
	Staged       node.Epoch // the epoch of an admission under way
	Note         string     // the note of its quarantine, until it is admitted
	MaxTTL       int64      // in milliseconds
	HighWater    fencing.Token
	Secrets      node.Secrets
	Map          node.Map // written only if it has a name: for one of several sets, or after a change
	Later        string   // fields that a later version added: ignored and kept
}

func (r *record) cluster() node.Cluster { return node.Cluster{Nodes: r.Nodes, Hash: r.Hash} }

func (r *record) setCluster(c node.Cluster) { r.Nodes, r.Hash = c.Nodes, c.Hash }

// empty reports that the record holds nothing except, possibly, the note.
func (r *record) empty() bool { return *r == record{Note: r.Note} }

func (r *record) marks() node.Marks {
	return node.Marks{
		HighWater: r.HighWater, MaxTTL: time.Duration(r.MaxTTL) * time.Millisecond, Bootstrapped: r.Bootstrapped, Secrets: r.Secrets,
		Map: r.Map,
	}
}

// recordFormat is the version of the record's fields, and its first byte.
const recordFormat = 2

// The optional parts after the other fields, in this order.
const (
	mapPart        = 1
	generationPart = 2 // of the map: a version without generations keeps it unchanged
)

func (r *record) encode() []byte {
	raw := []byte{recordFormat}
	for _, text := range []string{r.Admitted, r.Hash, r.Note, string(r.Secrets)} {
		raw = appendText(raw, text)
	}
	for _, n := range []int64{
		int64(r.Nodes), int64(r.Epoch), int64(r.Bootstrapped), int64(r.Staged), r.MaxTTL, int64(r.HighWater),
	} {
		raw = binary.AppendVarint(raw, n)
	}
	if r.Map != (node.Map{}) {
		raw = appendText(append(raw, mapPart), r.Map.Name)
		raw = binary.AppendVarint(raw, int64(r.Map.Epoch))
		raw = binary.AppendVarint(raw, int64(r.Map.Floor))
	}
	if r.Map.Generation != 0 {
		raw = binary.AppendVarint(append(raw, generationPart), r.Map.Generation)
	}
	return append(raw, r.Later...)
}

// decodeRecord reads a record; without a row it returns an empty one.
func decodeRecord(raw []byte) (r record, err error) {
	if raw == nil {
		return r, nil
	}
	if len(raw) == 0 || raw[0] != recordFormat {
		return r, fmt.Errorf("the node's record was written by another version: this one reads format %d", recordFormat)
	}
	d := decoder{rest: raw[1:]}
	r = record{
		Admitted: d.text(), Hash: d.text(), Note: d.text(), Secrets: node.Secrets(d.text()),
		Nodes: int(d.number()), Epoch: node.Epoch(d.number()), Bootstrapped: node.Epoch(d.number()), Staged: node.Epoch(d.number()),
		MaxTTL: d.number(), HighWater: fencing.Token(d.number()),
	}
	if len(d.rest) > 0 && d.rest[0] == mapPart {
		d.rest = d.rest[1:]
		r.Map = node.Map{Name: d.text(), Epoch: node.Epoch(d.number()), Floor: fencing.Token(d.number())}
	}
	if len(d.rest) > 0 && d.rest[0] == generationPart {
		d.rest = d.rest[1:]
		r.Map.Generation = d.number()
	}
	r.Later = string(d.rest)
	if d.failed {
		return record{}, fmt.Errorf("the node's record: %w", errCorrupt)
	}
	return r, nil
}

// lock is a resource's lock. Its remaining time is that of its row.
type lock struct {
	ttl   time.Duration // the last TTL given to it; whole milliseconds
	grant fencing.Token
	owner string
	// attempts is "" for a lease without an idempotency key. Otherwise it lists the attempts under the key
	// that got this lock, separated by commas, or is shared.
	attempts string
	meta     string
}

// shared means that the node does not know all attempts, so that none of them may retract the lock.
const shared = "="

func (l *lock) keyed() bool { return l.attempts != "" }

func (l *lock) encode() []byte {
	raw := make([]byte, 0, 2*binary.MaxVarintLen64+3*binary.MaxVarintLen16+len(l.owner)+len(l.attempts)+len(l.meta))
	raw = binary.AppendVarint(raw, l.ttl.Milliseconds())
	raw = binary.AppendVarint(raw, int64(l.grant))
	for _, text := range []string{l.owner, l.attempts, l.meta} {
		raw = appendText(raw, text)
	}
	return raw
}

func decodeLock(raw []byte) (l lock, ok bool) {
	d := decoder{rest: raw}
	l = lock{
		ttl: time.Duration(d.number()) * time.Millisecond, grant: fencing.Token(d.number()),
		owner: d.text(), attempts: d.text(), meta: d.text(),
	}
	return l, !d.failed && len(d.rest) == 0
}

// appendText appends a text after its length.
func appendText(raw []byte, text string) []byte {
	return append(binary.AppendVarint(raw, int64(len(text))), text...)
}

// decoder reads the parts of a row's value one by one.
type decoder struct {
	rest   []byte
	failed bool // a part was missing: it and all later parts read as zero
}

func (d *decoder) number() int64 {
	n, size := binary.Varint(d.rest)
	if size <= 0 {
		return d.fail()
	}
	d.rest = d.rest[size:]
	return n
}

func (d *decoder) text() string {
	size := d.number()
	if size < 0 || size > int64(len(d.rest)) {
		size = d.fail()
	}
	text := string(d.rest[:size])
	d.rest = d.rest[size:]
	return text
}

func (d *decoder) fail() int64 {
	d.failed, d.rest = true, nil
	return 0
}

// nameOf distinguishes tickets, and orders those with the same arrival.
func nameOf(t node.Ticket) string { return t.ID + " " + t.Server + " " + t.Holder }

func parseName(name string) (t node.Ticket) {
	id, rest, _ := strings.Cut(name, " ")
	server, holder, _ := strings.Cut(rest, " ")
	return node.Ticket{ID: id, Server: server, Holder: holder}
}

// sized returns a prefix followed by a resource with its length in front.
func sized(prefix, resource string) string {
	return prefix + string([]byte{byte(len(resource) >> 8), byte(len(resource))}) + resource
}

func queueKeys(resource string) string { return sized(queuePrefix, resource) }

// queueRange is the range of all keys of a resource's queue. No name begins with 0xff.
func queueRange(resource string) (from, to string) {
	from = queueKeys(resource)
	return from, from + "\xff\xff\xff\xff\xff\xff\xff\xff\xff"
}

func queueKey(resource string, arrival int64, name string) string {
	return string(binary.BigEndian.AppendUint64([]byte(queueKeys(resource)), uint64(arrival))) + name
}

// parseQueueKey reads a ticket from its key in the queue.
func parseQueueKey(resource, key string) node.Ticket {
	rest := key[len(queueKeys(resource)):]
	ticket := parseName(rest[numberLen:])
	ticket.Arrival = int64(binary.BigEndian.Uint64([]byte(rest[:numberLen])))
	return ticket
}

func ticketKey(resource, name string) string { return sized(ticketPrefix, resource) + name }

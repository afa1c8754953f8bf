package boltnode

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/fencelock/fencelock/fencing"
)

// The buckets, and their keys and values. Numbers are big-endian, 8 bytes. An
// end is four of them: TTL (ms), epoch, monotonic (ns) and Unix (ms) time.
//
//	node_meta      "state"    the state as JSON
//	node_locks     resource   end, grant, then length and text of owner and note, metadata
//	node_counters  resource   last grant, end of its time to live (Unix ms)
//	node_keys      owner      end, the scope that an idempotency key is used for
//	node_lines     resource   a bucket: the line, see line.go
//	node_sessions  server     end: this server's tickets are alive
const (
	metaBucket     = "node_meta"
	locksBucket    = "node_locks"
	countersBucket = "node_counters"
	keysBucket     = "node_keys"
	linesBucket    = "node_lines"
	sessionsBucket = "node_sessions"
	stateKey       = "state"

	numberLen  = 8
	endLen     = 4 * numberLen
	counterLen = 2 * numberLen
)

var errCorrupt = errors.New("an entry cannot be read")

// end is when something ends. The monotonic clock counts while the process
// that wrote it lives; for the next one the wall clock has to do.
type end struct {
	ttl   time.Duration // as last given; whole milliseconds
	epoch uint64        // the opening of the file that wrote it
	mono  time.Duration // on the clock of that epoch
	wall  time.Time     // for every other epoch
}

func (e end) append(raw []byte) []byte {
	for _, number := range []uint64{uint64(e.ttl.Milliseconds()), e.epoch, uint64(e.mono), uint64(e.wall.UnixMilli())} {
		raw = binary.BigEndian.AppendUint64(raw, number)
	}
	return raw
}

// cutEnd reads an end and gives what follows it.
func cutEnd(raw []byte) (e end, rest []byte, ok bool) {
	if len(raw) < endLen {
		return e, nil, false
	}
	e = end{
		ttl:   time.Duration(number(raw, 0)) * time.Millisecond,
		epoch: uint64(number(raw, 1)),
		mono:  time.Duration(number(raw, 2)),
		wall:  time.UnixMilli(number(raw, 3)),
	}
	return e, raw[endLen:], true
}

// number reads the i-th number.
func number(raw []byte, i int) int64 { return int64(binary.BigEndian.Uint64(raw[i*numberLen:])) }

// lock is a resource's lock, or the last one, if it has ended.
type lock struct {
	end
	grant fencing.Token
	owner string
	note  string // "" for a lease of its own, else the attempts of an idempotency key with commas between them, or shared
	meta  string
}

// shared is the note of a lock that more attempts were told of than are noted.
const shared = "="

func (l lock) encode() []byte {
	raw := make([]byte, 0, endLen+numberLen+2*binary.MaxVarintLen16+len(l.owner)+len(l.note)+len(l.meta))
	raw = l.append(raw)
	raw = binary.BigEndian.AppendUint64(raw, uint64(l.grant))
	for _, text := range []string{l.owner, l.note} {
		raw = binary.AppendUvarint(raw, uint64(len(text)))
		raw = append(raw, text...)
	}
	return append(raw, l.meta...)
}

func decodeLock(raw []byte) (l lock, ok bool) {
	var rest []byte
	if l.end, rest, ok = cutEnd(raw); !ok || len(rest) < numberLen {
		return l, false
	}
	l.grant = fencing.Token(number(rest, 0))
	rest = rest[numberLen:]
	for _, text := range []*string{&l.owner, &l.note} {
		if *text, rest, ok = cutText(rest); !ok {
			return l, false
		}
	}
	l.meta = string(rest)
	return l, true
}

func cutText(raw []byte) (text string, rest []byte, ok bool) {
	size, n := binary.Uvarint(raw)
	if n <= 0 || size > uint64(len(raw)-n) {
		return "", nil, false
	}
	last := n + int(size)
	return string(raw[n:last]), raw[last:], true
}

// counter is a resource's last grant.
type counter struct {
	value fencing.Token
	until time.Time // may go from then on
}

func (c counter) encode() []byte {
	raw := make([]byte, 0, counterLen)
	raw = binary.BigEndian.AppendUint64(raw, uint64(c.value))
	return binary.BigEndian.AppendUint64(raw, uint64(c.until.UnixMilli()))
}

func decodeCounter(raw []byte) (c counter, ok bool) {
	if len(raw) != counterLen {
		return c, false
	}
	return counter{value: fencing.Token(number(raw, 0)), until: time.UnixMilli(number(raw, 1))}, true
}

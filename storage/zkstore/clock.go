package zkstore

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/fencelock/fencelock/storage/optimistic"
)

// clock counts time for the log. A server that writes an entry takes the time noted in the previous entry and
// adds the time that has passed since it saw that entry, by a clock that cannot be set. A server sees an entry
// only after it was written. So the real time between two entries is at least the difference of their notes,
// and a server that starts later knows each entry's minimum age.
type clock struct {
	mu    sync.Mutex
	known bool
	last  int64     // the newest entry that this server has seen
	noted int64     // the time noted in that entry, in milliseconds
	since time.Time // when this server saw or sent that entry
}

// reading is a reading of the clock. At that moment the clock showed now, and last was the newest entry, with
// the noted time noted.
type reading struct{ last, noted, now int64 }

// read reads the clock.
func (c *clock) read() (r reading, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known {
		return reading{}, false
	}
	return reading{c.last, c.noted, c.noted + time.Since(c.since).Milliseconds()}, true
}

// saw records an entry that was written after since.
func (c *clock) saw(number, noted int64, since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.known || number > c.last {
		c.known, c.last, c.noted, c.since = true, number, noted, since
	}
}

// begin sets the clock to a log that was read, and returns the minimum ages of its entries. The readings come
// from servers that may have seen this log.
func (c *clock) begin(log []entry, readings []reading) (ages []time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	ages = make([]time.Duration, len(log))
	if c.known = len(log) > 0; !c.known {
		return ages
	}
	end := log[len(log)-1]
	c.last, c.noted, c.since = end.number, end.noted, time.Now()
	readings = append(readings, reading{end.number, end.noted, end.noted})
	for i, e := range log {
		for _, r := range readings {
			if e.number <= r.last && isOf(r, log) {
				ages[i] = max(ages[i], time.Duration(r.now-e.noted)*time.Millisecond)
			}
		}
	}
	c.since = c.since.Add(-ages[len(ages)-1])
	return ages
}

// isOf reports whether a reading belongs to this log.
func isOf(r reading, log []entry) bool {
	at := r.last - log[0].number
	return at >= 0 && at < int64(len(log)) && log[at].number == r.last && log[at].noted == r.noted
}

func (r reading) encode() []byte {
	return binary.AppendVarint(binary.AppendVarint(binary.AppendVarint(nil, r.last), r.noted), r.now)
}

// decodeReading reads what encode wrote. It returns false for anything else.
func decodeReading(raw []byte) (r reading, ok bool) {
	for _, part := range []*int64{&r.last, &r.noted, &r.now} {
		n, size := binary.Varint(raw)
		if size <= 0 {
			return reading{}, false
		}
		*part, raw = n, raw[size:]
	}
	return r, len(raw) == 0
}

// entry is a decoded znode of the log.
type entry struct {
	number int64
	zxid   int64  // of the commit
	noted  int64  // the clock's time, in milliseconds
	head   string // the head that was written with the entry
	value  []byte
}

// of converts the entry for the mirror.
func (e *entry) of(age time.Duration) optimistic.Entry {
	return optimistic.Entry{Number: e.number, Value: e.value, Age: age}
}

// encode returns the content of the znode.
func (e *entry) encode() []byte {
	raw := binary.AppendUvarint(binary.AppendVarint(nil, e.noted), uint64(len(e.head)))
	return append(append(raw, e.head...), e.value...)
}

// decodeEntry reads what encode wrote. It returns false for anything else.
func decodeEntry(number, zxid int64, raw []byte) (e entry, ok bool) {
	noted, n := binary.Varint(raw)
	if n <= 0 {
		return e, false
	}
	length, m := binary.Uvarint(raw[n:])
	rest := raw[n+max(m, 0):]
	if m <= 0 || length > uint64(len(rest)) {
		return e, false
	}
	return entry{number: number, zxid: zxid, noted: noted, head: string(rest[:length]), value: rest[length:]}, true
}

// Package overlay runs a transaction over rows that were read earlier. It keeps the writes in memory until a
// store commits them in one step of its own.
package overlay

import (
	"math"
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// Row is a row as it is stored.
type Row struct {
	Value []byte
	Ends  int64 // end time in microseconds of the store's clock, or ForGood
	// Fresh means that the row's time to live begins when the store writes it.
	Fresh bool
}

// ForGood is the end of a row that never ends.
const ForGood = math.MaxInt64

// Rows is the source from which a transaction reads.
type Rows interface {
	// Get returns a row, or nil if there is none. known is false if the source does not know.
	Get(key string) (row *Row, known bool)
	// Next returns the first key with at <= key < to, or "" if there is none. It knows the range up to bound;
	// if bound is less than to, it found no key up to bound and does not know the rest.
	Next(at, to string) (key, bound string)
}

// Tx is one run of a transaction. Rows that the source does not know read as missing, and the run records them
// in Missing: its result must then be discarded.
type Tx struct {
	Missing Missing
	Writes  map[string]*Row // nil for a deleted row
	Wakes   []replica.Wake
	// Slack is the maximum number of microseconds by which the store's clock may be ahead of the moment at
	// which the run began; default 0.
	Slack int64

	read   Rows
	now    int64
	status replica.Status
	purged bool
	order  []string // the keys of Writes, sorted
	ended  []string // keys of rows that the run found, but whose time had passed
}

var _ replica.Tx = (*Tx)(nil)

// Missing lists the rows that a run needed and the source did not know.
type Missing struct {
	Keys   map[string]struct{}
	Ranges []Range
}

// Range is a range that a run needs, and the number of rows that it needs from it.
type Range struct {
	From, To string
	Limit    int
}

// Nothing reports whether the run's result is valid.
func (m *Missing) Nothing() bool { return len(m.Keys) == 0 && len(m.Ranges) == 0 }

// New begins a run at a moment of the store's clock, in microseconds.
func New(read Rows, now int64, status replica.Status) *Tx {
	return &Tx{
		read: read, now: now, status: status,
		Missing: Missing{Keys: make(map[string]struct{})}, Writes: make(map[string]*Row),
	}
}

// Get implements replica.Tx.
func (t *Tx) Get(key string) ([]byte, time.Duration) {
	row := t.row(key)
	if !t.lives(key, row) {
		return nil, 0
	}
	return row.Value, t.Left(row)
}

// lives reports whether a found row's time has not passed, and records the row as ended if it has.
func (t *Tx) lives(key string, row *Row) bool {
	if row != nil && row.Ends <= t.now {
		t.ended = append(t.ended, key)
		return false
	}
	return row != nil
}

// row returns a row as the transaction sees it, or nil if there is none.
func (t *Tx) row(key string) *Row {
	if row, own := t.Writes[key]; own || t.purged {
		return row
	}
	row, isKnown := t.read.Get(key)
	if !isKnown {
		t.Missing.Keys[key] = struct{}{}
	}
	return row
}

// Left returns a lower bound of a row's remaining time; 0 if the row never ends.
func (t *Tx) Left(row *Row) time.Duration {
	if row.Ends == ForGood {
		return 0
	}
	return time.Duration(max(t.ttl(row), 1)) * time.Microsecond // the row still exists, so at least 1
}

// ttl returns the time to live of a row that begins now.
func (t *Tx) ttl(row *Row) int64 { return row.Ends - t.now - t.Slack }

// Put implements replica.Tx.
func (t *Tx) Put(key string, value []byte, ttl time.Duration) {
	row := &Row{Value: append([]byte{}, value...), Ends: ForGood}
	switch before := t.before(key); {
	case ttl <= 0:
	case before != nil && before.Ends > t.now && ttl == t.Left(before): // it keeps its end
		row.Ends, row.Fresh = before.Ends, before.Fresh
	default:
		row.Ends, row.Fresh = t.now+t.Slack+wholeMicros(ttl), true
	}
	t.set(key, row)
}

// before returns the row that a write replaces, or nil if it is missing or unknown.
func (t *Tx) before(key string) *Row {
	if row, own := t.Writes[key]; own || t.purged {
		return row
	}
	row, _ := t.read.Get(key)
	return row
}

// Settle sets the ends of the fresh rows after the store has reported when it wrote them.
func (t *Tx) Settle(now int64) {
	for _, row := range t.Writes {
		if row != nil && row.Fresh {
			row.Ends, row.Fresh = now+t.ttl(row), false
		}
	}
}

// wholeMicros rounds up, so that no row ends early.
func wholeMicros(ttl time.Duration) int64 {
	return int64((ttl + time.Microsecond - 1) / time.Microsecond)
}

// Delete implements replica.Tx.
func (t *Tx) Delete(key string) { t.set(key, nil) }

func (t *Tx) set(key string, row *Row) {
	if at, found := slices.BinarySearch(t.order, key); !found {
		t.order = slices.Insert(t.order, at, key)
	}
	t.Writes[key] = row
}

// Range implements replica.Tx.
func (t *Tx) Range(from, to string, limit int) (found []replica.Row) {
	for at := from; len(found) < limit; {
		key, row, ok := t.next(at, to, limit-len(found))
		if !ok {
			break
		}
		if t.lives(key, row) {
			found = append(found, replica.Row{Key: key, Value: row.Value, Left: t.Left(row)})
		}
		at = key + "\x00"
	}
	return found
}

// next returns the first row with at <= key < to, from both the source and the transaction's writes. row is
// nil if the transaction deleted it. limit is the number of rows that the caller needs.
func (t *Tx) next(at, to string, limit int) (key string, row *Row, ok bool) {
	if !t.purged {
		var bound string
		if key, bound = t.read.Next(at, to); bound < to {
			t.Missing.Ranges = append(t.Missing.Ranges, Range{From: bound, To: to, Limit: limit})
			return "", nil, false
		}
	}
	if i, _ := slices.BinarySearch(t.order, at); i < len(t.order) && t.order[i] < to && (key == "" || t.order[i] <= key) {
		return t.order[i], t.Writes[t.order[i]], true
	}
	if key == "" {
		return "", nil, false
	}
	row, _ = t.read.Get(key)
	return key, row, true
}

// Purge implements replica.Tx.
func (t *Tx) Purge() {
	t.purged, t.Writes, t.order = true, make(map[string]*Row), nil
}

// Notify implements replica.Tx.
func (t *Tx) Notify(resource string, ticket node.Ticket) {
	t.Wakes = append(t.Wakes, replica.Wake{Resource: resource, Ticket: ticket})
}

// Now implements replica.Tx.
func (t *Tx) Now() time.Time { return time.UnixMicro(t.now) }

// Status implements replica.Tx.
func (t *Tx) Status() replica.Status { return t.status }

// Changes is the result of a transaction. A purge comes before the other changes.
type Changes struct {
	Purge   bool
	Deleted []string
	Put     []Put
	Wakes   []replica.Wake
}

// Put is a row that a transaction put.
type Put struct {
	Key string
	Row *Row
	TTL int64 // of a fresh row, in microseconds
}

// Changes returns the changes that the run made, in the order of their keys.
func (t *Tx) Changes() Changes {
	c := Changes{Purge: t.purged, Wakes: t.Wakes}
	for _, key := range t.order {
		switch {
		case t.Writes[key] != nil:
			c.Put = append(c.Put, Put{Key: key, Row: t.Writes[key], TTL: t.ttl(t.Writes[key])})
		case !t.purged && !t.knownAbsent(key):
			c.Deleted = append(c.Deleted, key)
		}
	}
	return c
}

// Ended returns the rows that the run found ended and did not write. If each server has its own clock, a
// commit deletes them. Otherwise the next server, for which their time may not have passed, would find rows
// that this run treated as missing.
func (t *Tx) Ended() []string {
	slices.Sort(t.ended)
	return slices.DeleteFunc(slices.Compact(t.ended), func(key string) bool {
		_, own := t.Writes[key]
		return own || t.purged
	})
}

func (t *Tx) knownAbsent(key string) bool {
	row, known := t.read.Get(key)
	return known && row == nil
}

// Nothing reports whether there is nothing to commit.
func (c *Changes) Nothing() bool {
	return !c.Purge && len(c.Deleted) == 0 && len(c.Put) == 0 && len(c.Wakes) == 0
}

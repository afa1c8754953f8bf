package pgstore

import (
	"cmp"
	"slices"
	"time"

	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// tx is one run of a transaction over what has been read so far. Where that is not
// enough it finds nothing, and notes what it wants: the run then counts for nothing.
type tx struct {
	read   rows
	now    int64 // Unix microseconds
	status replica.Status

	want   want
	purged bool
	writes map[string]*stored // nil for a row that was deleted
	order  []string           // of the keys of writes, sorted
	wakes  []replica.Wake
}

// rows is what a transaction reads from.
type rows interface {
	get(key string) (row *stored, isKnown bool)
	next(at, to string) (key, bound string)
}

// want is what a run has not found.
type want struct {
	keys   map[string]struct{}
	ranges []wantedRange
}

type wantedRange struct {
	from, to string
	limit    int
}

func (w *want) nothing() bool { return len(w.keys) == 0 && len(w.ranges) == 0 }

func newTx(read rows, now int64, status replica.Status) *tx {
	return &tx{
		read: read, now: now, status: status,
		want: want{keys: make(map[string]struct{})}, writes: make(map[string]*stored),
	}
}

func (t *tx) Get(key string) ([]byte, time.Duration) {
	row := t.row(key)
	if row == nil || row.ends <= t.now {
		return nil, 0
	}
	return row.value, t.left(row)
}

// row is a row as the transaction sees it, nil if there is none.
func (t *tx) row(key string) *stored {
	if row, own := t.writes[key]; own || t.purged {
		return row
	}
	row, isKnown := t.read.get(key)
	if !isKnown {
		t.want.keys[key] = struct{}{}
	}
	return row
}

func (t *tx) left(row *stored) time.Duration {
	if row.ends == forGood {
		return 0
	}
	return time.Duration(row.ends-t.now) * time.Microsecond
}

func (t *tx) Put(key string, value []byte, ttl time.Duration) {
	row := &stored{value: append([]byte{}, value...), ends: forGood}
	if ttl > 0 {
		row.ends = t.now + wholeMicros(ttl)
	}
	t.set(key, row)
}

// wholeMicros rounds up, so that no row goes early.
func wholeMicros(ttl time.Duration) int64 {
	return int64((ttl + time.Microsecond - 1) / time.Microsecond)
}

func (t *tx) Delete(key string) { t.set(key, nil) }

func (t *tx) set(key string, row *stored) {
	if at, found := slices.BinarySearch(t.order, key); !found {
		t.order = slices.Insert(t.order, at, key)
	}
	t.writes[key] = row
}

func (t *tx) Range(from, to string, limit int) (found []replica.Row) {
	for at := from; len(found) < limit; {
		key, row, ok := t.next(at, to, limit-len(found))
		if !ok {
			break
		}
		if row != nil && row.ends > t.now {
			found = append(found, replica.Row{Key: key, Value: row.value, Left: t.left(row)})
		}
		at = key + "\x00"
	}
	return found
}

// next is the first row with at <= key < to, of those that were read and those that the
// transaction wrote; its row is nil if it was deleted. Limit is how many are wanted.
func (t *tx) next(at, to string, limit int) (key string, row *stored, ok bool) {
	if !t.purged {
		var bound string
		if key, bound = t.read.next(at, to); bound < to {
			t.want.ranges = append(t.want.ranges, wantedRange{from: bound, to: to, limit: limit})
			return "", nil, false
		}
	}
	if i, _ := slices.BinarySearch(t.order, at); i < len(t.order) && t.order[i] < to && (key == "" || t.order[i] <= key) {
		return t.order[i], t.writes[t.order[i]], true
	}
	if key == "" {
		return "", nil, false
	}
	row, _ = t.read.get(key)
	return key, row, true
}

func (t *tx) Purge() {
	t.purged, t.writes, t.order = true, make(map[string]*stored), nil
}

func (t *tx) Notify(resource string, ticket node.Ticket) {
	t.wakes = append(t.wakes, replica.Wake{Resource: resource, Ticket: ticket})
}

func (t *tx) Now() time.Time { return time.UnixMicro(t.now) }

func (t *tx) Status() replica.Status { return t.status }

// changes is what a transaction leaves.
type changes struct {
	purge   bool
	deleted []string
	keys    []string // of the rows that were put
	wakes   []replica.Wake
}

func (t *tx) changes() changes {
	c := changes{purge: t.purged, wakes: t.wakes}
	for _, key := range t.order {
		switch {
		case t.writes[key] != nil:
			c.keys = append(c.keys, key)
		case !t.purged && !t.knownAbsent(key):
			c.deleted = append(c.deleted, key)
		}
	}
	return c
}

func (t *tx) knownAbsent(key string) bool {
	row, isKnown := t.read.get(key)
	return isKnown && row == nil
}

func (c *changes) nothing() bool {
	return !c.purge && len(c.deleted) == 0 && len(c.keys) == 0 && len(c.wakes) == 0
}

// firstFetch is how many rows of a range are read at least; each further round trip of
// a transaction reads sixteen times as many, up to mostFetched.
const (
	firstFetch  = 4
	mostFetched = 1 << 20
)

// size is how many rows of a range are read in a round trip of that number.
func size(limit, round int) int {
	return min(max(limit, firstFetch<<min(4*round, 20)), mostFetched)
}

// sortedKeys are in order, so that transactions lock rows in one order.
func (w *want) sortedKeys() []string {
	keys := make([]string, 0, len(w.keys))
	for key := range w.keys {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// distinct leaves out what is asked for twice.
func (w *want) distinctRanges() []wantedRange {
	slices.SortFunc(w.ranges, func(a, b wantedRange) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(b.limit, a.limit))
	})
	return slices.CompactFunc(w.ranges, func(a, b wantedRange) bool { return a.from == b.from && a.to == b.to })
}

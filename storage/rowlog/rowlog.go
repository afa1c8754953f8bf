// Package rowlog keeps a server's knowledge of a log of transactions that several servers share: the rows that
// result from the log, and which entry contains each row. With it, old entries can be removed as new ones are
// written, because a new entry repeats the living rows of the removed ones. So the log is at most about twice
// as large as the rows.
package rowlog

import (
	"cmp"
	"slices"

	"github.com/google/btree"

	"github.com/fencelock/fencelock/storage/overlay"
)

const (
	// CarryBytes is the minimum size of old entries that each transaction rewrites if the log is too long.
	CarryBytes = 32 << 10
	// spareBytes is how much the log may exceed twice the size of the rows.
	spareBytes = 256 << 10
	// entryBytes is added to the size of each entry, so that many small entries count as a long log.
	entryBytes = 1 << 10
	// maxRemoved is the maximum number of entries that one transaction removes.
	maxRemoved = 64
	// rowBytes is the approximate overhead of a row, in addition to its key and value.
	rowBytes = 16
)

// Row is a row, and the number of the entry that contains it.
type Row struct {
	Key string
	overlay.Row
	In int64
}

// Size is the approximate size of a row in an entry.
func Size(key string, value []byte) int { return len(key) + len(value) + rowBytes }

// Entry describes an entry without its values.
type Entry struct {
	Number int64
	ID     string // distinguishes it from another entry with the same number, after a loss

	keys  []string // the keys that it put
	bytes int
}

// Log is a log from its first existing entry to its last. It is not safe for concurrent use.
type Log struct {
	Entries []Entry // all existing entries, in order

	rows  *btree.BTreeG[Row]
	bytes int // size of the entries
	live  int // size of the rows
}

// New returns a log without entries.
func New() *Log { return &Log{rows: newRows()} }

func newRows() *btree.BTreeG[Row] {
	const degree = 32
	return btree.NewG(degree, func(a, b Row) bool { return a.Key < b.Key })
}

// Get returns a row.
func (l *Log) Get(key string) (row Row, there bool) { return l.rows.Get(Row{Key: key}) }

// Next returns the first key >= at, or "" if there is none.
func (l *Log) Next(at string) (key string) {
	l.rows.AscendGreaterOrEqual(Row{Key: at}, func(row Row) bool {
		key = row.Key
		return false
	})
	return key
}

// Rows is the number of rows.
func (l *Log) Rows() int { return l.rows.Len() }

// Bytes is the approximate size of the entries.
func (l *Log) Bytes() int { return l.bytes }

// Ended returns at most `most` keys of rows that ended before now.
func (l *Log) Ended(now int64, most int) (keys []string) {
	l.rows.Ascend(func(row Row) bool {
		if row.Ends <= now {
			keys = append(keys, row.Key)
		}
		return len(keys) < most
	})
	return keys
}

// Append applies the next entry.
func (l *Log) Append(e Entry, deleted []string, put []Row) {
	e.keys, e.bytes = make([]string, 0, len(put)), entryBytes
	for _, key := range deleted {
		l.remove(key)
		e.bytes += len(key)
	}
	for _, row := range put {
		row.In = e.Number
		l.Put(row)
		e.keys = append(e.keys, row.Key)
		e.bytes += Size(row.Key, row.Value)
	}
	l.Entries = append(l.Entries, e)
	l.bytes += e.bytes
}

// Put puts a row that belongs to no entry.
func (l *Log) Put(row Row) {
	if old, there := l.rows.ReplaceOrInsert(row); there {
		l.live -= Size(old.Key, old.Value)
	}
	l.live += Size(row.Key, row.Value)
}

func (l *Log) remove(key string) {
	if old, there := l.rows.Delete(Row{Key: key}); there {
		l.live -= Size(key, old.Value)
	}
}

// Purge removes all rows. It keeps the entries.
func (l *Log) Purge() { l.rows, l.live = newRows(), 0 }

// Drop removes the entries before first, and the rows that only they contained.
func (l *Log) Drop(first int64) {
	for len(l.Entries) > 0 && l.Entries[0].Number < first {
		for _, key := range l.Entries[0].keys {
			if row, there := l.Get(key); there && row.In == l.Entries[0].Number {
				l.remove(key)
			}
		}
		l.bytes -= l.Entries[0].bytes
		l.Entries = l.Entries[1:]
	}
}

// Misses reports whether the log, which begins with entry number first, lacks an entry that was seen earlier.
func (l *Log) Misses(seen Entry, first int64) bool {
	at, found := slices.BinarySearchFunc(l.Entries, seen.Number, func(e Entry, n int64) int { return cmp.Compare(e.Number, n) })
	return seen.Number >= first && (!found || l.Entries[at].ID != seen.ID)
}

// TooLong reports whether old entries should be removed.
func (l *Log) TooLong() bool { return l.tooLong(0) }

func (l *Log) tooLong(without int) bool { return l.bytes-without > 2*l.live+spareBytes }

// Carry chooses the oldest entries that the next transaction removes. It returns them and their living rows,
// about budget bytes, which that transaction has to put again.
func (l *Log) Carry(budget int, lives func(Row) bool) (removed []Entry, rows []Row) {
	bytes := 0
	for _, e := range l.Entries[:min(len(l.Entries), maxRemoved)] {
		if budget <= 0 || !l.tooLong(bytes) {
			break
		}
		for _, key := range e.keys {
			if row, there := l.Get(key); there && row.In == e.Number && lives(row) {
				rows = append(rows, row)
				budget -= Size(key, row.Value)
			}
		}
		bytes += e.bytes
		removed = append(removed, e)
	}
	return removed, rows
}

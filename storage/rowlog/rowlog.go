// Package rowlog is what a server knows of a log of transactions that several servers
// share: the rows that the log leaves, and which entry has each. So old entries can be
// removed as new ones are written: what they have of living rows is written again. The log
// is then about twice as large as the rows, at most.
package rowlog

import (
	"cmp"
	"slices"

	"github.com/google/btree"

	"github.com/fencelock/fencelock/storage/overlay"
)

const (
	// CarryBytes is how much of old entries each transaction writes again at least, if the
	// log is too long.
	CarryBytes = 32 << 10
	// spareBytes is what the log may have besides twice the rows.
	spareBytes = 256 << 10
	// entryBytes is what an entry counts for besides its rows, so that there are not many
	// small ones.
	entryBytes = 1 << 10
	// maxRemoved bounds the entries that a transaction removes.
	maxRemoved = 64
	// rowBytes is what a row takes besides its key and value, about.
	rowBytes = 16
)

// Row is a row, and the number of the entry that has it.
type Row struct {
	Key string
	overlay.Row
	In int64
}

// Size is what a row takes in an entry, about.
func Size(key string, value []byte) int { return len(key) + len(value) + rowBytes }

// Entry is what is known of an entry.
type Entry struct {
	Number int64
	ID     string // tells it from another with the number, after a loss

	keys  []string // that it put
	bytes int
}

// Log is a log, up to its last entry. It is not safe for concurrent use.
type Log struct {
	Entries []Entry // all that there are, in order

	rows  *btree.BTreeG[Row]
	bytes int // of the entries
	live  int // bytes of the rows
}

// New is a log without entries.
func New() *Log { return &Log{rows: newRows()} }

func newRows() *btree.BTreeG[Row] {
	const degree = 32
	return btree.NewG(degree, func(a, b Row) bool { return a.Key < b.Key })
}

// Get returns a row.
func (l *Log) Get(key string) (row Row, there bool) { return l.rows.Get(Row{Key: key}) }

// Next is the first key that is not before at, "" if there is none.
func (l *Log) Next(at string) (key string) {
	l.rows.AscendGreaterOrEqual(Row{Key: at}, func(row Row) bool {
		key = row.Key
		return false
	})
	return key
}

// Rows is how many rows there are.
func (l *Log) Rows() int { return l.rows.Len() }

// Bytes is what the entries take, about.
func (l *Log) Bytes() int { return l.bytes }

// Ended are keys of rows that ended before now, so many at most.
func (l *Log) Ended(now int64, most int) (keys []string) {
	l.rows.Ascend(func(row Row) bool {
		if row.Ends <= now {
			keys = append(keys, row.Key)
		}
		return len(keys) < most
	})
	return keys
}

// Append does what the next entry says.
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

// Put puts a row without an entry of its own.
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

// Purge removes all rows, and no entry.
func (l *Log) Purge() { l.rows, l.live = newRows(), 0 }

// Drop removes the entries before the first, with the rows that only they had.
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

// Misses tells whether the log, which begins with the first entry, is without one that was
// seen before.
func (l *Log) Misses(seen Entry, first int64) bool {
	at, found := slices.BinarySearchFunc(l.Entries, seen.Number, func(e Entry, n int64) int { return cmp.Compare(e.Number, n) })
	return seen.Number >= first && (!found || l.Entries[at].ID != seen.ID)
}

// TooLong tells whether old entries are to be removed.
func (l *Log) TooLong() bool { return l.tooLong(0) }

func (l *Log) tooLong(without int) bool { return l.bytes-without > 2*l.live+spareBytes }

// Carry finds how many of the oldest entries the next transaction removes, and what they
// have of rows that live, about so many bytes: it has to put these.
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

package zkstore

import (
	"github.com/google/btree"

	"github.com/fencelock/fencelock/storage/overlay"
)

const (
	// maxEntries is how many transactions the log has before it is cleaned whatever its size.
	maxEntries = 4096
	// spareBytes is what the log may have besides twice the rows.
	spareBytes = 1 << 20
	// maxRemoved bounds the entries that a transaction removes.
	maxRemoved = 64
	// rowBytes is what a row takes besides its key and value, about.
	rowBytes = 16
)

// mirror is what the log says, up to its last entry.
type mirror struct {
	header
	rows    *btree.BTreeG[mirrored]
	entries []logged // all that there are, in order
	bytes   int      // of the entries
	live    int      // bytes of the rows
}

// mirrored is a row, and which entry has it.
type mirrored struct {
	key string
	overlay.Row
	entry int64
}

func newRows() *btree.BTreeG[mirrored] {
	const degree = 32
	return btree.NewG(degree, func(a, b mirrored) bool { return a.key < b.key })
}

// logged is what is known of an entry.
type logged struct {
	id     string
	pieces int
	keys   []string // that it put
	bytes  int
}

func newMirror(h header) *mirror {
	return &mirror{header: h, rows: newRows()}
}

func size(key string, value []byte) int { return len(key) + len(value) + rowBytes }

// apply does what the next entry says.
func (m *mirror) apply(e *entry) {
	if e.purge {
		m.rows, m.live = newRows(), 0
	}
	for _, key := range e.deleted {
		m.remove(key)
	}
	l := logged{id: e.id, pieces: e.pieces, keys: make([]string, 0, len(e.puts)), bytes: len(magic)}
	for _, p := range e.puts {
		m.put(mirrored{p.key, p.row, e.last})
		l.keys = append(l.keys, p.key)
		l.bytes += size(p.key, p.row.Value)
	}
	for _, key := range e.deleted {
		l.bytes += len(key)
	}
	first := m.first
	m.header = e.header
	m.entries = append(m.entries, l)
	m.bytes += l.bytes
	m.drop(first)
}

// drop removes the entries from first on that the log has no longer, with the rows that
// only they had.
func (m *mirror) drop(first int64) {
	for ; first < m.first && len(m.entries) > 0; first++ {
		for _, key := range m.entries[0].keys {
			if row, there := m.get(key); there && row.entry == first {
				m.remove(key)
			}
		}
		m.bytes -= m.entries[0].bytes
		m.entries = m.entries[1:]
	}
}

func (m *mirror) get(key string) (mirrored, bool) { return m.rows.Get(mirrored{key: key}) }

// next is the first key that is not before at; "" if there is none.
func (m *mirror) next(at string) (key string) {
	m.rows.AscendGreaterOrEqual(mirrored{key: at}, func(row mirrored) bool {
		key = row.key
		return false
	})
	return key
}

func (m *mirror) put(row mirrored) {
	if old, there := m.rows.ReplaceOrInsert(row); there {
		m.live -= size(old.key, old.Value)
	}
	m.live += size(row.key, row.Value)
}

func (m *mirror) remove(key string) {
	if old, there := m.rows.Delete(mirrored{key: key}); there {
		m.live -= size(key, old.Value)
	}
}

// tooLong tells whether the log is to be cleaned, were it so many entries and bytes shorter.
func (m *mirror) tooLong(entries, bytes int) bool {
	return len(m.entries)-entries > maxEntries || m.bytes-bytes > 2*m.live+spareBytes
}

// carry finds how many of the oldest entries the next transaction removes, and what they
// have of rows that live and that it does not write itself, at most so many bytes.
func (m *mirror) carry(t *tx, purges bool, budget int) (removed []logged, rows []put) {
	bytes := 0
	for n := 0; n < min(len(m.entries), maxRemoved) && budget > 0 && m.tooLong(n, bytes); n++ {
		number := m.first + int64(n)
		for _, key := range m.entries[n].keys {
			row, there := m.get(key)
			if _, own := t.Writes[key]; own || purges || !there || row.entry != number || row.Ends <= t.low {
				continue
			}
			rows = append(rows, put{key, row.Row})
			budget -= size(key, row.Value)
		}
		bytes += m.entries[n].bytes
		removed = append(removed, m.entries[n])
	}
	return removed, rows
}

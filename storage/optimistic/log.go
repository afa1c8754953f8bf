package optimistic

import (
	"cmp"
	"slices"

	"github.com/fencelock/fencelock/storage/overlay"
)

const (
	// spareBytes is what the log may have besides twice the rows.
	spareBytes = 256 << 10
	// entryBytes is what an entry counts for besides its rows, so that there are not many
	// small ones.
	entryBytes = 1 << 10
	// maxRemoved bounds the entries that a commit removes.
	maxRemoved = 64
	// rowBytes is what a row takes besides its key and value, about.
	rowBytes = 16
	// carryBytes is how much of old entries each commit writes again at least, if the log
	// is too long; mostBytes is up to what size of an entry.
	carryBytes = 32 << 10
	mostBytes  = 700 << 10
)

// logged is what is known of an entry.
type logged struct {
	number uint64
	commit string   // that wrote it: another may have the number, after a loss
	keys   []string // that it put
	bytes  int
}

func size(key string, value []byte) int { return len(key) + len(value) + rowBytes }

// write does what an entry says. The caller has m.mu.
func (m *Mirror) write(number uint64, commit string, deleted []string, rows []entry) {
	l := logged{number: number, commit: commit, keys: make([]string, 0, len(rows)), bytes: entryBytes}
	for _, key := range deleted {
		m.remove(key)
		l.bytes += len(key)
	}
	for _, e := range rows {
		e.in = number
		if old, there := m.rows.ReplaceOrInsert(e); there {
			m.live -= size(old.key, old.row.Value)
		}
		m.live += size(e.key, e.row.Value)
		l.keys = append(l.keys, e.key)
		l.bytes += size(e.key, e.row.Value)
	}
	m.log = append(m.log, l)
	m.bytes += l.bytes
	m.seen = logged{number: number, commit: commit}
}

func (m *Mirror) remove(key string) {
	if old, there := m.rows.Delete(entry{key: key}); there {
		m.live -= size(key, old.row.Value)
	}
}

// misses tells whether the log, which begins with the first entry, is without one that was
// seen before.
func (m *Mirror) misses(seen logged, first uint64) bool {
	at, found := slices.BinarySearchFunc(m.log, seen.number, func(l logged, n uint64) int { return cmp.Compare(l.number, n) })
	return seen.number >= first && (!found || m.log[at].commit != seen.commit)
}

// drop removes the entries before the first, with the rows that only they had.
func (m *Mirror) drop(first uint64) {
	for len(m.log) > 0 && m.log[0].number < first {
		for _, key := range m.log[0].keys {
			if e, there := m.rows.Get(entry{key: key}); there && e.in < first {
				m.remove(key)
			}
		}
		m.bytes -= m.log[0].bytes
		m.log = m.log[1:]
	}
}

// tooLong tells whether the log is to be cleaned, were it so many bytes shorter.
func (m *Mirror) tooLong(bytes int) bool { return m.bytes-bytes > 2*m.live+spareBytes }

// carry finds how many of the oldest entries the commit of t removes: first is the first
// that stays. The rows are what the others have that lives, and that t does not write.
func (m *Mirror) carry(t *tx) (first uint64, rows []overlay.Put) {
	first = t.on.head.first
	if t.changes.Purge {
		return t.on.head.last + 1, nil
	}
	budget := carryBytes
	for _, put := range t.changes.Put {
		budget += 2 * size(put.Key, put.Row.Value)
	}
	budget = min(budget, max(0, mostBytes-budget/2))
	bytes := 0
	for n := 0; n < min(len(m.log), maxRemoved) && budget > 0 && m.tooLong(bytes); n++ {
		for _, key := range m.log[n].keys {
			e, there := m.rows.Get(entry{key: key})
			if _, own := t.Writes[key]; own || !there || e.in != m.log[n].number || e.row.Ends <= t.began {
				continue
			}
			rows = append(rows, overlay.Put{Key: key, Row: &e.row})
			budget -= size(key, e.row.Value)
		}
		bytes += m.log[n].bytes
		first = m.log[n].number + 1
	}
	return first, rows
}

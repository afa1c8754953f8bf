package pgstore

import (
	"sync"
	"time"

	"github.com/google/btree"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
)

const (
	// mirrorBytes bounds a mirror, roughly.
	mirrorBytes = 16 << 20
	// rowBytes is the approximate overhead of a row, in addition to its key and value.
	rowBytes = 150
	// clockKeeps is how long a reading of the server's clock is extrapolated: as long as the clocks of two
	// machines run alike, and less than fencelock._write_if takes.
	clockKeeps = 500 * time.Millisecond
)

// mirror is this process's last known copy of the rows. Rows that it lacks are assumed absent, so it may drop
// any row at any time.
//
// A transaction first runs on the mirror. While no other process writes, the mirror's rows are equal to those
// in the table. Then the server only verifies that the rows assumed absent are absent, and commits in the same
// round trip. Otherwise the run has shown which rows the transaction needs.
type mirror struct {
	mu     sync.Mutex
	rows   *btree.BTreeG[seen]
	bytes  int
	life   int64 // rows of an earlier life may have been changed by another process
	alone  bool  // no other process wrote between this one's last two transactions
	status replica.Status
	writes int64 // number of transactions that had written
	clock  clock
	latest int64 // the latest time of a transaction of this process; the times of later ones are not earlier

	incarnation string // the incarnation last seen, also by a read-only transaction
}

// seen is a row, and the life of the mirror in which it was seen.
type seen struct {
	key  string
	row  overlay.Row
	life int64
}

func (s *seen) bytes() int { return rowBytes + len(s.key) + len(s.row.Value) }

func newMirror() *mirror {
	const degree = 32
	return &mirror{rows: btree.NewG(degree, func(a, b seen) bool { return a.key < b.key })}
}

// clock is a reading of the server's clock, taken between two local moments.
type clock struct {
	said            int64 // Unix microseconds
	asked, answered time.Time
}

// now returns the earliest time that the server's clock may show now, and by how much it may be later. Without
// a reading it uses this machine's clock.
func (c clock) now() (earliest, slack int64) {
	if c.asked.IsZero() {
		return time.Now().UnixMicro(), 0
	}
	return c.said + time.Since(c.answered).Microseconds(), c.answered.Sub(c.asked).Microseconds()
}

// draft is a transaction that was run on a mirror.
type draft struct {
	*overlay.Tx
	guess   *guess
	changed overlay.Changes
	now     int64
	status  replica.Status
	writes  int64
	life    int64
	// sure means that the draft may be committed if the server finds that the rows assumed absent are absent.
	sure bool
}

// run runs fn.
func (m *mirror) run(fn func(replica.Tx) error, fit func(replica.Status) replica.Status) *draft {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, slack := m.clock.now()
	if behind := m.latest - now; behind > 0 {
		now, slack = m.latest, max(0, slack-behind)
	}
	g := newGuess(m, now)
	d := &draft{Tx: overlay.New(g, now, fit(m.status)), guess: g, now: now, status: m.status, writes: m.writes, life: m.life}
	d.Slack = slack
	err := fn(d.Tx)
	d.changed = d.Changes()
	d.sure = err == nil && m.alone && !g.stale && time.Since(m.clock.asked) <= clockKeeps
	if d.sure {
		m.latest = now
	}
	return d
}

// forget drops the rows, because they are no longer known, or because the server refused a draft: its clock
// may have been set back.
func (m *mirror) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.suspect()
}

func (m *mirror) suspect() {
	m.life++
	m.alone, m.latest = false, 0
}

// saw records the incarnation, and the time of the server's clock, so that a row that has ended for one
// transaction has also ended for the next.
func (m *mirror) saw(c clock, incarnation string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latest = max(m.latest, c.said)
	m.incarnation = incarnation
	if c.asked.After(m.clock.asked) {
		m.clock = c
	}
}

func (m *mirror) lastIncarnation() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.incarnation
}

// opened records the reads and writes of a transaction.
func (m *mirror) opened(r *reading, t *overlay.Tx) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.alone = m.writes == r.writes
	if !m.alone || m.status != r.status {
		m.life++
	}
	m.status, m.writes = r.status, r.writes
	for _, s := range r.read.spans {
		m.empty(s, r.read)
	}
	for key := range r.read.absent {
		m.remove(key)
	}
	for key, row := range r.read.rows {
		m.put(key, row)
	}
	m.write(t, t.Changes())
}

// empty removes the rows of a span that the server did not return.
func (m *mirror) empty(s span, found *known) {
	var gone []string
	m.rows.AscendRange(seen{key: s.from}, seen{key: s.upto}, func(s seen) bool {
		if _, there := found.rows[s.key]; !there {
			gone = append(gone, s.key)
		}
		return true
	})
	for _, key := range gone {
		m.remove(key)
	}
}

// wrote records the writes of a draft, and the clock.
func (m *mirror) wrote(d *draft, c clock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writes != d.writes || m.life != d.life {
		m.suspect() // another transaction of this process came in between
		return
	}
	m.clock, m.latest = c, max(m.latest, c.said)
	m.write(d.Tx, d.changed)
}

// write records the writes of the latest transaction.
func (m *mirror) write(t *overlay.Tx, changed overlay.Changes) {
	if changed.Nothing() {
		return
	}
	m.writes++
	if changed.Purge {
		m.clear()
	}
	for key, row := range t.Writes {
		if row != nil {
			m.put(key, *row)
		} else {
			m.remove(key)
		}
	}
}

func (m *mirror) clear() {
	m.rows.Clear(false)
	m.bytes = 0
}

func (m *mirror) put(key string, row overlay.Row) {
	if m.bytes > mirrorBytes {
		m.clear()
	}
	s := seen{key: key, row: row, life: m.life}
	if old, there := m.rows.ReplaceOrInsert(s); there {
		m.bytes -= old.bytes()
	}
	m.bytes += s.bytes()
}

func (m *mirror) remove(key string) {
	if old, there := m.rows.Delete(seen{key: key}); there {
		m.bytes -= old.bytes()
	}
}

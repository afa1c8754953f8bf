package pgstore

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
)

const (
	// mirrorBytes bounds a mirror, roughly.
	mirrorBytes = 8 << 20
	// rowBytes is what a row needs beside its key and value, roughly.
	rowBytes = 100
	// clockKeeps is how long the server's clock is known after it was asked: as long as
	// the clocks of two machines run alike, and less than fencelock._write_if takes.
	clockKeeps = 500 * time.Millisecond
)

// mirror is what the rows were after this process's last transaction that wrote. Unless
// another process has written they still are: then a transaction is run on the mirror
// and takes one round trip, in which the server finds out whether that was so.
type mirror struct {
	mu     sync.Mutex
	alone  bool   // no other process wrote between this one's last two transactions
	rows   *known // its spans do not overlap; nil after a failure
	bytes  int
	status replica.Status // as the server said it
	writes int64          // how many transactions had written
	clock  clock
	latest int64 // the latest time of a transaction of this process: none is earlier
}

// clock is what the server's said between two moments here.
type clock struct {
	said            int64 // Unix microseconds
	asked, answered time.Time
}

// now is the earliest that the server's clock may show now, and by how much it may show
// more.
func (c clock) now() (earliest, slack int64) {
	return c.said + time.Since(c.answered).Microseconds(), c.answered.Sub(c.asked).Microseconds()
}

// draft is a transaction that was run on a mirror.
type draft struct {
	*overlay.Tx
	changed overlay.Changes
	now     int64
	status  replica.Status
	writes  int64
}

// run runs fn. It returns nil if the rows are not all known, or fn fails.
func (m *mirror) run(fn func(replica.Tx) error, fit func(replica.Status) replica.Status) *draft {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.alone || m.rows == nil || m.bytes > mirrorBytes || time.Since(m.clock.asked) > clockKeeps {
		return nil
	}
	now, slack := m.clock.now()
	if behind := m.latest - now; behind > 0 {
		now, slack = m.latest, max(0, slack-behind)
	}
	m.latest = now
	t := overlay.New(m.rows, now, fit(m.status))
	t.Slack = slack
	if err := fn(t); err != nil || !t.Missing.Nothing() {
		return nil
	}
	return &draft{Tx: t, changed: t.Changes(), now: now, status: m.status, writes: m.writes}
}

// forget is for when it is not known what the rows are, or the server refused a draft:
// its clock may have been set back.
func (m *mirror) forget() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rows, m.latest = nil, 0
}

// saw notes a time that the server's clock showed, so that what has ended for one
// transaction has not for the next.
func (m *mirror) saw(said int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latest = max(m.latest, said)
}

// opened notes what a transaction has read and written.
func (m *mirror) opened(r *reading, t *overlay.Tx, c clock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.latest = max(m.latest, c.said)
	m.alone = m.writes == r.writes
	if m.rows == nil || !m.alone || m.status != r.status || m.bytes > mirrorBytes {
		m.rows, m.bytes = newKnown(), 0
	}
	m.status, m.writes, m.clock = r.status, r.writes, c
	for key, row := range r.read.rows {
		m.put(key, row)
	}
	for key := range r.read.absent {
		m.remove(key)
	}
	m.merge(r.read.spans)
	m.write(t, t.Changes())
}

// wrote notes what a draft has written.
func (m *mirror) wrote(d *draft, c clock) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writes != d.writes || m.status != d.status {
		m.rows = nil // another transaction of this process came between
		return
	}
	m.clock, m.latest = c, max(m.latest, c.said)
	if m.rows != nil {
		m.write(d.Tx, d.changed)
	}
}

// write notes what a transaction has written, the last one of all.
func (m *mirror) write(t *overlay.Tx, changed overlay.Changes) {
	if changed.Nothing() {
		return
	}
	m.writes++
	if changed.Purge {
		m.rows = nil
		return
	}
	for key, row := range t.Writes {
		span := m.spanOf(key)
		if row != nil {
			m.put(key, *row)
			span.insert(key)
		} else {
			m.remove(key)
			span.remove(key)
		}
	}
}

func (m *mirror) put(key string, row overlay.Row) {
	if _, there := m.rows.rows[key]; !there {
		m.bytes += rowBytes + len(key) + len(row.Value)
	}
	m.rows.rows[key] = row
	delete(m.rows.absent, key)
}

func (m *mirror) remove(key string) {
	if _, there := m.rows.absent[key]; !there {
		m.bytes += rowBytes + len(key)
	}
	m.rows.absent[key] = struct{}{}
	delete(m.rows.rows, key)
}

// spanOf is the span that has a key; nil if none has.
func (m *mirror) spanOf(key string) *span {
	spans := m.rows.spans
	i, found := slices.BinarySearchFunc(spans, key, func(s span, key string) int { return cmp.Compare(s.from, key) })
	if !found {
		i--
	}
	if i < 0 || spans[i].upto <= key {
		return nil
	}
	return &spans[i]
}

// merge adds spans, in place of those that they overlap. Of two new ones that overlap
// the first stays.
func (m *mirror) merge(added []span) {
	if len(added) == 0 {
		return
	}
	old, merged := m.rows.spans, make([]span, 0, len(m.rows.spans)+len(added))
	for _, s := range added {
		n, _ := slices.BinarySearchFunc(old, s.from, func(s span, from string) int { return cmp.Compare(s.upto, from) })
		merged, old = append(merged, old[:n]...), old[n:]
		for len(old) > 0 && old[0].from < s.upto {
			old = old[1:]
		}
		if n := len(merged); n == 0 || merged[n-1].upto <= s.from {
			merged = append(merged, s)
			m.bytes += rowBytes + len(s.from) + len(s.upto)
		}
	}
	merged = append(merged, old...)
	m.rows.spans = merged
}

func (s *span) insert(key string) {
	if s == nil {
		return
	}
	if at, found := slices.BinarySearch(s.keys, key); !found {
		s.keys = slices.Insert(s.keys, at, key)
	}
}

func (s *span) remove(key string) {
	if s == nil {
		return
	}
	if at, found := slices.BinarySearch(s.keys, key); found {
		s.keys = slices.Delete(s.keys, at, at+1)
	}
}

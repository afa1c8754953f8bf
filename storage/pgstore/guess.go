package pgstore

import (
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/overlay"
)

// hintBytes bounds each of the two generations of hints.
const hintBytes = 4 << 20

// hints are rows as they were a moment ago. They serve to guess which rows a
// transaction will want, and for nothing else: what they say may be wrong.
type hints struct {
	mu         sync.Mutex
	status     replica.Status
	young, old map[string]overlay.Row
	bytes      int // of the young
}

func newHints() *hints {
	return &hints{young: make(map[string]overlay.Row), old: make(map[string]overlay.Row)}
}

// guess runs fn on the hints, and returns what it wanted.
func (h *hints) guess(fn func(replica.Tx) error) overlay.Missing {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.status.Incarnation == "" {
		return overlay.Missing{}
	}
	g := &guess{hints: h, keys: make(map[string]struct{})}
	t := overlay.New(g, time.Now().UnixMicro(), h.status)
	_ = fn(t) // it counts for nothing
	return overlay.Missing{Keys: g.keys, Ranges: t.Missing.Ranges}
}

// learn notes what a transaction has read and written.
func (h *hints) learn(t *overlay.Tx, read *known) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = t.Status()
	for key, row := range read.rows {
		h.add(key, row)
	}
	for key := range read.absent {
		h.remove(key)
	}
	for key, row := range t.Writes {
		if row == nil {
			h.remove(key)
		} else {
			h.add(key, *row)
		}
	}
}

func (h *hints) incarnation() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.status.Incarnation
}

func (h *hints) add(key string, row overlay.Row) {
	if _, there := h.young[key]; !there {
		h.bytes += len(key) + len(row.Value)
	}
	h.young[key] = row
	if h.bytes > hintBytes {
		h.old, h.young, h.bytes = h.young, make(map[string]overlay.Row), 0
	}
}

func (h *hints) remove(key string) {
	delete(h.young, key)
	delete(h.old, key)
}

// guess is hints, as rows that count as known.
type guess struct {
	*hints
	keys map[string]struct{} // that were asked for
}

// Get is of overlay.Rows.
func (g *guess) Get(key string) (*overlay.Row, bool) {
	g.keys[key] = struct{}{}
	if row, there := g.young[key]; there {
		return &row, true
	}
	if row, there := g.old[key]; there {
		return &row, true
	}
	return nil, true
}

// Next knows nothing of a range, so that it is wanted.
func (*guess) Next(at, _ string) (key, bound string) { return "", at }

package pgstore

import (
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore/replica"
)

// hintBytes bounds each of the two generations of hints.
const hintBytes = 4 << 20

// hints are rows as they were a moment ago. They serve to guess which rows a
// transaction will want, and for nothing else: what they say may be wrong.
type hints struct {
	mu         sync.Mutex
	status     replica.Status
	young, old map[string]stored
	bytes      int // of the young
}

func newHints() *hints {
	return &hints{young: make(map[string]stored), old: make(map[string]stored)}
}

// guess runs fn on the hints, and returns what it wanted.
func (h *hints) guess(fn func(replica.Tx) error) want {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.status.Incarnation == "" {
		return want{}
	}
	g := &guess{hints: h, keys: make(map[string]struct{})}
	t := newTx(g, time.Now().UnixMicro(), h.status)
	_ = fn(t) // it counts for nothing
	return want{keys: g.keys, ranges: t.want.ranges}
}

// learn notes what a transaction has read and written.
func (h *hints) learn(t *tx, read *known) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.status = t.status
	for key, row := range read.rows {
		h.add(key, row)
	}
	for key := range read.absent {
		h.remove(key)
	}
	for key, row := range t.writes {
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

func (h *hints) add(key string, row stored) {
	if _, there := h.young[key]; !there {
		h.bytes += len(key) + len(row.value)
	}
	h.young[key] = row
	if h.bytes > hintBytes {
		h.old, h.young, h.bytes = h.young, make(map[string]stored), 0
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

func (g *guess) get(key string) (*stored, bool) {
	g.keys[key] = struct{}{}
	if row, there := g.young[key]; there {
		return &row, true
	}
	if row, there := g.old[key]; there {
		return &row, true
	}
	return nil, true
}

// next knows nothing of a range, so that it is wanted.
func (*guess) next(at, _ string) (key, bound string) { return "", at }

package pgstore

import (
	"maps"

	"github.com/fencelock/fencelock/storage/overlay"
)

// guess reads from a mirror, and notes what it has read. What the mirror does not have it
// takes to be absent: a wrong guess costs a round trip and nothing else.
type guess struct {
	mirror *mirror
	now    int64
	rows   map[string]bool // by key, whether the mirror has it
	ranges []*walk
	begun  map[overlay.Range]*walk
	listed map[string]struct{} // rows that were found in a range
	// stale: a row was read that another process may have changed.
	stale bool
}

// walk is what was read of a range: from <= key < upto, where so many rows live.
type walk struct {
	from, upto, to string
	steps, living  int
}

func newGuess(m *mirror, now int64) *guess {
	return &guess{
		mirror: m, now: now, rows: make(map[string]bool),
		begun: make(map[overlay.Range]*walk), listed: make(map[string]struct{}),
	}
}

// Get is of overlay.Rows.
func (g *guess) Get(key string) (*overlay.Row, bool) {
	s, there := g.mirror.rows.Get(seen{key: key})
	if _, known := g.listed[key]; !known {
		g.rows[key] = there
	}
	if !there {
		return nil, true
	}
	g.stale = g.stale || s.life != g.mirror.life
	return &s.row, true
}

// Next is of overlay.Rows.
func (g *guess) Next(at, to string) (key, bound string) {
	upto, living := to, 0
	g.mirror.rows.AscendRange(seen{key: at}, seen{key: to}, func(s seen) bool {
		key, upto = s.key, s.key+"\x00"
		g.listed[key] = struct{}{}
		g.stale = g.stale || s.life != g.mirror.life
		if s.row.Ends > g.now {
			living = 1
		}
		return false
	})
	if w := g.walk(at, to); upto > w.upto {
		w.upto = upto
		w.steps++
		w.living += living
	}
	return key, to
}

// walk is the one that a step at this key continues.
func (g *guess) walk(at, to string) *walk {
	if n := len(g.ranges); n > 0 {
		if last := g.ranges[n-1]; last.to == to && last.from <= at && at <= last.upto {
			return last
		}
	}
	begins := overlay.Range{From: at, To: to}
	if g.begun[begins] == nil {
		g.begun[begins] = &walk{from: at, upto: at, to: to}
		g.ranges = append(g.ranges, g.begun[begins])
	}
	return g.begun[begins]
}

// wanted is what was read, to be read from the server.
func (g *guess) wanted() *overlay.Missing {
	w := &overlay.Missing{Keys: make(map[string]struct{}, len(g.rows))}
	for key := range maps.Keys(g.rows) {
		w.Keys[key] = struct{}{}
	}
	for _, r := range g.ranges {
		w.Ranges = append(w.Ranges, overlay.Range{From: r.from, To: r.to, Limit: r.steps})
	}
	return w
}

// taken are the ranges of which it was taken how many rows live there: those that were
// walked, and those of a single key that was taken to be absent.
func (g *guess) taken() []*walk {
	taken := g.ranges
	for key, there := range g.rows {
		if !there {
			taken = append(taken, &walk{from: key, upto: key + "\x00"})
		}
	}
	return taken
}

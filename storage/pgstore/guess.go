package pgstore

import (
	"maps"

	"github.com/fencelock/fencelock/storage/overlay"
)

// guess reads from a mirror, and records the reads. It assumes that rows missing from the mirror are absent: a
// wrong guess costs a round trip and nothing else.
type guess struct {
	mirror *mirror
	now    int64
	rows   map[string]bool // by key, whether the mirror has it
	ranges []*walk
	begun  map[overlay.Range]*walk
	listed map[string]struct{} // rows found in a range
	// stale means that it has read a row that another process may have changed.
	stale bool
}

// walk is a read part of a range, from <= key < upto, and the number of living rows in it.
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

// Get implements overlay.Rows.
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

// Next implements overlay.Rows.
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

// walk returns the walk that a step at this key continues.
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

// wanted returns the reads as a request to the server.
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

// taken returns the ranges for which the guess assumed a number of living rows: those that were walked, and
// those of a single key that was assumed absent.
func (g *guess) taken() []*walk {
	taken := g.ranges
	for key, there := range g.rows {
		if !there {
			taken = append(taken, &walk{from: key, upto: key + "\x00"})
		}
	}
	return taken
}

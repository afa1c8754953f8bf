package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// gutter is the width of the names before the timeline.
const gutter = 11

// row is a line of cells, each with a style.
type row struct {
	cells  []rune
	styles []style
}

func newRow() row {
	r := row{cells: make([]rune, width-gutter), styles: make([]style, width-gutter)}
	for i := range r.cells {
		r.cells[i] = ' '
	}
	return r
}

// fill puts a rune into the cells from (including) to (excluding).
func (r row) fill(from, to int, c rune, s style) {
	for i := max(from, 0); i < min(to, len(r.cells)); i++ {
		r.cells[i], r.styles[i] = c, s
	}
}

// put writes a text, which must fit.
func (r row) put(at int, text string, s style) {
	for _, c := range text {
		r.fill(at, at+1, c, s)
		at++
	}
}

// free says whether the cells from at on are there, and empty, with a cell
// of room on both sides.
func (r row) free(at, n int) bool {
	if at < 0 || at+n > len(r.cells) {
		return false
	}
	for i := max(at-1, 0); i < min(at+n+1, len(r.cells)); i++ {
		if r.cells[i] != ' ' {
			return false
		}
	}
	return true
}

// label writes the first of the texts that fits: in the span, left of it, or
// right of it.
func (r row) label(from, to int, s style, texts ...string) {
	for _, text := range texts {
		n := utf8.RuneCountInString(text)
		switch {
		case to-from >= n+4:
			r.put(from+(to-from-n)/2-1, " "+text+" ", s)
		case r.free(from-n-1, n):
			r.put(from-n-1, text, s)
		case r.free(to+1, n):
			r.put(to+1, text, s)
		default:
			continue
		}
		return
	}
}

// render writes the row after its name.
func (r row) render(p *printer, name string, s style) string {
	var b strings.Builder
	b.WriteString(p.paint(s, fmt.Sprintf(" %-*s", gutter-1, name)))
	for from := 0; from < len(r.cells); {
		to := from + 1
		for to < len(r.cells) && r.styles[to] == r.styles[from] {
			to++
		}
		b.WriteString(p.paint(r.styles[from], string(r.cells[from:to])))
		from = to
	}
	return strings.TrimRight(b.String(), " ") + "\n"
}

// scale turns instants into columns.
type scale struct{ length time.Duration }

func (s scale) column(at time.Duration) int {
	if s.length <= 0 {
		return 0
	}
	return int(at * time.Duration(width-gutter) / s.length)
}

// timeline draws who held what when: for each worker what it did and its
// leases, and below them what happened to the account.
func (p *printer) timeline(r Round) string {
	sc := stage(r)
	at := scale{sc.length}
	var b strings.Builder
	b.WriteString(axis(at).render(p, "", dim))
	for _, l := range sc.lanes {
		b.WriteString(phaseRow(at, l).render(p, "worker "+string(l.who), styleOf(l.who)))
		b.WriteString(leaseRow(at, l, r.Tokens).render(p, "its lease", dim))
	}
	b.WriteString(accountRow(at, sc).render(p, "balance", bold))
	b.WriteString(noteRow(at, sc).render(p, "", dim))
	return strings.TrimRight(b.String(), "\n") + "\n"
}

// axis marks the seconds, or tenths of them if there are few.
func axis(at scale) row {
	r := newRow()
	step := tick(at.length)
	for t := time.Duration(0); t < at.length; t += step {
		text := strconv.FormatFloat(t.Seconds(), 'f', -1, 64) + " s"
		if column := at.column(t); column+len(text) <= len(r.cells) {
			r.put(column, text, dim)
		}
	}
	return r
}

// tick is a round step that makes about six of the length.
func tick(length time.Duration) time.Duration {
	for unit := 100 * time.Millisecond; ; unit *= 10 {
		for _, step := range []time.Duration{unit, 2 * unit, 5 * unit} {
			if length/step < 7 {
				return step
			}
		}
	}
}

func phaseRow(at scale, l lane) row {
	r := newRow()
	for _, ph := range l.phases {
		from, to := at.column(ph.from), at.column(ph.to)
		switch ph.doing {
		case running:
			r.fill(from, max(to, from+1), '━', styleOf(l.who))
		case waiting:
			r.fill(from, to, '·', dim)
			r.label(from, to, dim, "waits in line", "waits")
		case stopped:
			r.fill(from, to, '░', yellow)
			r.label(from, to, yellow, "stopped (SIGSTOP)", "stopped")
		}
	}
	return r
}

func leaseRow(at scale, l lane, tokens tokenStyle) row {
	r := newRow()
	for _, le := range l.leases {
		from, to := at.column(le.from), at.column(le.to)
		r.fill(from, max(to, from+1), '─', styleOf(l.who))
		r.put(from, "├", styleOf(l.who))
		if to > from+1 {
			r.put(to-1, "┤", styleOf(l.who))
		}
	}
	for _, le := range l.leases {
		r.label(at.column(le.from), at.column(le.to), styleOf(l.who),
			"token "+tokens.full(le.token), "token "+tokens.short(le.token), tokens.short(le.token))
	}
	return r
}

// accountRow writes each balance where it was written, and each refusal.
func accountRow(at scale, sc scene) row {
	r := newRow()
	r.fill(0, len(r.cells), '─', dim)
	free := 0
	put := func(column int, text string, s style) {
		column = max(min(column, len(r.cells)-utf8.RuneCountInString(text)), free)
		r.put(column, text, s)
		free = column + utf8.RuneCountInString(text) + 1
	}
	put(0, strconv.Itoa(opening), bold)
	for _, m := range sc.writes {
		text, s := fmt.Sprintf("%s:%d", m.who, m.balance), styleOf(m.who)
		switch {
		case m.refused:
			text, s = string(m.who)+":412", red
		case m.lossy:
			s = red
		}
		put(at.column(m.at), text, s)
	}
	return r
}

// noteRow says below the balances what went wrong with a write.
func noteRow(at scale, sc scene) row {
	r := newRow()
	for _, m := range sc.writes {
		if text := m.note(); text != "" {
			column := at.column(m.at)
			r.put(column, "▲", red)
			r.label(column, column+1, red, text)
		}
	}
	return r
}

// note says what went wrong with a write, or nothing.
func (m mark) note() string {
	switch {
	case m.refused:
		return "refused: 412 stale-token"
	case m.lossy:
		return fmt.Sprintf("%s's deposit is overwritten", m.who.other())
	default:
		return ""
	}
}

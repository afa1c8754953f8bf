package demo

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// gutter is the width of the names before the timeline.
const gutter = 11

// strip is a line of the chart: cells, each with a style.
type strip struct {
	length time.Duration // of all cells
	cells  []rune
	styles []style
}

func newStrip(length time.Duration) strip {
	s := strip{length: length, cells: make([]rune, width-gutter), styles: make([]style, width-gutter)}
	s.fill(0, len(s.cells), ' ', plain)
	return s
}

// column is the cell of an instant.
func (s strip) column(at time.Duration) int {
	if s.length <= 0 {
		return 0
	}
	return int(at * time.Duration(len(s.cells)) / s.length)
}

// fill puts a rune into the cells from (including) to (excluding).
func (s strip) fill(from, to int, c rune, look style) {
	for i := max(from, 0); i < min(to, len(s.cells)); i++ {
		s.cells[i], s.styles[i] = c, look
	}
}

func (s strip) put(at int, text string, look style) {
	for _, c := range text {
		s.fill(at, at+1, c, look)
		at++
	}
}

// free says whether n cells from at on are there, and empty, with one more on both sides.
func (s strip) free(at, n int) bool {
	if at < 0 || at+n > len(s.cells) {
		return false
	}
	around := s.cells[max(at-1, 0):min(at+n+1, len(s.cells))]
	return strings.TrimSpace(string(around)) == ""
}

// label writes the first of the texts that fits: inside, left of it, or right of it.
func (s strip) label(from, to int, look style, texts ...string) {
	for _, text := range texts {
		n := utf8.RuneCountInString(text)
		switch {
		case to-from >= n+4:
			s.put(from+(to-from-n)/2-1, " "+text+" ", look)
		case s.free(from-n-1, n):
			s.put(from-n-1, text, look)
		case s.free(to+1, n):
			s.put(to+1, text, look)
		default:
			continue
		}
		return
	}
}

// render writes the strip after its name.
func (s strip) render(p *printer, name string, look style) string {
	line := p.paint(look, fmt.Sprintf(" %-*s", gutter-1, name))
	for from := 0; from < len(s.cells); {
		to := from + 1
		for to < len(s.cells) && s.styles[to] == s.styles[from] {
			to++
		}
		line += p.paint(s.styles[from], string(s.cells[from:to]))
		from = to
	}
	return strings.TrimRight(line, " ") + "\n"
}

// chart draws who held what when: for each worker what it did and its leases,
// and below them what happened to the account.
func (p *printer) chart(r Round) string {
	t := layOut(r)
	axis := newStrip(t.Length)
	for _, at := range t.Ticks() {
		if column, text := axis.column(at), tickText(at); column+len(text) <= len(axis.cells) {
			axis.put(column, text, dim)
		}
	}
	text := axis.render(p, "", dim)
	for _, l := range t.Lanes {
		text += spans(t.Length, l.Does, l.Who).render(p, "worker "+string(l.Who), styleOf(l.Who))
		text += spans(t.Length, l.Leases, l.Who).render(p, "its lease", dim)
	}
	balance, notes := accountOf(t)
	return text + balance.render(p, "balance", bold) + strings.TrimRight(notes.render(p, "", dim), "\n") + "\n"
}

// spans draws what lasts, and then its labels, which find room beside it.
func spans(length time.Duration, all []span, who Actor) strip {
	s := newStrip(length)
	look := map[string]struct {
		fill rune
		style
	}{"run": {'━', styleOf(who)}, "wait": {'·', dim}, "stopped": {'░', yellow}, "lease": {'─', styleOf(who)}}
	for _, sp := range all {
		from, to := s.column(sp.From), s.column(sp.To)
		if sp.Class == "run" || sp.Class == "lease" {
			to = max(to, from+1)
		}
		s.fill(from, to, look[sp.Class].fill, look[sp.Class].style)
		if sp.Class == "lease" {
			s.fill(to-1, to, '┤', styleOf(who))
			s.fill(from, from+1, '├', styleOf(who))
		}
	}
	for _, sp := range all {
		s.label(s.column(sp.From), s.column(sp.To), look[sp.Class].style, sp.Texts...)
	}
	return s
}

// accountOf writes each balance where it was written, each refusal, and below
// them what went wrong.
func accountOf(t timeline) (balance, notes strip) {
	balance, notes = newStrip(t.Length), newStrip(t.Length)
	balance.fill(0, len(balance.cells), '─', dim)
	free := 0
	put := func(column int, text string, look style) {
		n := utf8.RuneCountInString(text)
		column = max(min(column, len(balance.cells)-n), free)
		balance.put(column, text, look)
		free = column + n + 1
	}
	put(0, fmt.Sprint(opening), bold)
	for _, m := range t.Marks {
		column := balance.column(m.At)
		switch {
		case m.Kind == Read:
			continue
		case m.Kind == Refused:
			put(column, string(m.Who)+":412", red)
		default:
			put(column, fmt.Sprintf("%s:%d", m.Who, m.Balance), styleOfMark(m))
		}
		if note := m.note(); note != "" {
			notes.put(column, "▲", red)
			notes.label(column, column+1, red, note)
		}
	}
	return balance, notes
}

func styleOfMark(m mark) style {
	if m.Lossy {
		return red
	}
	return styleOf(m.Who)
}

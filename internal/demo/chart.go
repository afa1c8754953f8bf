package demo

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// gutter is the width of the names before the timeline.
const gutter = 11

// strip is a line of the chart, written from left to right.
type strip struct {
	*printer

	line string
	at   int // the column that is written next
}

func (p *printer) strip(name string, look style) *strip {
	return &strip{printer: p, line: p.paint(look, fmt.Sprintf(" %-*s", gutter-1, name))}
}

// to fills with a rune up to a column.
func (s *strip) to(column int, fill string, look style) {
	s.put(strings.Repeat(fill, max(0, column-s.at)), look)
}

// put writes a text, or nothing if there is no room for it.
func (s *strip) put(text string, look style) {
	if n := utf8.RuneCountInString(text); s.at+n <= width-gutter {
		s.line += s.paint(look, text)
		s.at += n
	}
}

func (s *strip) String() string { return strings.TrimRight(s.line, " ") + "\n" }

// column is the place of an instant.
func (t timeline) column(at time.Duration) int {
	return int(at * (width - gutter) / max(t.Length, 1))
}

// chart draws who held what when: for each worker what it did and its leases,
// and below them what happened to the account.
func (p *printer) chart(r Round) string {
	t := layOut(r)
	axis := p.strip("", dim)
	for _, at := range t.Ticks() {
		axis.to(t.column(at), " ", plain)
		axis.put(tickText(at), dim)
	}
	var text strings.Builder
	text.WriteString(axis.String())
	for _, l := range t.Lanes {
		text.WriteString(p.spans(t, "worker "+string(l.Who), styles[string(l.Who)], l.Who, l.Does))
		text.WriteString(p.spans(t, "its lease", dim, l.Who, l.Leases))
	}
	text.WriteString(p.account(t))
	return text.String()
}

// spans draws what lasts, each with the longest of its texts that fits into it,
// or before it.
func (p *printer) spans(t timeline, name string, look style, who Actor, all []span) string {
	own := styles[string(who)]
	form := map[string]struct {
		first, fill, last string
		style
	}{
		"run": {"━", "━", "━", own}, "wait": {"·", "·", "·", dim},
		"stopped": {"░", "░", "░", yellow}, "lease": {"├", "─", "┤", own},
	}
	s := p.strip(name, look)
	for _, sp := range all {
		f := form[sp.Class]
		from, to := max(s.at, t.column(sp.From)), t.column(sp.To)
		inside, before := "", ""
		for _, text := range slices.Backward(sp.Texts) {
			n := utf8.RuneCountInString(text)
			switch {
			case to-from >= n+4:
				inside, before = " "+text+" ", ""
			case from-s.at >= n+2:
				inside, before = "", text+" "
			}
		}
		s.to(from-utf8.RuneCountInString(before), " ", plain)
		s.put(before, f.style)
		s.put(f.first, f.style)
		s.to(from+(to-from-utf8.RuneCountInString(inside))/2, f.fill, f.style)
		s.put(inside, f.style)
		s.to(to-1, f.fill, f.style)
		if to > s.at {
			s.put(f.last, f.style)
		}
	}
	return s.String()
}

// account writes each balance where it was written, each refusal, and below
// them what went wrong.
func (p *printer) account(t timeline) string {
	s, notes := p.strip("balance", bold), p.strip("", dim)
	s.put(fmt.Sprint(opening), bold)
	for _, m := range t.Marks {
		text := fmt.Sprintf("%s:%d", m.Who, m.Balance)
		switch m.Kind {
		case Read:
			continue
		case Refused:
			text = string(m.Who) + ":412"
		}
		column := t.column(m.At)
		s.to(max(s.at+1, min(column, width-gutter-len(text))), "─", dim)
		s.put(text, styles[m.Class()])
		if note := m.note(); note != "" {
			notes.to(column-len(note)-1, " ", plain)
			notes.put(note+" ▲", red)
		}
	}
	s.to(width-gutter, "─", dim)
	return s.String() + notes.String()
}

package demo

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// timeline is a round over time.
type timeline struct {
	Length time.Duration
	Lanes  []lane
	Marks  []mark // in order of time
}

// lane has the activities of a worker, and its leases as far as the worker knows about them.
type lane struct {
	Who          Actor
	Does, Leases []span
}

// span is an activity or a state with a duration.
type span struct {
	Class    string // run, wait, stopped or lease
	From, To time.Duration
	Texts    []string // alternative labels, the longest first
}

// mark is a moment at which a worker changed the account, or tried to: Wrote or Refused.
type mark struct {
	Event

	Class string // the worker's letter, or bad
	Note  string // what went wrong
}

func layOut(r Round) timeline {
	t := timeline{Lanes: []lane{{Who: WorkerA}, {Who: WorkerB}}}
	for _, e := range r.Events {
		t.Length = max(t.Length, e.At)
	}
	t.Length += t.Length / 10 // space after the last write
	stored := told().Opening
	for _, e := range r.Events {
		for i := range t.Lanes {
			t.Lanes[i].add(e, t.Length)
		}
		m := mark{Event: e, Class: string(e.Who)}
		switch e.Kind {
		case Refused:
			m.Class, m.Note = "bad", told().Labels["refused"][0]
		case Wrote:
			if e.Balance != stored+told().Deposits[e.Who] {
				m.Class, m.Note = "bad", fill(told().Labels["overwritten"][0], "other", other[e.Who])
			}
			stored = e.Balance
		default:
			continue
		}
		t.Marks = append(t.Marks, m)
	}
	return t
}

// doing is the activity that a worker begins with an event.
var doing = map[Kind]span{
	Started: {Class: "run"}, Acquired: {Class: "run"}, Continued: {Class: "run"},
	Held: {Class: "wait"}, Stopped: {Class: "stopped"},
}

// add adds one event to the lane.
func (l *lane) add(e Event, end time.Duration) {
	if e.Who != l.Who || e.Kind == Expired { // a worker does not notice that its lease expires
		return
	}
	n := len(l.Does)
	if n > 0 {
		l.Does[n-1].To = e.At
	}
	if next, begins := doing[e.Kind]; begins && (n == 0 || l.Does[n-1].Class != next.Class) {
		next.From, next.To, next.Texts = e.At, e.At, told().Labels[next.Class]
		l.Does = append(l.Does, next)
	}
	switch n := len(l.Leases); {
	case e.Kind == Acquired:
		l.Leases = append(l.Leases, span{
			Class: "lease", From: e.At, To: min(e.At+e.Left, end),
			Texts: []string{fmt.Sprintf("token %d", e.Token), "token " + short(e.Token), short(e.Token)},
		})
	case e.Kind == Released && n > 0:
		l.Leases[n-1].To = min(l.Leases[n-1].To, e.At)
	}
}

// Ticks returns at most seven instants, at round numbers.
func (t timeline) Ticks() (ticks []time.Duration) {
	var step time.Duration
	for _, seconds := range []float64{0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50} {
		if step = time.Duration(seconds * float64(time.Second)); t.Length < 7*step {
			break
		}
	}
	for at := time.Duration(0); at < t.Length; at += step {
		ticks = append(ticks, at)
	}
	return ticks
}

// tickText is a tick's label.
func tickText(at time.Duration) string {
	return strconv.FormatFloat(at.Seconds(), 'f', -1, 64) + " s"
}

// gutter is the width of the names before the timeline.
const gutter = 11

// strip is one line of the chart, which is written from left to right.
type strip struct {
	*printer

	line string
	at   int // the next column
}

func (p *printer) strip(name string, look style) *strip {
	return &strip{printer: p, line: p.paint(look, fmt.Sprintf(" %-*s", gutter-1, name))}
}

// to fills the line with a character up to a column.
func (s *strip) to(column int, fill string, look style) {
	s.put(strings.Repeat(fill, max(0, column-s.at)), look)
}

// put writes a text if there is room for it.
func (s *strip) put(text string, look style) {
	if n := utf8.RuneCountInString(text); s.at+n <= s.columns()-gutter {
		s.line += s.paint(look, text)
		s.at += n
	}
}

func (s *strip) String() string { return strings.TrimRight(s.line, " ") + "\n" }

// column returns the column of an instant.
func (p *printer) column(t timeline, at time.Duration) int {
	return int(at * time.Duration(p.columns()-gutter) / max(t.Length, 1))
}

// chart draws the round: for each worker its activities and its leases, and below them the changes of the
// account.
func (p *printer) chart(r Round) string {
	t := layOut(r)
	axis := p.strip("", dim)
	for _, at := range t.Ticks() {
		axis.to(p.column(t, at), " ", plain)
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

// spans draws activities or states, each with its longest label that fits inside or before it.
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
		from, to := max(s.at, p.column(t, sp.From)), p.column(t, sp.To)
		inside, before := longest(sp.Texts, to-from-4), longest(sp.Texts, from-s.at-2)
		if len(before) > len(inside) {
			inside, before = "", before+" "
		} else if inside != "" {
			inside, before = " "+inside+" ", ""
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

// longest returns the first text that fits into that many columns. texts is sorted, the longest first.
func longest(texts []string, columns int) string {
	for _, text := range texts {
		if utf8.RuneCountInString(text) <= columns {
			return text
		}
	}
	return ""
}

// account draws each balance at the time of its write, each refusal, and below them the errors.
func (p *printer) account(t timeline) string {
	s, notes := p.strip("balance", bold), p.strip("", dim)
	s.put(fmt.Sprint(told().Opening), bold)
	for _, m := range t.Marks {
		text := fmt.Sprintf("%s:%d", m.Who, m.Balance)
		if m.Kind == Refused {
			text = string(m.Who) + ":412"
		}
		column := p.column(t, m.At)
		s.to(max(s.at+1, min(column, p.columns()-gutter-len(text))), "─", dim)
		s.put(text, styles[m.Class])
		if m.Note != "" {
			notes.to(column-len(m.Note)-1, " ", plain)
			notes.put(m.Note+" ▲", red)
		}
	}
	s.to(p.columns()-gutter, "─", dim)
	return s.String() + notes.String()
}

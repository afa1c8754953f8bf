package demo

import (
	"fmt"
	"io"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// width is that of the smallest terminal that people use.
const width = 80

// style is a way to show a text on a terminal: the parameters of SGR.
type style string

const (
	plain  style = ""
	bold   style = "1"
	dim    style = "2"
	red    style = "1;31"
	green  style = "1;32"
	yellow style = "33"
	colorA style = "36"
	colorB style = "35"
)

func styleOf(who Actor) style {
	if who == WorkerA {
		return colorA
	}
	return colorB
}

// printer shows a run on a terminal, or on anything else.
type printer struct {
	w     io.Writer
	color bool
	live  bool
	shown string // the progress that stands on the last line, or was written last
	err   error  // the first failure to write
}

func (p *printer) print(text string) {
	p.clear()
	p.write(text)
}

func (p *printer) write(text string) {
	if p.err == nil {
		_, p.err = io.WriteString(p.w, text)
	}
}

// clear removes the progress from the screen.
func (p *printer) clear() {
	if p.live && p.shown != "" {
		p.write("\r\x1b[K")
		p.shown = ""
	}
}

// paint shows the text in a style, if there are styles.
func (p *printer) paint(s style, text string) string {
	if !p.color || s == plain || strings.TrimSpace(text) == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// progress shows how long something takes yet: on a terminal in place, else a
// line for every second.
func (p *printer) progress(what string, left time.Duration) {
	if p.live {
		p.clear()
		p.shown = fmt.Sprintf("             %s: %.1f s", what, left.Seconds())
		p.write(p.paint(dim, p.shown))
		return
	}
	text := fmt.Sprintf("             %s: %.0f s\n", what, math.Ceil(left.Seconds()))
	if text != p.shown {
		p.shown = text
		p.write(text)
	}
}

// opening says what will be seen.
func (p *printer) opening(r Report) {
	p.print(p.paint(bold, "A lock is not enough: two workers, one account, a pause at the wrong moment") + "\n\n")
	p.print(wrapped("Both deposit into "+r.Account+", each under the lock. A is stopped between the check of its lease and its write.", "", width))
	p.print(wrapped(fmt.Sprintf("Real processes over HTTP; %s; leases of %s.", r.Backend, r.TTL), "", width))
}

func (p *printer) heading(r Round) {
	p.clear()
	p.shown = ""
	p.print("\n" + p.paint(bold, r.Title()) + p.paint(dim, " ("+r.Storage+")") + "\n\n")
}

// event writes a line: when, who, what.
func (p *printer) event(r Round, e Event) {
	const indent = "             "
	text := wrapped(e.sentence(r.Tokens), indent, width)
	text = strings.TrimSuffix(strings.TrimPrefix(text, indent), "\n")
	switch e.Kind {
	case Refused:
		text = p.paint(red, text)
	case Stopped, Continued, Ended:
		text = p.paint(yellow, text)
	case Started, Released:
		text = p.paint(dim, text)
	}
	p.print(fmt.Sprintf("  %s  %s  %s\n", p.paint(dim, fmt.Sprintf("%6.2f", e.At.Seconds())), p.paint(styleOf(e.Who), string(e.Who)), text))
}

// chart draws the round's timeline.
func (p *printer) chart(r Round) {
	p.print("\n" + p.timeline(r))
}

// verdicts ends the run.
func (p *printer) verdicts(r Report) {
	p.print("\n" + p.paint(dim, strings.Repeat("─", width)) + "\n")
	for _, round := range r.Rounds {
		v := round.Verdict()
		sign, s := "✗ ", red
		if v.OK && round.Guarded {
			sign, s = "✓ ", green
		}
		if !v.OK {
			sign = "! "
		}
		p.print(p.paint(s, sign+v.Title) + "\n" + wrapped(v.Detail, "  ", width))
	}
}

// wrapped breaks a text into lines of at most width, each begun by indent.
func wrapped(text, indent string, width int) string {
	var b strings.Builder
	column := 0
	for word := range strings.FieldsSeq(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
			b.WriteString(indent)
			column = utf8.RuneCountInString(indent)
		case column+1+n > width:
			b.WriteString("\n" + indent)
			column = utf8.RuneCountInString(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	b.WriteByte('\n')
	return b.String()
}

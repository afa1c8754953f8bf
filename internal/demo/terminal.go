package demo

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// width is the width of a usual terminal and the maximum width of a chart. On a narrower terminal the chart
// is narrower, but at least `least` columns wide.
const width, least = 80, 40

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

// styles are the styles of the workers and of errors.
var styles = map[string]style{"A": colorA, "B": colorB, "bad": red}

// printer prints a run, on a terminal or into a file.
type printer struct {
	w     io.Writer
	color bool
	live  bool
	ascii bool  // use ASCII instead of box characters
	wide  int   // the columns of a narrow terminal; 0 for the constant width
	err   error // the first failure to write
}

// columns returns how wide a chart may be.
func (p *printer) columns() int {
	if p.wide == 0 {
		return width
	}
	return max(least, min(p.wide, width))
}

// inASCII replaces each special character by one that every terminal has.
var inASCII = strings.NewReplacer("─", "-", "━", "=", "·", ".", "░", "#", "├", "|", "┤", "|", "▲", "^", "✗", "x", "✓", "+", "…", ".", "→", ">", "’", "'", "–", "-")

func (p *printer) print(text string) {
	if p.ascii {
		text = inASCII.Replace(text)
	}
	if p.err == nil {
		_, p.err = io.WriteString(p.w, text)
	}
}

// paint adds the style to the text, if colours are on.
func (p *printer) paint(s style, text string) string {
	if !p.color || s == plain || strings.TrimSpace(text) == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

// countdown shows the time until end. On a terminal it counts in a line that disappears at the end;
// elsewhere it prints the time once.
func (p *printer) countdown(ctx context.Context, what string, end time.Time) error {
	const form, often = "             %s: %.1f s", 100 * time.Millisecond
	if !p.live {
		p.print(fmt.Sprintf(form+"\n", what, max(0, time.Until(end).Seconds())))
		return pause(ctx, time.Until(end))
	}
	defer p.print("\r\x1b[K")
	for left := time.Until(end); left > 0; left = time.Until(end) {
		p.print("\r\x1b[K" + p.paint(dim, fmt.Sprintf(form, what, left.Seconds())))
		if err := pause(ctx, min(often, left)); err != nil {
			return err
		}
	}
	return nil
}

// paragraph prints a text in lines that fit, all but the first indented.
func (p *printer) paragraph(text string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line+" "+word) > p.columns():
			p.print(line + "\n")
			line = "  " + word
		default:
			line += " " + word
		}
	}
	p.print(line + "\n")
}

// opening describes the demonstration.
func (p *printer) opening(r Report) {
	p.print(p.paint(bold, told().Title) + "\n\n")
	p.print("Both deposit into " + r.Account + ", each under the lock.\nA is stopped between the check of its lease and its write.\n" +
		"Real processes over HTTP, leases of " + r.TTL.String() + ";\n" + r.Backend + ".\n")
}

func (p *printer) heading(r Round) {
	p.print("\n" + p.paint(bold, r.Title) + p.paint(dim, " ("+r.Storage+")") + "\n\n")
}

var looks = map[Kind]style{
	Refused: red, Stopped: yellow, Continued: yellow, Expired: yellow, Started: dim, Released: dim,
}

// event prints one line: when, who, what.
func (p *printer) event(e Event) {
	at := p.paint(dim, fmt.Sprintf("%6.2f", e.At.Seconds()))
	who := p.paint(styles[string(e.Who)], string(e.Who))
	p.print("  " + at + "  " + who + "  " + p.paint(looks[e.Kind], e.Sentence()) + "\n")
}

// report prints what a run has shown, without the waiting.
func (p *printer) report(r Report) {
	p.opening(r)
	for _, round := range r.Rounds {
		p.heading(round)
		for _, e := range round.Events {
			p.event(e)
		}
		p.print("\n" + p.chart(round))
	}
	p.verdicts(r)
}

// verdicts prints the end of the run.
func (p *printer) verdicts(r Report) {
	p.print("\n" + p.paint(dim, strings.Repeat("─", p.columns())) + "\n")
	for _, round := range r.Rounds {
		v := round.Verdict()
		sign, s := "✗ ", red
		switch {
		case !v.OK:
			sign = "! "
		case round.Guarded:
			sign, s = "✓ ", green
		}
		p.print(p.paint(s, sign+v.Title) + "\n" + "  " + v.Detail + "\n")
	}
}

package demo

import (
	_ "embed"
	"fmt"
	"html"
	"io"
	"strings"
	"time"
)

// The parts of the page that do not depend on the report.
var (
	//go:embed head.html
	pageHead string
	//go:embed lesson.html
	pageLesson string
)

// WriteHTML writes the report as a page that loads no other files.
func WriteHTML(w io.Writer, r Report) error {
	p := &page{}
	p.b.WriteString(pageHead)
	p.cards(r.Rounds)
	for id, round := range r.Rounds {
		drawing{page: p, id: id, round: round, timeline: layOut(round)}.section()
	}
	if r.OK() {
		p.b.WriteString(pageLesson)
	}
	p.footer(r)
	_, err := io.WriteString(w, p.b.String())
	return err
}

// page is written from top to bottom. It does not use html/template, which calls methods by their names:
// the linker would then keep every method of the program, 10 MB in all.
type page struct{ b strings.Builder }

// putf writes a line of HTML. It escapes the arguments that are strings.
func (p *page) putf(format string, args ...any) {
	for i, arg := range args {
		switch text := arg.(type) {
		case string:
			args[i] = html.EscapeString(text)
		case Actor:
			args[i] = html.EscapeString(string(text))
		case Kind:
			args[i] = html.EscapeString(string(text))
		}
	}
	fmt.Fprintf(&p.b, format+"\n", args...)
}

func (p *page) cards(rounds []Round) {
	p.putf(`<ul class="cards">`)
	for _, r := range rounds {
		class, v := "card", r.Verdict()
		if r.Final != both || !v.OK {
			class = "card bad"
		}
		p.putf(`<li class="%s"><span class="sum" aria-hidden="true">%d</span><div><strong>%s</strong><p class="detail">%s</p></div></li>`,
			class, r.Final, v.Title, v.Detail)
	}
	p.putf(`</ul>`)
}

func (p *page) footer(r Report) {
	p.putf("<footer>\n<dl>")
	for _, fact := range [][2]string{
		{"Server", r.Backend},
		{"Lock", r.Account},
		{"Leases", r.TTL.String()},
		{"When", r.Begun.Format("Mon, 02 Jan 2006 15:04:05 MST")},
		{"Version", "fencelock " + r.Version},
	} {
		p.putf(`<div><dt>%s</dt><dd>%s</dd></div>`, fact[0], fact[1])
	}
	p.putf("</dl>\n</footer>\n</main>\n</body>\n</html>")
}

// drawing is a round's section: its timeline as an SVG, and every step as a table.
type drawing struct {
	*page
	timeline

	id    int // makes the element ids unique in the page
	round Round
}

func (d drawing) section() {
	d.putf(`<section class="panel" aria-labelledby="round-%d">`, d.id)
	d.putf(`<h2 id="round-%d">%s</h2>`, d.id, d.round.Title)
	d.putf(`<p class="where">The account is %s.</p>`, d.round.Storage)
	d.putf(`<div class="scroll" role="group" tabindex="0" aria-label="Timeline, scrolls sideways">`)
	d.putf(`<svg viewBox="0 0 1040 336" role="img" aria-labelledby="title-%[1]d desc-%[1]d">`, d.id)
	d.putf(`<title id="title-%d">Timeline: what each worker did, its leases, and the balance</title>`, d.id)
	d.putf(`<desc id="desc-%d">The table below the drawing tells the same, step by step.</desc>`, d.id)
	d.putf(`<defs><pattern id="hatch-%d" width="8" height="8" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch-back" width="8" height="8"/><line class="hatch-line" x1="0" y1="0" x2="0" y2="8"/></pattern></defs>`, d.id)
	d.ticks()
	for i := range d.Lanes {
		d.lane(i)
	}
	d.money()
	for _, m := range d.Marks {
		d.mark(m)
	}
	d.putf("</svg>\n</div>\n<p class=\"swipe\">The drawing continues to the right: swipe it, or read every step below.</p>")
	d.steps()
	d.putf(`</section>`)
}

// names is the share of the page's width for the names, in percent. The round has the rest.
const names = 9.0

// x returns the position of an instant.
func (d drawing) x(at time.Duration) string { return fmt.Sprintf("%.2f%%", names+d.share(at)) }

// width returns the width of a span, with a minimum so that every span is visible.
func (d drawing) width(s span) string {
	return fmt.Sprintf("%.2f%%", d.share(max(s.To-s.From, d.Length/300)))
}

func (d drawing) share(length time.Duration) float64 {
	return (100 - names) * float64(length) / float64(max(d.Length, 1))
}

func (d drawing) ticks() {
	for _, at := range d.Ticks() {
		d.putf(`<line class="grid" x1="%[1]s" y1="28" x2="%[1]s" y2="306"/><text class="middle" x="%[1]s" y="18">%[2]s</text>`, d.x(at), tickText(at))
	}
}

// lane draws a worker's activities, and its leases below them.
func (d drawing) lane(i int) {
	lane := d.Lanes[i]
	d.putf(`<g class="%s" transform="translate(0 %d)">`, lane.Who, [...]int{56, 164}[i])
	d.putf(`<text class="name" y="16">worker %s</text><text y="42">its lease</text>`, lane.Who)
	for _, s := range lane.Does {
		d.doing(s)
	}
	for j, s := range lane.Leases {
		d.putf(`<rect class="lease" x="%s" y="29" width="%s" height="18" rx="4"/>`, d.x(s.From), d.width(s))
		switch { // only A's first lease is wide enough for its token
		case i == 0 && j == 0:
			d.putf(`<text class="token middle" x="%s" y="42">%s</text>`, d.x(s.Mid()), s.Texts[0])
		case i == 0:
			d.putf(`<text class="token end" x="%s" y="42" dx="-6">%s</text>`, d.x(s.From), s.Texts[1])
		default:
			d.putf(`<text class="token" x="%s" y="42" dx="6">%s</text>`, d.x(s.To), s.Texts[1])
		}
	}
	d.putf(`</g>`)
}

func (d drawing) doing(s span) {
	text := ""
	if len(s.Texts) > 0 {
		text = s.Texts[0]
	}
	if s.Class == "stopped" {
		d.putf(`<rect class="stopped" x="%s" width="%s" height="24" rx="4" fill="url(#hatch-%d)"/>`, d.x(s.From), d.width(s), d.id)
		d.putf(`<text class="signal" x="%s" y="-6">SIGSTOP</text><text class="signal" x="%s" y="-6">SIGCONT</text>`, d.x(s.From), d.x(s.To))
	} else {
		d.putf(`<rect class="%s" x="%s" width="%s" height="24" rx="4"/>`, s.Class, d.x(s.From), d.width(s))
	}
	d.putf(`<text class="middle in %s" x="%s" y="16">%s</text>`, s.Class, d.x(s.Mid()), text)
}

// money draws the balance over time, and the moment at which A's first lease expires.
func (d drawing) money() {
	d.putf("<g transform=\"translate(0 272)\">\n<text class=\"name\" y=\"21\">balance</text>")
	for _, s := range d.Money {
		d.putf(`<rect class="%s" x="%s" width="%s" height="34" rx="4"/><text class="amount middle" x="%s" y="22">%s</text>`,
			s.Class, d.x(s.From), d.width(s), d.x(s.Mid()), s.Texts[0])
	}
	d.putf(`</g>`)
	if leases := d.Lanes[0].Leases; len(leases) > 0 {
		d.putf(`<g class="ends"><line x1="%[1]s" y1="85" x2="%[1]s" y2="314"/><text class="middle" x="%[1]s" y="328">A’s lease expires</text></g>`, d.x(leases[0].To))
	}
}

// mark draws the line from a worker to the balance, or to a cross above it.
func (d drawing) mark(m mark) {
	x, lane := d.x(m.At), map[Actor]int{WorkerB: 108}[m.Who]
	end, head, headAt, noteAt, side, text := 272, "▼", 272, 120+lane, 6, fmt.Sprintf("writes %d", m.Balance)
	move := ""
	switch m.Kind {
	case Read:
		head, headAt, text = "▲", 112+lane, fmt.Sprintf("reads %d", m.Balance)
	case Refused:
		head, end, side, text = "✕", 263, 10, "refused: 412"
		noteAt += 28
		move = "translate(-5)"
	default:
		noteAt += 14
	}
	d.putf(`<g class="%s %s" transform="%s">`, m.Class, m.Kind, move)
	d.putf(`<line x1="%[1]s" x2="%[1]s" y1="%[2]d" y2="%[3]d"/><text class="middle head" x="%[1]s" y="%[4]d">%[5]s</text>`, x, 103+lane, end, headAt, head)
	d.putf(`<text class="note" x="%s" dx="%d" y="%d">%s</text>`, x, side, noteAt, text)
	d.putf(`</g>`)
}

func (d drawing) steps() {
	d.putf("<details open>\n<summary>Every step</summary>\n<table>")
	d.putf(`<thead><tr><th scope="col">after</th><th scope="col">worker</th><th scope="col">what it did, or what was done to it</th></tr></thead>`)
	d.putf(`<tbody>`)
	for _, e := range d.round.Events {
		d.putf(`<tr class="%[1]s %[2]s"><td>%[3]s</td><td>%[1]s</td><td>%[4]s</td></tr>`, e.Who, e.Kind, seconds(e.At), e.Sentence())
	}
	d.putf("</tbody>\n</table>\n</details>")
}

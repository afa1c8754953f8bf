// Package chart draws the two kinds of plot that the benchmark needs, as SVG without scripts or
// fonts. They are readable on light and dark pages, because each picture has its own background,
// which follows the reader's colour scheme.
package chart

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// style has both colour schemes. Readers with colour-blindness can tell the colours of the series
// apart, too.
const style = `<style>
text{font:12px system-ui,-apple-system,"Segoe UI",sans-serif;fill:var(--ink)}
.title{font-size:15px;font-weight:600}.soft{fill:var(--soft)}.end{text-anchor:end}.mid{text-anchor:middle}
.ground{fill:var(--ground)}.grid{stroke:var(--grid);stroke-width:1}.line{fill:none;stroke-width:1.75}.bold{stroke-width:3.25;font-weight:600}
svg{--ground:#fff;--ink:#1b1f24;--soft:#59636e;--grid:#d9dee3;--c0:#0550ae;--c1:#0a7ea4;--c2:#bc4c00;--c3:#9a6700;--c4:#8250df;--c5:#116329;--c6:#2f8f46;--c7:#a40e26;--c8:#6e7781}
@media (prefers-color-scheme:dark){svg{--ground:#0d1117;--ink:#e6edf3;--soft:#9198a1;--grid:#2f353d;--c0:#58a6ff;--c1:#56d4dd;--c2:#ffa657;--c3:#e3b341;--c4:#d2a8ff;--c5:#3fb950;--c6:#7ee787;--c7:#ff7b72;--c8:#b1bac4}}
</style>
`

// colors is the number of colours; further series use them again from the first.
const colors = 9

// Point is one measured value.
type Point struct{ X, Y float64 }

// Series is a line of a plot.
type Series struct {
	Name   string
	Points []Point
	Bold   bool // the series that the plot is about
}

// Lines is a plot of series over logarithmic axes.
type Lines struct {
	Title, XLabel, YLabel string
	Series                []Series
}

const (
	width, height = 760, 440
	left, right   = 64, 170
	top, bottom   = 56, 52
	plotWidth     = width - left - right
	plotHeight    = height - top - bottom
	labelHeight   = 15
)

// SVG draws the plot.
func (l Lines) SVG() []byte {
	c := newCanvas(width, height, l.Title)
	c.text(left, 46, "soft", l.YLabel)
	c.text(left+plotWidth/2, height-14, "soft mid", l.XLabel)
	xs, ys := l.ranges()
	for _, x := range l.ticksX() {
		px := xs.at(x)
		c.line(px, top, px, top+plotHeight)
		c.text(px, top+plotHeight+18, "mid", number(x))
	}
	for _, y := range decades(ys) {
		py := ys.at(y)
		c.line(left, py, left+plotWidth, py)
		c.text(left-8, py+4, "end", number(y))
	}
	for i, s := range l.Series {
		c.curve(i, s, xs, ys)
	}
	c.labels(l.Series, ys)
	return c.done()
}

// ticksX returns all x values at which something was measured.
func (l Lines) ticksX() []float64 {
	var ticks []float64
	for _, s := range l.Series {
		for _, p := range s.Points {
			ticks = append(ticks, p.X)
		}
	}
	slices.Sort(ticks)
	return slices.Compact(ticks)
}

// ranges fits both axes around the values.
func (l Lines) ranges() (xs, ys *scale) {
	xs = &scale{low: math.Inf(1), high: math.Inf(-1), from: left, to: left + plotWidth}
	ys = &scale{low: math.Inf(1), high: math.Inf(-1), from: top + plotHeight, to: top}
	for _, s := range l.Series {
		for _, p := range s.Points {
			xs.include(p.X)
			ys.include(p.Y)
		}
	}
	ys.widen()
	return xs, ys
}

// scale maps values to pixels by their logarithm.
type scale struct{ low, high, from, to float64 }

func (s *scale) include(v float64) {
	if v > 0 {
		s.low, s.high = min(s.low, v), max(s.high, v)
	}
}

// widen moves both ends outwards to round values.
func (s *scale) widen() {
	if s.low > s.high {
		return
	}
	s.low, s.high = roundBelow(s.low), roundAbove(s.high)
}

func (s *scale) at(v float64) float64 {
	if s.high <= s.low || v <= 0 {
		return s.from
	}
	share := math.Log(v/s.low) / math.Log(s.high/s.low)
	return s.from + share*(s.to-s.from)
}

// steps returns the round values of a decade.
func steps() []float64 { return []float64{1, 2, 5, 10} }

func roundBelow(v float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(v)))
	best := base
	for _, s := range steps() {
		if s*base <= v {
			best = s * base
		}
	}
	return best
}

func roundAbove(v float64) float64 {
	base := math.Pow(10, math.Floor(math.Log10(v)))
	for _, s := range steps() {
		if s*base >= v {
			return s * base
		}
	}
	return 10 * base
}

// decades returns the round values within a scale.
func decades(s *scale) []float64 {
	var ticks []float64
	if s.low > s.high {
		return nil
	}
	for base := math.Pow(10, math.Floor(math.Log10(s.low))); base <= s.high; base *= 10 {
		for _, step := range steps()[:3] {
			if v := base * step; v >= s.low*0.999 && v <= s.high*1.001 {
				ticks = append(ticks, v)
			}
		}
	}
	return ticks
}

// Row is a bar, made of parts.
type Row struct {
	Name  string
	Parts []float64
	Note  string // text after the bar; the sum if empty
	Bold  bool
}

// Bars is a plot of horizontal bars from zero.
type Bars struct {
	Title, Label string
	Parts        []string // the names of the parts, if bars have several
	Rows         []Row
}

const (
	barHeight, barGap = 20, 10
	barLeft           = 170
	barWidth          = width - barLeft - 150
	barTop            = 76
)

// SVG draws the plot.
func (b Bars) SVG() []byte {
	c := newCanvas(width, barTop+len(b.Rows)*(barHeight+barGap)+14, b.Title)
	c.text(16, 46, "soft", b.Label)
	c.legend(b.Parts)
	most := b.most()
	for i, row := range b.Rows {
		y := float64(barTop + i*(barHeight+barGap))
		c.text(barLeft-10, y+15, class("end", row.Bold), row.Name)
		x := float64(barLeft)
		for part, v := range row.Parts {
			w := barWidth * v / most
			c.bar(color(part, len(b.Parts) < 2, row.Bold), x, y, w, barHeight)
			x += w
		}
		c.text(x+8, y+15, class("", row.Bold), row.note())
	}
	return c.done()
}

func class(name string, bold bool) string {
	if bold {
		return name + " bold"
	}
	return name
}

// color returns the colour of a part. If bars have one part, bold bars have another colour than
// the rest.
func color(part int, plain, bold bool) int {
	if plain && !bold {
		return colors - 1
	}
	return part
}

func (b Bars) most() float64 {
	most := math.SmallestNonzeroFloat64
	for _, row := range b.Rows {
		most = max(most, row.sum())
	}
	return most
}

func (r Row) sum() (total float64) {
	for _, v := range r.Parts {
		total += v
	}
	return total
}

func (r Row) note() string {
	if r.Note != "" {
		return r.Note
	}
	return number(r.sum())
}

// number formats a value briefly: 1,024 · 35k · 0.42.
func number(v float64) string {
	switch {
	case v >= 10_000:
		return strconv.FormatFloat(math.Round(v/100)/10, 'f', -1, 64) + "k"
	case v >= 1000:
		return fmt.Sprintf("%d,%03d", int(v)/1000, int(v)%1000)
	case v >= 10:
		return strconv.FormatFloat(math.Round(v), 'f', -1, 64)
	}
	return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64)
}

// canvas collects the SVG text.
type canvas struct{ buf bytes.Buffer }

func newCanvas(w, h int, title string) *canvas {
	c := &canvas{}
	c.printf(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", w, h, w, h)
	c.printf("<title>%s</title>\n", escape(title))
	c.buf.WriteString(style)
	c.printf(`<rect class="ground" width="%d" height="%d" rx="6"/>`+"\n", w, h)
	c.text(16, 26, "title", title)
	return c
}

func (c *canvas) printf(format string, args ...any) { fmt.Fprintf(&c.buf, format, args...) }

func (c *canvas) text(x, y float64, class, text string) {
	c.printf(`<text x="%.1f" y="%.1f" class="%s">%s</text>`+"\n", x, y, class, escape(text))
}

func (c *canvas) line(x1, y1, x2, y2 float64) {
	c.printf(`<line class="grid" x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f"/>`+"\n", x1, y1, x2, y2)
}

func (c *canvas) bar(color int, x, y, w, h float64) {
	c.printf(`<rect style="fill:var(--c%d)" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`+"\n", color%colors, x, y, w, h)
}

func (c *canvas) curve(i int, s Series, xs, ys *scale) {
	c.printf(`<polyline class="%s" style="stroke:var(--c%d)" points="`, class("line", s.Bold), i%colors)
	for _, p := range s.Points {
		c.printf("%.1f,%.1f ", xs.at(p.X), ys.at(p.Y))
	}
	c.printf(`"/>` + "\n")
	for _, p := range s.Points {
		c.printf(`<circle style="fill:var(--c%d)" cx="%.1f" cy="%.1f" r="3"/>`+"\n", i%colors, xs.at(p.X), ys.at(p.Y))
	}
}

// labels writes each series' name at its end, and moves names apart that would overlap.
func (c *canvas) labels(series []Series, ys *scale) {
	type label struct {
		series int
		y      float64
	}
	var all []label
	for i, s := range series {
		if n := len(s.Points); n > 0 {
			all = append(all, label{i, ys.at(s.Points[n-1].Y)})
		}
	}
	slices.SortFunc(all, func(a, b label) int { return int(math.Copysign(1, a.y-b.y)) })
	places := make([]float64, len(all))
	for i, l := range all {
		places[i] = l.y
	}
	spread(places, top, top+plotHeight)
	for i, l := range all {
		s := series[l.series]
		c.printf(`<text x="%d" y="%.1f" style="fill:var(--c%d)" class="%s">%s</text>`+"\n",
			left+plotWidth+10, places[i]+4, l.series%colors, class("", s.Bold), escape(s.Name))
	}
}

// spread moves sorted positions apart, first downwards, and then up again if they leave the
// picture.
func spread(places []float64, low, high float64) {
	next := low
	for i := range places {
		places[i] = max(places[i], next)
		next = places[i] + labelHeight
	}
	next = high
	for i := len(places) - 1; i >= 0; i-- {
		places[i] = min(places[i], next)
		next = places[i] - labelHeight
	}
}

func (c *canvas) legend(parts []string) {
	if len(parts) < 2 {
		return
	}
	x := float64(barLeft)
	for i, name := range parts {
		c.bar(i, x, 56, 10, 10)
		c.text(x+15, 65, "", name)
		x += 15 + 7.5*float64(len(name)) + 16
	}
}

func (c *canvas) done() []byte {
	c.buf.WriteString("</svg>\n")
	return c.buf.Bytes()
}

func escape(text string) string {
	var b bytes.Buffer
	if err := xml.EscapeText(&b, []byte(text)); err != nil {
		return "" // cannot happen: writing to a buffer does not fail
	}
	return b.String()
}

package demo

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"time"
)

//go:embed page.html.tmpl
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"seconds": seconds, "tick": tickText,
}).Parse(pageText))

// pageRound is a round with what the page says about it.
type pageRound struct {
	Round
	timeline

	ID int
}

// Bad says whether to show the round in red.
func (r pageRound) Bad() bool { return r.Final != both || !r.Verdict().OK }

// X is an instant's place in the drawing, right of the names.
func (r pageRound) X(at time.Duration) string { return percent(100 - drawing + r.share(at)) }

// Width is at least a hair, so that everything can be seen.
func (r pageRound) Width(s span) string { return percent(r.share(max(s.To-s.From, r.Length/300))) }

// drawing is how much of the page's width is the round's, in percent.
const drawing = 91.0

func (r pageRound) share(d time.Duration) float64 {
	return drawing * float64(d) / float64(max(r.Length, 1))
}

func percent(n float64) string { return fmt.Sprintf("%.2f%%", n) }

// WriteHTML writes the report as a page that needs nothing else.
func WriteHTML(w io.Writer, r Report) error {
	data := struct {
		Report

		Rounds []pageRound
	}{Report: r}
	for i, round := range r.Rounds {
		data.Rounds = append(data.Rounds, pageRound{Round: round, timeline: layOut(round), ID: i + 1})
	}
	return page.Execute(w, data)
}

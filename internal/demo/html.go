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

var page = template.Must(template.New("page").Funcs(template.FuncMap{"seconds": seconds, "tick": tickText}).Parse(pageText))

// pageRound is a round with what the page says about it.
type pageRound struct {
	Round
	timeline
}

// Bad says whether to show the round in red.
func (r pageRound) Bad() bool { return r.Final != both || !r.Verdict().OK }

// The names take so much of the page's width, in percent, and the round the rest.
const names = 9.0

// X is an instant's place in the drawing.
func (r pageRound) X(at time.Duration) string { return fmt.Sprintf("%.2f%%", names+r.share(at)) }

// Width is at least a hair, so that everything can be seen.
func (r pageRound) Width(s span) string {
	return fmt.Sprintf("%.2f%%", r.share(max(s.To-s.From, r.Length/300)))
}

func (r pageRound) share(d time.Duration) float64 {
	return (100 - names) * float64(d) / float64(max(r.Length, 1))
}

// WriteHTML writes the report as a page that needs nothing else.
func WriteHTML(w io.Writer, r Report) error {
	data := struct {
		Report

		Rounds []pageRound
	}{Report: r}
	for _, round := range r.Rounds {
		data.Rounds = append(data.Rounds, pageRound{round, layOut(round)})
	}
	return page.Execute(w, data)
}

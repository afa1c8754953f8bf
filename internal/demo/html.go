package demo

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"
)

//go:embed page.html.tmpl
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"f": func(x float64) string { return fmt.Sprintf("%.1f", x) },
}).Parse(pageText))

// pageData is what the page shows.
type pageData struct {
	Report

	Both   int64
	Rounds []pageRound
}

// pageRound is a round with everything worked out.
type pageRound struct {
	Round

	ID      int
	Verdict Verdict
	Bad     bool // show it in red
	Should  string
	Drawing *drawing
	Steps   []pageStep
}

// pageStep is a row of the table that tells the same as the drawing.
type pageStep struct {
	At, Who, Text, Class string
}

// WriteHTML writes the report as a page that needs nothing else.
func WriteHTML(w io.Writer, r Report) error {
	data := pageData{Report: r, Both: both}
	for i, round := range r.Rounds {
		data.Rounds = append(data.Rounds, newPageRound(round, i+1))
	}
	return page.Execute(w, data)
}

func newPageRound(r Round, id int) pageRound {
	p := pageRound{Round: r, ID: id, Verdict: r.Verdict(), Drawing: draw(r, id)}
	p.Bad = r.Final != both || !p.Verdict.OK
	p.Should = "as it must be"
	if r.Final != both {
		p.Should = fmt.Sprintf("and %d were paid in", both)
	}
	for _, e := range r.Events {
		p.Steps = append(p.Steps, pageStep{
			At:    seconds(e.At),
			Who:   string(e.Who),
			Text:  e.sentence(r.Tokens),
			Class: strings.ToLower(string(e.Who)) + " " + string(e.Kind),
		})
	}
	return p
}

// When is the day and the time of the run.
func (d pageData) When() string { return d.Begun.Format(time.RFC1123) }

// Lasted is how long the run took, in words.
func (d pageData) Lasted() string { return d.Took.Round(100 * time.Millisecond).String() }

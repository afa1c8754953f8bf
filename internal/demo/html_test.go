package demo

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

// TestPageIsWellFormed parses the page as strict XML, except where HTML allows more, and checks its
// references.
func TestPageIsWellFormed(t *testing.T) {
	text := renderPage(t, report(lost(), kept()))
	ids, refs := map[string]int{}, []string{}
	elements := map[string]int{}
	eachElement(t, text, func(e xml.StartElement) {
		elements[e.Name.Local]++
		for _, a := range e.Attr {
			switch a.Name.Local {
			case "id":
				ids[a.Value]++
			case "aria-labelledby":
				refs = append(refs, strings.Fields(a.Value)...)
			case "src", "href", "style", "onclick":
				t.Errorf("<%s %s=%q>: the page is to need nothing else", e.Name.Local, a.Name.Local, a.Value)
			}
		}
	})
	for id, n := range ids {
		if n != 1 {
			t.Errorf("id %q occurs %d times", id, n)
		}
	}
	for _, ref := range refs {
		if ids[ref] == 0 {
			t.Errorf("nothing has the id %q", ref)
		}
	}
	if elements["svg"] != 2 || elements["table"] != 2 || elements["script"]+elements["link"]+elements["img"] != 0 {
		t.Errorf("elements %v", elements)
	}
	for _, wrong := range []string{"http:", "https:", "@import", "ZgotmplZ", "<no value>"} {
		if strings.Contains(text, wrong) {
			t.Errorf("the page contains %s", wrong)
		}
	}
}

// TestPageTellsTheStoryAsText looks for every step outside the drawing.
func TestPageTellsTheStoryAsText(t *testing.T) {
	r := report(lost(), kept())
	text := renderPage(t, r)
	unescape := strings.NewReplacer("&#39;", "'", "&#43;", "+")
	text = unescape.Replace(text)
	for _, round := range r.Rounds {
		for _, e := range round.Events {
			if !strings.Contains(text, "<td>"+e.Sentence()+"</td>") {
				t.Errorf("the table lacks: %s", e.Sentence())
			}
		}
		v := round.Verdict()
		if !strings.Contains(text, v.Title) || !strings.Contains(text, v.Detail) {
			t.Errorf("the page lacks the verdict %+v", v)
		}
	}
	if !strings.Contains(text, "prefers-color-scheme: dark") {
		t.Error("the page has one colour scheme only")
	}
}

// TestPageEscapes checks that a path or an address with any characters is escaped.
func TestPageEscapes(t *testing.T) {
	r := report(lost(), kept())
	r.Account = `<script>alert("1")</script>`
	if text := renderPage(t, r); strings.Contains(text, "<script") {
		t.Error("the page does not escape what it shows")
	}
}

func TestPageOfAFailedRun(t *testing.T) {
	failed := kept()
	failed.Final = 130
	text := renderPage(t, report(lost(), failed))
	if n := strings.Count(text, `class="card bad"`); n != 2 || !strings.Contains(text, "did not protect") {
		t.Errorf("%d cards are red", n)
	}
}

func renderPage(t *testing.T, r Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := WriteHTML(&out, r); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func eachElement(t *testing.T, text string, visit func(xml.StartElement)) {
	t.Helper()
	// <meta> needs no end in HTML.
	dec := xml.NewDecoder(strings.NewReader(text))
	dec.Strict, dec.AutoClose, dec.Entity = false, xml.HTMLAutoClose, xml.HTMLEntity
	for {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := tok.(xml.StartElement); ok {
			visit(e)
		}
	}
}

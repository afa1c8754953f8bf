package demo

import (
	"bytes"
	"encoding/json"
	"html"
	"os"
	"slices"
	"strings"
	"testing"
)

// TestPageNeedsNothingElse checks that the page has its drawing, its colours and its recording in itself.
func TestPageNeedsNothingElse(t *testing.T) {
	text := renderPage(t, report(lost(), kept()))
	for _, wrong := range []string{"http:", "https:", "@import", "import ", " src=", " href=", " style=", "onclick", "<link", "<img"} {
		if strings.Contains(text, wrong) {
			t.Errorf("the page contains %s", wrong)
		}
	}
	for _, want := range []string{"prefers-color-scheme: dark", "class RaceView", "const story = {"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	_, after, _ := strings.Cut(text, `id="recording">`)
	inPage, _, _ := strings.Cut(after, "</script>")
	read := decode(t, []byte(inPage))
	for i, round := range read.Rounds {
		if want := []Round{lost(), kept()}[i]; !slices.Equal(round.Events, want.Events) || round.Final != want.Final {
			t.Errorf("round %d became %+v", i+1, round)
		}
	}
}

// TestPageTellsTheStoryAsText looks for every step outside the drawing.
func TestPageTellsTheStoryAsText(t *testing.T) {
	failed := kept()
	failed.Final = 130
	for _, r := range []Report{report(lost(), kept()), report(lost(), failed)} {
		_, text, _ := strings.Cut(renderPage(t, r), "<pre")
		text, _, _ = strings.Cut(html.UnescapeString(text), "</pre>")
		for _, round := range r.Rounds {
			for _, e := range round.Events {
				if !strings.Contains(text, e.Sentence()+"\n") {
					t.Errorf("the text lacks: %s", e.Sentence())
				}
			}
			v := round.Verdict()
			if !strings.Contains(text, v.Title) || !strings.Contains(text, v.Detail) {
				t.Errorf("the text lacks the verdict %+v", v)
			}
		}
	}
}

// TestPageEscapes checks that a path or an address with any characters is escaped.
func TestPageEscapes(t *testing.T) {
	r := report(lost(), kept())
	r.Account = `</script><script>alert("1")</script>`
	if text := renderPage(t, r); strings.Count(text, "<script") != 2 || strings.Count(text, "</script") != 2 {
		t.Error("the page does not escape what it shows")
	}
}

// TestRecording checks the recording that the documentation's site shows: it is what a run reports today, with
// the steps of the story. `make recording` makes it again.
func TestRecording(t *testing.T) {
	file, err := os.ReadFile("../../site/data/race.json")
	if err != nil {
		t.Fatal(err)
	}
	r := decode(t, file)
	if again, err := json.Marshal(r.recording()); err != nil || string(again)+"\n" != string(file) {
		t.Errorf("a recording now has another form (%v):\n%s", err, again)
	}
	if !r.OK() {
		t.Fatalf("the recording did not go as described: %+v", r)
	}
	for _, round := range r.Rounds {
		at := 0
		for _, s := range round.Steps {
			if at < len(round.Events) && round.Events[at].Who == s.Who && round.Events[at].Kind == s.Kind {
				at++
			} else if !s.Maybe {
				t.Errorf("%s: the recording has no step %v in its place", round.Title, s)
			}
		}
		if at != len(round.Events) {
			t.Errorf("%s: the story does not have %+v", round.Title, round.Events[at])
		}
	}
}

// decode reads a recording.
func decode(t *testing.T, text []byte) (r Report) {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&r); err != nil || len(r.Rounds) != len(told().Rounds) {
		t.Fatalf("%v: %s", err, text)
	}
	for i := range r.Rounds {
		r.Rounds[i].Telling = told().Rounds[i]
	}
	return r
}

func renderPage(t *testing.T, r Report) string {
	t.Helper()
	var out bytes.Buffer
	if err := WriteHTML(&out, r); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

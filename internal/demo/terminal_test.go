package demo

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

var update = flag.Bool("update", false, "write the golden files again")

// golden compares a text with a golden file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is out of date (go test -update, and look at the difference); now it is\n%s", path, got)
	}
}

func TestTranscript(t *testing.T) {
	var out, failed bytes.Buffer
	(&printer{w: &out}).report(report(lost(), kept()))
	golden(t, "run.golden", out.String())
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
		if strings.ContainsRune(line, '\x1b') {
			t.Errorf("control sequence without a terminal: %q", line)
		}
	}
	round := kept()
	round.Final = 130
	(&printer{w: &failed}).report(report(lost(), round))
	story, _, _ := strings.Cut(out.String(), "✓ Round two")
	if want := story + "! " + round.Bad + "\n  What happened: the balance is 130, and 150 was expected.\n"; failed.String() != want {
		t.Errorf("a run that failed is\n%s\nwant\n%s", failed.String(), want)
	}
}

// TestColorsChangeNoText removes the colours and compares.
func TestColorsChangeNoText(t *testing.T) {
	var colored, bare bytes.Buffer
	(&printer{w: &colored, color: true}).report(report(lost(), kept()))
	(&printer{w: &bare}).report(report(lost(), kept()))
	stripped := regexp.MustCompile(`\x1b\[[0-9;]*m`).ReplaceAllString(colored.String(), "")
	if colored.Len() == bare.Len() || stripped != bare.String() {
		t.Errorf("without its colours it is\n%s", stripped)
	}
}

// TestCountdown checks that on a terminal the countdown stays on one line, which is empty at the end, and
// that elsewhere it prints one line.
func TestCountdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for live, want := range map[bool]string{
			true:  "\r\x1b[K             waiting: 0.2 s\r\x1b[K             waiting: 0.1 s\r\x1b[Kdone\n",
			false: "             waiting: 0.2 s\ndone\n",
		} {
			var out bytes.Buffer
			p := &printer{w: &out, live: live}
			if err := p.countdown(t.Context(), "waiting", time.Now().Add(200*time.Millisecond)); err != nil {
				t.Error(err)
			}
			p.print("done\n")
			if out.String() != want {
				t.Errorf("live %t: %q, want %q", live, out.String(), want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := (&printer{w: io.Discard, live: true}).countdown(ctx, "waiting", time.Now().Add(time.Hour)); !errors.Is(err, context.Canceled) {
			t.Errorf("a cancelled countdown gives %v", err)
		}
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestAFailureToWriteIsKept(t *testing.T) {
	p := &printer{w: brokenPipe{}}
	p.print("a")
	if !errors.Is(p.err, os.ErrClosed) {
		t.Errorf("%v", p.err)
	}
}

// TestTimelinesOfAnyLength draws rounds that are much longer or shorter, and rounds that broke off after
// each event.
func TestTimelinesOfAnyLength(t *testing.T) {
	p := &printer{}
	for _, factor := range []float64{.01, .1, 1, 30} {
		r := kept()
		for i := range r.Events {
			r.Events[i].At = time.Duration(float64(r.Events[i].At) * factor)
			r.Events[i].Left = time.Duration(float64(r.Events[i].Left) * factor)
		}
		checkDrawings(t, p, r)
	}
	for n := range kept().Events {
		r := kept()
		r.Events = r.Events[:n]
		checkDrawings(t, p, r)
	}
}

func checkDrawings(t *testing.T, p *printer, r Round) {
	t.Helper()
	for line := range strings.Lines(p.chart(r)) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

// On a narrow terminal no line of a chart is wrapped, and without UTF-8 every character is ASCII.
func TestNarrowAndPlainTerminals(t *testing.T) {
	for _, columns := range []int{40, 60, 79} {
		p := &printer{wide: columns}
		for _, round := range report(lost(), kept()).Rounds {
			for line := range strings.Lines(p.chart(round)) {
				if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > columns {
					t.Errorf("%d columns, and %d are there: %s", n, columns, line)
				}
			}
		}
	}
	var out bytes.Buffer
	(&printer{w: &out, ascii: true}).report(report(lost(), kept()))
	for _, r := range out.String() {
		if r >= utf8.RuneSelf {
			t.Errorf("%q is not ASCII", r)
		}
	}
}

package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// elements parses the picture and counts its elements; what is not well-formed
// XML fails.
func elements(t *testing.T, svg []byte) map[string]int {
	t.Helper()
	count := map[string]int{}
	for d := xml.NewDecoder(bytes.NewReader(svg)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			return count
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, svg)
		}
		if e, ok := token.(xml.StartElement); ok {
			count[e.Name.Local]++
		}
	}
}

func TestLines(t *testing.T) {
	svg := Lines{
		Title: `pairs & "more" <a second>`, XLabel: "callers", YLabel: "pairs/s",
		Series: []Series{
			{Name: "a", Bold: true, Points: []Point{{1, 100}, {16, 20000}, {64, 30000}}},
			{Name: "b", Points: []Point{{1, 50}, {64, 29000}}},
			{Name: "none"},
		},
	}.SVG()
	count := elements(t, svg)
	if count["polyline"] != 3 || count["circle"] != 5 || count["svg"] != 1 {
		t.Errorf("got %v", count)
	}
	if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
		t.Errorf("no number somewhere:\n%s", svg)
	}
	if !bytes.Contains(svg, []byte("prefers-color-scheme:dark")) {
		t.Error("one scheme only")
	}
	within(t, svg)
}

// within checks that nothing is drawn outside of the picture.
func within(t *testing.T, svg []byte) {
	t.Helper()
	for _, m := range regexp.MustCompile(` (?:x|y|cx|cy|x1|x2|y1|y2)="(-?[0-9.]+)"`).FindAllSubmatch(svg, -1) {
		if strings.HasPrefix(string(m[1]), "-") {
			t.Errorf("outside: %s", m[0])
		}
	}
}

func TestNothingToDraw(t *testing.T) {
	for _, svg := range [][]byte{
		Lines{}.SVG(),
		Lines{Series: []Series{{Name: "a", Points: []Point{{1, 0}}}}}.SVG(),
		Lines{Series: []Series{{Name: "a", Points: []Point{{1, 5}}}}}.SVG(),
		Bars{}.SVG(),
		Bars{Rows: []Row{{Name: "zero", Parts: []float64{0}}}}.SVG(),
	} {
		elements(t, svg)
		if bytes.Contains(svg, []byte("NaN")) || bytes.Contains(svg, []byte("Inf")) {
			t.Errorf("no number somewhere:\n%s", svg)
		}
	}
}

func TestBars(t *testing.T) {
	svg := Bars{Title: "t", Label: "l", Parts: []string{"one", "two"}, Rows: []Row{
		{Name: "a", Parts: []float64{1, 2}, Bold: true}, {Name: "b", Parts: []float64{3, 0}, Note: "note"},
	}}.SVG()
	count := elements(t, svg)
	if count["rect"] != 1+2+4 {
		t.Errorf("got %v", count)
	}
	if !bytes.Contains(svg, []byte(">3</text>")) || !bytes.Contains(svg, []byte(">note</text>")) {
		t.Errorf("a note is missing:\n%s", svg)
	}
	within(t, svg)
}

func TestScale(t *testing.T) {
	s := scale{low: 1, high: 100, from: 0, to: 200}
	for v, want := range map[float64]float64{1: 0, 10: 100, 100: 200, 0: 0, -1: 0} {
		if got := s.at(v); math.Abs(got-want) > 1e-9 {
			t.Errorf("at(%v) = %v, want %v", v, got, want)
		}
	}
	s = scale{low: 37, high: 41000}
	s.widen()
	if s.low != 20 || s.high != 50000 {
		t.Errorf("got %+v", s)
	}
	if got, want := decades(&scale{low: 20, high: 1000}), []float64{20, 50, 100, 200, 500, 1000}; !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestSpreadKeepsLabelsApart(t *testing.T) {
	places := []float64{10, 10, 11, 200, 299, 300}
	spread(places, 0, 300)
	for i := 1; i < len(places); i++ {
		if places[i]-places[i-1] < labelHeight {
			t.Errorf("too near: %v", places)
		}
	}
	if places[0] < 0 || places[len(places)-1] > 300 {
		t.Errorf("outside: %v", places)
	}
}

func TestNumber(t *testing.T) {
	for v, want := range map[float64]string{0.4242: "0.42", 5: "5", 12.4: "12", 999: "999", 1024: "1,024", 35_120: "35.1k", 20_000: "20k"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %q, want %q", v, got, want)
		}
	}
}

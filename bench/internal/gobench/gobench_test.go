package gobench

import (
	"fmt"
	"strings"
	"testing"
)

func samples(name string, ns, allocs []float64) Samples {
	s := Samples{}
	for i := range ns {
		s.Add("pkg", fmt.Sprintf("goos: linux\nBenchmark%s-2 \t 1000\t %g ns/op\t 12 pairs/s\t 64 B/op\t %g allocs/op\nPASS\n", name, ns[i], allocs[i]))
	}
	return s
}

func TestCompare(t *testing.T) {
	flat := []float64{3, 3, 3}
	for _, c := range []struct {
		name       string
		old, fresh []float64
		allocs     []float64
		want       string
	}{
		{"the same", []float64{10, 11, 12}, []float64{10, 11, 12}, flat, ""},
		{"within the noise", []float64{10, 11, 15}, []float64{14, 14, 16}, flat, ""},
		{"apart, but a little", []float64{100, 101, 102}, []float64{103, 104, 105}, flat, ""},
		{"worse", []float64{10, 11, 12}, []float64{20, 22, 24}, flat, "WORSE  pkg BenchmarkX-2: 11 -> 22 ns/op (2.00)"},
		{"better", []float64{20, 22, 24}, []float64{10, 11, 12}, flat, "better pkg BenchmarkX-2: 22 -> 11 ns/op (0.50)"},
		{"an allocation more", []float64{10, 11, 12}, []float64{10, 11, 12}, []float64{4, 4, 4}, "WORSE  pkg BenchmarkX-2: 3 -> 4 allocs/op (1.33)"},
	} {
		var lines []string
		for _, ch := range Compare(samples("X", c.old, flat), samples("X", c.fresh, c.allocs), 1.10) {
			lines = append(lines, ch.String())
		}
		if got := strings.Join(lines, "\n"); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestFromNothing(t *testing.T) {
	none, some := []float64{0, 0}, []float64{1, 1}
	changes := Compare(samples("X", some, none), samples("X", some, some), 1.10)
	if len(changes) != 1 || !changes[0].Worse() || changes[0].Unit != "allocs/op" {
		t.Errorf("got %v", changes)
	}
}

func TestOnlyWhatBothHave(t *testing.T) {
	one := []float64{1}
	if got := Compare(samples("X", one, one), samples("Y", []float64{9}, one), 1.10); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestAddSkipsOtherLines(t *testing.T) {
	s := Samples{}
	s.Add("p", "Benchmark\nBenchmarkX\nBenchmarkY 1\nBenchmarkX-2 1 broken ns/op\nok p 1s\n--- BENCH: BenchmarkX-2\n")
	if len(s) != 0 {
		t.Errorf("got %v", s)
	}
}

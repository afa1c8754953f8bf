package gobench

import (
	"fmt"
	"strings"
	"testing"
)

func samples(t *testing.T, name string, ns, allocs []float64) Samples {
	t.Helper()
	s := Samples{}
	for i := range ns {
		out := fmt.Sprintf("goos: linux\nBenchmark%s-2 \t 1000\t %g ns/op\t 12 pairs/s\t 64 B/op\t %g allocs/op\nPASS\n", name, ns[i], allocs[i])
		if err := s.Add("pkg", out); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func TestCompare(t *testing.T) {
	flat := []float64{3, 3, 3, 3, 3}
	ten := []float64{10, 11, 12, 10, 12}
	for _, c := range []struct {
		name       string
		old, fresh []float64
		allocs     []float64
		want       string
	}{
		{"the same", ten, ten, flat, ""},
		{"within the noise", []float64{10, 11, 15, 10, 11}, []float64{14, 14, 16, 13, 15}, flat, ""},
		{"apart, but a little", []float64{100, 101, 102, 100, 101}, []float64{103, 104, 105, 103, 104}, flat, ""},
		{"worse", ten, []float64{20, 22, 24, 20, 24}, flat, "WORSE  pkg X-2: 11.00n -> 22.00n sec/op (2.00, p=0.008 n=5)"},
		{"better", []float64{20, 22, 24, 20, 24}, ten, flat, "better pkg X-2: 22.00n -> 11.00n sec/op (0.50, p=0.008 n=5)"},
		{"an allocation more", ten, ten, []float64{4, 4, 4, 4, 4}, "WORSE  pkg X-2: 3.000 -> 4.000 allocs/op (1.33, p=0.008 n=5)"},
		{"too few rounds", ten[:4], []float64{20, 22, 24, 20}, flat, ""},
	} {
		var lines []string
		for _, ch := range Compare(samples(t, "X", c.old, flat), samples(t, "X", c.fresh, c.allocs), 1.10) {
			lines = append(lines, ch.String())
		}
		if got := strings.Join(lines, "\n"); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}

func TestFromNothing(t *testing.T) {
	none, some := []float64{0, 0, 0, 0, 0}, []float64{1, 1, 1, 1, 1}
	changes := Compare(samples(t, "X", some, none), samples(t, "X", some, some), 1.10)
	if len(changes) != 1 || !changes[0].Worse() || changes[0].Unit != "allocs/op" {
		t.Errorf("got %v", changes)
	}
}

func TestOnlyWhatBothHave(t *testing.T) {
	one := []float64{1, 1, 1, 1, 1}
	if got := Compare(samples(t, "X", one, one), samples(t, "Y", []float64{9, 9, 9, 9, 9}, one), 1.10); len(got) != 0 {
		t.Errorf("got %v", got)
	}
}

func TestAddSkipsOtherLines(t *testing.T) {
	s := Samples{}
	if err := s.Add("p", "Benchmark\nBenchmarkX\nBenchmarkY 1\nBenchmarkX-2 1 broken ns/op\nok p 1s\n--- BENCH: BenchmarkX-2\n"); err != nil {
		t.Fatal(err)
	}
	if len(s) != 0 {
		t.Errorf("got %v", s)
	}
}

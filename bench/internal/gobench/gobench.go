// Package gobench reads what `go test -bench` prints and compares two sides by
// the ratio of their medians.
package gobench

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"
	"golang.org/x/perf/benchunit"
)

// Key names a benchmark and its unit as benchstat does: without "Benchmark" in the name, and with
// sec/op for ns/op.
type Key struct{ Package, Name, Unit string }

// Samples are all rounds of one side.
type Samples map[Key][]float64

// Add reads a program's output.
func (s Samples) Add(pkg, out string) error {
	reader := benchfmt.NewReader(strings.NewReader(out), pkg)
	for reader.Scan() {
		result, ok := reader.Result().(*benchfmt.Result)
		if !ok {
			continue // a line that only looks like a result
		}
		for _, v := range result.Values {
			k := Key{pkg, result.Name.String(), v.Unit}
			s[k] = append(s[k], v.Value)
		}
	}
	return reader.Err()
}

// Change is a benchmark whose result differs between the two sides.
type Change struct {
	Key
	Old, New float64 // medians
	Ratio    float64 // new to old
	Test     benchmath.Comparison
}

// Worse reports whether the new side costs more.
func (c Change) Worse() bool { return c.Ratio > 1 }

// String is a line for people.
func (c Change) String() string {
	word := "better"
	if c.Worse() {
		word = "WORSE"
	}
	class := benchunit.ClassOf(c.Unit)
	return fmt.Sprintf("%-6s %s %s: %s -> %s %s (%.2f, %s)", word, c.Package, c.Name,
		benchunit.Scale(c.Old, class), benchunit.Scale(c.New, class), c.Unit, c.Ratio, c.Test)
}

// compared reports whether a unit is a cost. Benchmarks may report units of their own, which are
// not compared.
func compared(unit string) bool { return unit == "sec/op" || unit == "allocs/op" || unit == "B/op" }

// thresholds require that chance explains a change with a probability of at most 1 %. With five
// rounds a side, the two ranges must not overlap.
var thresholds = benchmath.Thresholds{CompareAlpha: 0.01}

// Compare lists the benchmarks whose median changed by threshold or more. A Mann-Whitney U test
// over the rounds must also find a difference; otherwise the change may be noise.
func Compare(old, fresh Samples, threshold float64) []Change {
	var changes []Change
	for k, values := range fresh {
		before, ok := old[k]
		if !ok || !compared(k.Unit) {
			continue
		}
		c := compare(k, before, values)
		if c.Test.P < c.Test.Alpha && (c.Ratio >= threshold || c.Ratio <= 1/threshold) {
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(a, b Change) int {
		return strings.Compare(a.Package+a.Name+a.Unit, b.Package+b.Name+b.Unit)
	})
	return changes
}

func compare(k Key, old, fresh []float64) Change {
	const confidence = 0.95 // of an interval that is not printed
	// NewSample sorts its argument.
	a, b := benchmath.NewSample(slices.Clone(old), &thresholds), benchmath.NewSample(slices.Clone(fresh), &thresholds)
	c := Change{
		Key:  k,
		Old:  benchmath.AssumeNothing.Summary(a, confidence).Center,
		New:  benchmath.AssumeNothing.Summary(b, confidence).Center,
		Test: benchmath.AssumeNothing.Compare(a, b),
	}
	c.Ratio = ratio(c.Old, c.New)
	return c
}

// ratio divides two costs, either of which may be zero. A cost that appeared where there was none
// becomes a huge ratio.
func ratio(old, fresh float64) float64 {
	const none = 1e-12
	return max(fresh, none) / max(old, none)
}

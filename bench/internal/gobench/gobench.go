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

// Key is a benchmark and what was counted of it, as benchstat names them: a
// name without "Benchmark", and sec/op for ns/op.
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

// Change is a benchmark that is not what it was.
type Change struct {
	Key
	Old, New float64 // medians
	Ratio    float64 // new to old
	Test     benchmath.Comparison
}

// Worse says in which direction.
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

// compared are the units that are costs; others are a benchmark's own.
func compared(unit string) bool { return unit == "sec/op" || unit == "allocs/op" || unit == "B/op" }

// thresholds: a change must be as unlikely by chance as one in a hundred. With
// five rounds a side that means that the two ranges lie apart.
var thresholds = benchmath.Thresholds{CompareAlpha: 0.01}

// Compare lists what changed by threshold or more. It asks more than that of the
// medians: the rounds must differ by a Mann-Whitney U test, or it may be noise.
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
	const confidence = 0.95 // of an interval that is not shown
	// NewSample sorts what it is given.
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

// ratio of two costs, of which either may be none: something where nothing was
// is as bad as can be.
func ratio(old, fresh float64) float64 {
	const none = 1e-12
	return max(fresh, none) / max(old, none)
}

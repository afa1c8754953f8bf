// Package gobench reads what `go test -bench` prints and compares two sides by
// the ratio of their medians.
package gobench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fencelock/fencelock/bench/internal/stats"
)

// Key is a benchmark and what was counted of it.
type Key struct{ Package, Name, Unit string }

// Samples are all rounds of one side.
type Samples map[Key][]float64

// Add reads a program's output.
func (s Samples) Add(pkg, out string) {
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) < 4 || !strings.HasPrefix(fields[0], "Benchmark") {
			continue
		}
		for i := 2; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				break
			}
			k := Key{pkg, fields[0], fields[i+1]}
			s[k] = append(s[k], v)
		}
	}
}

// Change is a benchmark that is not what it was.
type Change struct {
	Key
	Old, New stats.Summary
	Ratio    float64 // new to old
}

// Worse says in which direction.
func (c Change) Worse() bool { return c.Ratio > 1 }

// String is a line for people.
func (c Change) String() string {
	word := "better"
	if c.Worse() {
		word = "WORSE"
	}
	return fmt.Sprintf("%-6s %s %s: %.4g -> %.4g %s (%.2f)", word, c.Package, c.Name, c.Old.Median, c.New.Median, c.Unit, c.Ratio)
}

// compared are the units that are costs; others are a benchmark's own.
func compared(unit string) bool { return unit == "ns/op" || unit == "allocs/op" || unit == "B/op" }

// Compare lists what changed by threshold or more. It asks more than that of the
// medians: the rounds' ranges must lie apart, or it may be noise.
func Compare(old, fresh Samples, threshold float64) []Change {
	var changes []Change
	for k, values := range fresh {
		before, ok := old[k]
		if !ok || !compared(k.Unit) {
			continue
		}
		c := Change{Key: k, Old: stats.Summarize(before), New: stats.Summarize(values)}
		c.Ratio = ratio(c.Old.Median, c.New.Median)
		apart := c.New.Min > c.Old.Max || c.New.Max < c.Old.Min
		if apart && (c.Ratio >= threshold || c.Ratio <= 1/threshold) {
			changes = append(changes, c)
		}
	}
	slices.SortFunc(changes, func(a, b Change) int {
		return strings.Compare(a.Package+a.Name+a.Unit, b.Package+b.Name+b.Unit)
	})
	return changes
}

// ratio of two costs, of which either may be none: something where nothing was
// is as bad as can be.
func ratio(old, fresh float64) float64 {
	const none = 1e-9
	return max(fresh, none) / max(old, none)
}

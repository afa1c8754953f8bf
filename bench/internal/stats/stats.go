// Package stats holds the few statistics that the benchmark needs: quantiles of
// latencies and, over rounds, the median and how far the rounds lie apart.
package stats

import (
	"math"
	"slices"
	"time"
)

// Quantile returns the q-quantile (0 to 1) of sorted values by the nearest rank, so that the
// result is one of the values. Without values it returns 0.
func Quantile[T ~int64 | ~float64](sorted []T, q float64) T {
	if len(sorted) == 0 {
		var none T
		return none
	}
	rank := int(math.Ceil(q*float64(len(sorted)))) - 1
	return sorted[min(max(rank, 0), len(sorted)-1)]
}

// Latency summarizes the durations of one run.
type Latency struct {
	Count         int
	P50, P99, Max time.Duration
}

// NewLatency sorts the samples in place and summarizes them.
func NewLatency(samples []time.Duration) Latency {
	slices.Sort(samples)
	return Latency{
		Count: len(samples),
		P50:   Quantile(samples, 0.50),
		P99:   Quantile(samples, 0.99),
		Max:   Quantile(samples, 1),
	}
}

// Summary summarizes several rounds of the same measurement.
type Summary struct {
	Rounds   int
	Median   float64
	Min, Max float64
}

// Summarize summarizes one value per round, and ignores values that are NaN or infinite.
func Summarize(values []float64) Summary {
	kept := make([]float64, 0, len(values))
	for _, v := range values {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			kept = append(kept, v)
		}
	}
	if len(kept) == 0 {
		return Summary{Median: math.NaN(), Min: math.NaN(), Max: math.NaN()}
	}
	slices.Sort(kept)
	return Summary{Rounds: len(kept), Median: median(kept), Min: kept[0], Max: kept[len(kept)-1]}
}

// median returns the median of sorted values; if their number is even, the mean of the middle
// two.
func median(sorted []float64) float64 {
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Spread returns the difference between the largest and the smallest value, divided by the
// median: 0.1 means that all rounds lie within a tenth. It is 0 with fewer than two rounds.
func (s Summary) Spread() float64 {
	if s.Rounds < 2 || s.Median == 0 {
		return 0
	}
	return (s.Max - s.Min) / math.Abs(s.Median)
}

// Ratios divides the values by the base round by round, for the rounds that both have.
func Ratios(values, base []float64) []float64 {
	n := min(len(values), len(base))
	ratios := make([]float64, n)
	for i := range ratios {
		ratios[i] = values[i] / base[i]
	}
	return ratios
}

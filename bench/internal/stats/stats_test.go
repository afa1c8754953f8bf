package stats

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestQuantileIsAMeasuredValue(t *testing.T) {
	hundred := make([]float64, 100)
	for i := range hundred {
		hundred[i] = float64(i + 1)
	}
	for _, c := range []struct {
		values []float64
		q      float64
		want   float64
	}{
		{nil, 0.5, 0},
		{[]float64{7}, 0, 7},
		{[]float64{7}, 0.99, 7},
		{[]float64{1, 2}, 0.5, 1},
		{[]float64{1, 2, 3}, 0.5, 2},
		{hundred, 0, 1},
		{hundred, 0.5, 50},
		{hundred, 0.99, 99},
		{hundred, 0.991, 100},
		{hundred, 1, 100},
	} {
		if got := Quantile(c.values, c.q); got != c.want {
			t.Errorf("Quantile(%d values, %v) = %v, want %v", len(c.values), c.q, got, c.want)
		}
	}
}

func TestLatencySortsFirst(t *testing.T) {
	got := NewLatency([]time.Duration{5, 1, 3, 2, 4})
	if want := (Latency{Count: 5, P50: 3, P99: 5, Max: 5}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := NewLatency(nil); got != (Latency{}) {
		t.Errorf("no samples: got %+v", got)
	}
}

func TestSummarize(t *testing.T) {
	for _, c := range []struct {
		values []float64
		want   Summary
		spread float64
	}{
		{[]float64{2}, Summary{1, 2, 2, 2}, 0},
		{[]float64{3, 1, 2}, Summary{3, 2, 1, 3}, 1},
		{[]float64{4, 1, 2, 3}, Summary{4, 2.5, 1, 4}, 1.2},
		{[]float64{math.NaN(), 5, math.Inf(1)}, Summary{1, 5, 5, 5}, 0},
		{[]float64{0, 0}, Summary{Rounds: 2}, 0},
	} {
		got := Summarize(c.values)
		if got != c.want || math.Abs(got.Spread()-c.spread) > 1e-12 {
			t.Errorf("Summarize(%v) = %+v, spread %v; want %+v, %v", c.values, got, got.Spread(), c.want, c.spread)
		}
	}
	if got := Summarize(nil); got.Rounds != 0 || !math.IsNaN(got.Median) {
		t.Errorf("without values: %+v", got)
	}
}

// The median does not depend on the order, and half of the values lie on each side.
func TestMedianHalves(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		values := make([]float64, 1+random.IntN(20))
		for i := range values {
			values[i] = float64(random.IntN(10))
		}
		given := slices.Clone(values)
		s := Summarize(values)
		if !slices.Equal(values, given) {
			t.Fatal("Summarize changed its argument")
		}
		var below, above int
		for _, v := range values {
			if v < s.Median {
				below++
			}
			if v > s.Median {
				above++
			}
		}
		if below > len(values)/2 || above > len(values)/2 {
			t.Fatalf("median %v of %v: %d below, %d above", s.Median, values, below, above)
		}
	}
}

func TestRatiosPairRounds(t *testing.T) {
	got := Ratios([]float64{10, 9, 8}, []float64{5, 3})
	if !slices.Equal(got, []float64{2, 3}) {
		t.Errorf("got %v", got)
	}
}

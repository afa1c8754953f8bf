package report

import (
	"strconv"

	"github.com/fencelock/fencelock/bench/internal/chart"
	"github.com/fencelock/fencelock/bench/internal/result"
)

// plot is a picture that the page includes.
type plot struct {
	file, alt string
	svg       []byte
}

// plots draws the results.
func plots(set *result.Set) []plot {
	var all []plot
	if len(set.Variants(result.Uncontended)) > 0 {
		all = append(all, uncontended(set), processors(set))
	}
	for _, waiters := range []int{64, 16} {
		variant := result.HotVariant(waiters)
		if len(set.Peers(result.Hot, variant)) > 0 {
			return append(all, handoffs(set, variant))
		}
	}
	return all
}

func ours(peer string) bool { return peer == result.HTTP || peer == result.InProcess }

// uncontended is throughput over the number of workers.
func uncontended(set *result.Set) plot {
	l := chart.Lines{
		Title:  "Acquire and release, each worker its own resource",
		XLabel: "workers", YLabel: "pairs a second",
	}
	variants := set.Variants(result.Uncontended)
	for _, peer := range set.Peers(result.Uncontended, variants[0]) {
		s := chart.Series{Name: peer, Bold: ours(peer)}
		for _, v := range variants {
			workers, err := strconv.ParseFloat(v, 64)
			sum := set.Of(result.Key{Scenario: result.Uncontended, Variant: v, Peer: peer}, result.Rate)
			if err == nil && sum.Rounds > 0 && sum.Median > 0 {
				s.Points = append(s.Points, chart.Point{X: workers, Y: sum.Median})
			}
		}
		l.Series = append(l.Series, s)
	}
	return plot{"uncontended.svg", "pairs a second over the number of workers", l.SVG()}
}

// processors shows which process uses the processor time of a pair.
func processors(set *result.Set) plot {
	variants := set.Variants(result.Uncontended)
	variant := variants[len(variants)-1]
	for _, v := range variants {
		if v == "256" {
			variant = v
		}
	}
	b := chart.Bars{
		Title: "Processor time of a pair at " + variant + " workers",
		Label: "microseconds", Parts: []string{"load, with a library in it", "service", "Redis or Postgres"},
	}
	for _, peer := range set.Peers(result.Uncontended, variant) {
		k := result.Key{Scenario: result.Uncontended, Variant: variant, Peer: peer}
		b.Rows = append(b.Rows, chart.Row{Name: peer, Bold: ours(peer), Parts: []float64{
			set.Of(k, result.LoadCPU).Median, set.Of(k, result.ServiceCPU).Median, set.Of(k, result.StoreCPU).Median,
		}})
	}
	return plot{"processors.svg", "processor time of a pair, by program", b.SVG()}
}

// handoffs is how many times a second a hot resource changes hands.
func handoffs(set *result.Set, variant string) plot {
	b := chart.Bars{
		Title: "One hot resource: " + variant + ", 1 ms critical section",
		Label: "hand-offs a second (more is better), and the 99th percentile of a hand-off",
	}
	for _, peer := range set.Peers(result.Hot, variant) {
		k := result.Key{Scenario: result.Hot, Variant: variant, Peer: peer}
		rate := set.Of(k, result.Rate).Median
		b.Rows = append(b.Rows, chart.Row{
			Name: peer, Bold: ours(peer), Parts: []float64{rate},
			Note: figure(rate) + ", p99 " + figure(set.Of(k, result.HandoffP99).Median/1000) + " ms",
		})
	}
	return plot{"handoffs.svg", "hand-offs a second on one hot resource", b.SVG()}
}

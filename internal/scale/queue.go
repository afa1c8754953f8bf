package scale

import (
	"math"
	"slices"
)

// waitFor is the mean wait in a queue of c processors that are busy for a share of use
// of their time, with s seconds a visit (Sakasegawa 1977; exact for one processor and
// exponential visits). It is infinite from a share of 1 on.
func waitFor(c int, use, s float64) float64 {
	if use >= 1 {
		return math.Inf(1)
	}
	n := float64(c)
	return s * math.Pow(use, math.Sqrt(2*(n+1))-1) / (n * (1 - use))
}

// halvings of an interval are enough for a thousand-millionth of it.
const halvings = 30

// settle finds the q with wait(q) = q, for a wait that falls or stays as q grows: by
// bisection in 0 to limit. It is limit if wait is above it even there.
func settle(limit float64, wait func(q float64) float64) float64 {
	low, high := 0.0, limit
	for range halvings {
		if q := (low + high) / 2; wait(q) > q {
			low = q
		} else {
			high = q
		}
	}
	return high
}

// answer is how long one node takes: at least Least, then a part of Cycle with
// probability Busy, then an exponential Wait. All are seconds.
type answer struct{ Least, Cycle, Busy, Wait float64 }

// within is the probability of at most t.
func (a answer) within(t float64) float64 {
	x := t - a.Least
	if x < 0 {
		return 0
	}
	wait := max(a.Wait, 1e-9)
	free := 1 - math.Exp(-x/wait)
	if a.Cycle <= 0 || a.Busy <= 0 {
		return free
	}
	y := min(x, a.Cycle)
	late := (y - wait*(math.Exp(-(x-y)/wait)-math.Exp(-x/wait))) / a.Cycle
	return (1-a.Busy)*free + a.Busy*late
}

// spread is a time's least value, mean, and variance (in seconds, and their square).
type spread struct{ Least, Mean, Var float64 }

// plus is the sum of two independent times.
func (s spread) plus(t spread) spread {
	return spread{s.Least + t.Least, s.Mean + t.Mean, s.Var + t.Var}
}

// fixed is a time that does not vary, exponential one with that mean.
func fixed(t float64) spread       { return spread{t, t, 0} }
func exponential(t float64) spread { return spread{0, t, t * t} }

// p99 is the 99th percentile of a gamma distribution with this mean and variance behind
// the least value (Wilson and Hilferty 1931).
func (s spread) p99() float64 {
	mean := s.Mean - s.Least
	if mean <= 0 || s.Var <= 0 {
		return s.Mean
	}
	const z = 2.3263
	k := mean * mean / s.Var
	root := max(0, 1-1/(9*k)+z/(3*math.Sqrt(k)))
	return s.Least + mean*root*root*root
}

// steps is how finely quorumOf integrates.
const steps = 300

// quorumOf is the time until m of the answers are there: its distribution is integrated.
func quorumOf(m int, answers []answer) spread {
	least := make([]float64, len(answers))
	end := 0.0
	for i, a := range answers {
		least[i] = a.Least
		end = max(end, a.Least+a.Cycle+12*a.Wait)
	}
	slices.Sort(least)
	begin := least[m-1]
	step := (end - begin) / steps
	if step <= 0 {
		return fixed(begin)
	}
	var mean, square float64 // of the time after begin
	for i := range steps {
		x := (float64(i) + 0.5) * step
		late := 1 - reached(m, answers, begin+x)
		mean += late * step
		square += 2 * x * late * step
	}
	return spread{begin, begin + mean, max(0, square-mean*mean)}
}

// reached is the probability that m answers are there by t.
func reached(m int, answers []answer, t float64) float64 {
	have := [8]float64{0: 1} // by how many answers
	for i, a := range answers {
		p := a.within(t)
		for n := i + 1; n >= 1; n-- {
			have[n] = have[n]*(1-p) + have[n-1]*p
		}
		have[0] *= 1 - p
	}
	sum := 0.0
	for _, p := range have[m : len(answers)+1] {
		sum += p
	}
	return min(1, sum)
}

package main

import (
	"math"
	"time"

	"github.com/fencelock/fencelock/internal/scale"
)

// row is one equation: the sum of what × unknowns is is.
type row struct {
	what []float64
	is   float64
}

// fit solves the rows for unknowns that are not negative, so that the errors, as shares,
// have the least squares. An unknown that would be negative is 0.
func fit(rows []row) []float64 {
	n := len(rows[0].what)
	out := make([]bool, n)
	for {
		x := leastSquares(rows, out)
		worst := -1
		for i, v := range x {
			if !out[i] && v < 0 && (worst < 0 || v < x[worst]) {
				worst = i
			}
		}
		if worst < 0 {
			return x
		}
		out[worst] = true
	}
}

// leastSquares solves the normal equations, without the unknowns that are out.
func leastSquares(rows []row, out []bool) []float64 {
	n := len(out)
	a := make([][]float64, n)
	for i := range a {
		a[i] = make([]float64, n+1)
		if out[i] {
			a[i][i] = 1
			continue
		}
		for _, r := range rows {
			weight := 1 / (r.is * r.is)
			for j := range n {
				if !out[j] {
					a[i][j] += weight * r.what[i] * r.what[j]
				}
			}
			a[i][n] += weight * r.what[i] * r.is
		}
	}
	return eliminate(a)
}

// eliminate is Gauss's elimination with pivots.
func eliminate(a [][]float64) []float64 {
	n := len(a)
	for i := range n {
		pivot := i
		for j := i; j < n; j++ {
			if math.Abs(a[j][i]) > math.Abs(a[pivot][i]) {
				pivot = j
			}
		}
		a[i], a[pivot] = a[pivot], a[i]
		for j := range n {
			if j == i || a[i][i] == 0 {
				continue
			}
			f := a[j][i] / a[i][i]
			for k := i; k <= n; k++ {
				a[j][k] -= f * a[i][k]
			}
		}
	}
	x := make([]float64, n)
	for i := range x {
		if a[i][i] != 0 {
			x[i] = a[i][n] / a[i][i]
		}
	}
	return x
}

// costsOf fits the costs of pairs to rounds with sets of different sizes and batches of
// different sizes.
func costsOf(rounds []round, c *scale.Costs) {
	var client, server, node []row
	for _, r := range rounds {
		n := float64(r.nodes)
		client = append(client, row{[]float64{r.calls, 1}, r.load})
		server = append(server, row{[]float64{1, n * r.calls}, r.service})
		node = append(node, row{[]float64{r.calls, 2}, r.store / n})
	}
	x := fit(client)
	c.ClientPair = scale.Work{Fixed: seconds(x[0]), Op: seconds(x[1])}
	x = fit(server)
	c.ServerPair, c.ServerBatch = seconds(x[0]), seconds(x[1])
	x = fit(node)
	c.NodeBatch = scale.Work{Fixed: seconds(x[0]), Op: seconds(x[1])}
	c.LocalTrip = localTrip(rounds, *c)
}

// localTrip is what is left of the time of one caller's requests to one node once the
// work on their way is taken off.
func localTrip(rounds []round, c scale.Costs) (trip time.Duration) {
	for _, r := range rounds {
		if r.nodes == 1 && r.workers == 1 {
			work := c.ClientPair.Of(0.5) + c.ServerPair.Seconds()/2 + c.ServerBatch.Seconds() + c.NodeBatch.Of(1)
			trip = seconds(max(0, 1/r.rate/2-work))
		}
	}
	return trip
}

package main

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/scale"
)

// Rounds that follow from costs give these costs back.
func TestCostsOf(t *testing.T) {
	const us = time.Microsecond
	want := scale.Costs{
		ClientPair: scale.Work{Fixed: 20 * us, Op: 24 * us}, ServerPair: 80 * us, ServerBatch: 43 * us,
		NodeBatch: scale.Work{Fixed: 45 * us, Op: 5 * us},
	}
	var rounds []round
	for _, nodes := range []int{1, 3} {
		for i, calls := range []float64{2, 1, 0.5, 0.1, 0.02} {
			r := round{nodes: nodes, workers: 2 + i, calls: calls, rate: 2000 * float64(1+i)}
			r.load = want.ClientPair.Fixed.Seconds()*calls + want.ClientPair.Op.Seconds()
			r.store = float64(nodes) * (want.NodeBatch.Fixed.Seconds()*calls + 2*want.NodeBatch.Op.Seconds())
			r.service = want.ServerPair.Seconds() + float64(nodes)*calls*want.ServerBatch.Seconds()
			rounds = append(rounds, r)
		}
	}
	var got scale.Costs
	costsOf(rounds, &got)
	for what, pair := range map[string][2]time.Duration{
		"client's wake": {got.ClientPair.Fixed, want.ClientPair.Fixed}, "client's pair": {got.ClientPair.Op, want.ClientPair.Op},
		"server's pair": {got.ServerPair, want.ServerPair}, "server's batch": {got.ServerBatch, want.ServerBatch},
		"node's batch": {got.NodeBatch.Fixed, want.NodeBatch.Fixed}, "node's operation": {got.NodeBatch.Op, want.NodeBatch.Op},
	} {
		if d := pair[0] - pair[1]; d < -us/10 || d > us/10 {
			t.Errorf("%s: %s, want %s", what, pair[0], pair[1])
		}
	}
}

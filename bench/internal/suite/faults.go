package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/bench/internal/result"
)

const (
	// faultWarm is the time after a fault that is not measured.
	faultWarm = 1200 * time.Millisecond
	// victim is the node that is frozen and then killed. Libraries that use one node use another
	// one.
	victim = nodes - 1
)

// faults measures with healthy nodes and with one node frozen, in alternating rounds, and then
// with that node dead.
func (s *Suite) faults() []step {
	peers := []string{result.HTTP, result.InProcess, result.Baseline}
	var steps []step
	for round := range s.size.faultRounds {
		steps = append(steps, s.faultRound("healthy", round, peers, s.size.warm)...)
		steps = append(steps, step{label: "freeze a node", do: s.freeze})
		steps = append(steps, s.faultRound("frozen", round, peers, faultWarm)...)
		steps = append(steps, step{label: "thaw it", cost: time.Second, do: s.thaw})
	}
	steps = append(steps, step{label: "kill a node", do: s.kill})
	for round := range s.size.faultRounds {
		steps = append(steps, s.faultRound("dead", round, peers, faultWarm)...)
	}
	return steps
}

func (s *Suite) faultRound(variant string, round int, peers []string, warm time.Duration) []step {
	var steps []step
	for _, p := range peers {
		job := s.job(result.Faults+"/"+variant, usual, round)
		job.Warm, job.Measure = warm, s.size.faultMeasure
		steps = append(steps, s.measure(s.onMain, result.Key{Scenario: result.Faults, Variant: variant, Peer: p}, round, job))
	}
	return steps
}

func (s *Suite) freeze(context.Context) error {
	s.main.redis.Nodes[victim].Freeze()
	return nil
}

func (s *Suite) thaw(ctx context.Context) error {
	s.main.redis.Nodes[victim].Thaw()
	if err := s.main.awaitVoting(ctx, nodes); err != nil {
		return fmt.Errorf("after the thaw: %w", err)
	}
	return nil
}

func (s *Suite) kill(context.Context) error {
	s.main.redis.Nodes[victim].Kill()
	return nil
}

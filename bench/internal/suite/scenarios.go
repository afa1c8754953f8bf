package suite

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/bench/internal/load"
	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/result"
)

const (
	// ttl is the TTL that every contender requests.
	ttl = 10 * time.Second
	// hotWait is longer than any run, so waits end only when the run cuts them off.
	hotWait = time.Minute
	// usual is the number of workers of scenarios that do not vary it.
	usual = 64
)

// onMain returns the bench on which most scenarios run. It is a function because the servers
// start after the plan is made.
func (s *Suite) onMain() *bench { return s.main }

func (s *Suite) onFsync() *bench { return s.fsync }

// own gives every worker a resource of its own.
func own(scenario string, workers int) func(worker, n int) peer.Claim {
	claims := make([]peer.Claim, workers)
	for i := range claims {
		claims[i] = peer.Claim{Resource: scenario + "/" + strconv.Itoa(i), TTL: ttl}
	}
	return func(worker, _ int) peer.Claim { return claims[worker] }
}

// job is a closed loop in which each worker has its own resource. Each round uses new resource
// names, so that leftovers of an earlier round do no harm.
func (s *Suite) job(scenario string, workers, round int) load.Job {
	return load.Job{
		Workers: workers, Warm: s.size.warm, Measure: s.size.measure,
		Claim: own(fmt.Sprintf("%s/%d/%d", scenario, workers, round), workers),
	}
}

// interleave orders the rounds A B C A B C, so that a disturbance of the machine affects all
// contenders.
func interleave(rounds int, peers []string, one func(peer string, round int) step) []step {
	var steps []step
	for round := range rounds {
		for _, p := range peers {
			steps = append(steps, one(p, round))
		}
	}
	return steps
}

// uncontended measures workers that each acquire and release their own resource.
func (s *Suite) uncontended() []step {
	peers := []string{
		result.HTTP, result.Beside, result.InProcess, result.Baseline, result.Redislock,
		result.EtcdGRPC, result.EtcdJSON, result.PgRow, result.HTTPPostgres, result.HTTPEtcd,
		result.ZooKeeper, result.HTTPZooKeeper, result.HTTPFile, result.BareFile, result.Bare, result.BareHTTP,
	}
	var steps []step
	for _, workers := range s.size.levels {
		steps = append(steps, interleave(s.size.rounds, peers, func(p string, round int) step {
			k := result.Key{Scenario: result.Uncontended, Variant: strconv.Itoa(workers), Peer: p}
			return s.measure(s.onMain, k, round, s.job(result.Uncontended, workers, round))
		})...)
	}
	return steps
}

// fsynced does the same on Redis nodes that sync every write, together with the contenders that
// always sync.
func (s *Suite) fsynced() []step {
	if len(s.size.fsyncLevels) == 0 {
		return nil
	}
	steps := []step{{label: "start Redis with appendfsync always", cost: 2 * time.Second, do: s.startFsync}}
	onRedis := []string{result.HTTP, result.InProcess, result.Baseline, result.Redislock, result.Bare}
	always := []string{result.EtcdGRPC, result.EtcdJSON, result.PgRow, result.HTTPPostgres, result.HTTPEtcd}
	for _, workers := range s.size.fsyncLevels {
		steps = append(steps, interleave(s.size.minorRounds, slices.Concat(onRedis, always), func(p string, round int) step {
			on := s.onFsync
			if slices.Contains(always, p) {
				on = s.onMain
			}
			k := result.Key{Scenario: result.Fsync, Variant: strconv.Itoa(workers), Peer: p}
			return s.whenStarted(s.measure(on, k, round, s.job(result.Fsync, workers, round)))
		})...)
	}
	return steps
}

// whenStarted skips a step if the synced servers did not start.
func (s *Suite) whenStarted(st step) step {
	do := st.do
	st.do = func(ctx context.Context) error {
		if s.fsync == nil || s.fsync.server == nil {
			return nil
		}
		return do(ctx)
	}
	return st
}

// hot measures workers that all wait for one resource.
func (s *Suite) hot() []step {
	few := []string{result.HTTP, result.InProcess, result.Baseline, result.EtcdGRPC}
	var steps []step
	for i, waiters := range s.size.waiters {
		peers := few
		if i == 0 && !s.opts.Quick {
			peers = slices.Concat(few, []string{result.HTTPPostgres, result.HTTPEtcd, result.HTTPZooKeeper, result.HTTPFile})
		}
		steps = append(steps, s.hotSteps(waiters, peers)...)
	}
	return steps
}

// hotHold is the duration of the critical section.
const hotHold = time.Millisecond

func (s *Suite) hotSteps(waiters int, peers []string) []step {
	variant := result.HotVariant(waiters)
	return interleave(s.size.hotRounds, peers, func(p string, round int) step {
		claim := peer.Claim{Resource: fmt.Sprintf("hot/%d/%d", waiters, round), TTL: ttl, Wait: hotWait}
		job := load.Job{
			Workers: waiters, Warm: s.size.hotWarm + time.Duration(waiters)*time.Millisecond, Measure: s.size.hotMeasure,
			Claim: func(int, int) peer.Claim { return claim }, Hot: true, Hold: hotHold,
		}
		return s.measure(s.onMain, result.Key{Scenario: result.Hot, Variant: variant, Peer: p}, round, job)
	})
}

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
	// ttl is what every contender asks for.
	ttl = 10 * time.Second
	// hotWait is longer than any run: who waits is sent away when it ends.
	hotWait = time.Minute
	// usual is how many workers a scenario has that is not about their number.
	usual = 64
	// extends is how often a lease is extended in the scenario of that name.
	extends = 20
	// contended is the share of turns, one in so many, that want the same resource.
	contended = 100
)

// onMain is where most of it happens; the servers start after the plan is made.
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

// job is a closed loop of own resources. A round has names of its own, so that
// what an earlier one left behind is in nobody's way.
func (s *Suite) job(scenario string, workers, round int) load.Job {
	return load.Job{
		Workers: workers, Warm: s.size.warm, Measure: s.size.measure,
		Claim: own(fmt.Sprintf("%s/%d/%d", scenario, workers, round), workers),
	}
}

// interleave makes the rounds A B C A B C, so that what happens on the machine
// meanwhile happens to all.
func interleave(rounds int, peers []string, one func(peer string, round int) step) []step {
	var steps []step
	for round := range rounds {
		for _, p := range peers {
			steps = append(steps, one(p, round))
		}
	}
	return steps
}

// uncontended: every worker takes and gives a resource of its own.
func (s *Suite) uncontended() []step {
	peers := []string{
		result.HTTP, result.HTTPKeyed, result.GoClient, result.GoClientSingle, result.InProcess, result.Baseline, result.Redislock, result.Rueidislock,
		result.EtcdGRPC, result.EtcdJSON, result.PgAdvisory, result.PgRow, result.HTTPPostgres, result.HTTPEtcd,
		result.ZooKeeper, result.HTTPZooKeeper, result.Bare, result.BareHTTP,
	}
	if s.opts.Quick { // those that no figure speaks about
		peers = slices.DeleteFunc(peers, func(p string) bool { return p == result.Rueidislock || p == result.PgAdvisory })
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

// fsynced is the same with Redis nodes that sync every write, beside the
// contenders that always do.
func (s *Suite) fsynced() []step {
	steps := []step{{label: "start Redis with appendfsync always", cost: 2 * time.Second, do: s.startFsync}}
	onRedis := []string{result.HTTP, result.InProcess, result.Baseline, result.Redislock, result.Bare}
	always := []string{result.EtcdGRPC, result.EtcdJSON, result.PgRow, result.HTTPPostgres, result.HTTPEtcd}
	for _, workers := range s.size.fsyncLevels {
		steps = append(steps, interleave(s.size.rounds, slices.Concat(onRedis, always), func(p string, round int) step {
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

// whenStarted leaves a step out if the synced servers did not start.
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

// extend: a lease is taken, extended twenty times and given back.
func (s *Suite) extend() []step {
	peers := []string{result.HTTP, result.InProcess, result.Baseline, result.Redislock, result.EtcdGRPC, result.PgRow, result.HTTPPostgres, result.HTTPEtcd}
	return interleave(s.size.minorRounds, peers, func(p string, round int) step {
		job := s.job(result.Extend, usual, round)
		job.Uses = extends
		k := result.Key{Scenario: result.Extend, Variant: fmt.Sprintf("%d, 1:%d", usual, extends), Peer: p}
		return s.measure(s.onMain, k, round, job)
	})
}

// contention: one turn in a hundred wants what all want, and does not wait.
func (s *Suite) contention() []step {
	const workers = 256
	peers := []string{result.HTTP, result.InProcess, result.Baseline, result.Redislock, result.EtcdGRPC, result.PgRow, result.HTTPPostgres, result.HTTPEtcd}
	return interleave(s.size.minorRounds, peers, func(p string, round int) step {
		job := s.job(result.Contention, workers, round)
		alone := job.Claim
		job.Claim = func(worker, n int) peer.Claim {
			if (n+worker)%contended == 0 {
				return peer.Claim{Resource: fmt.Sprintf("%s/all/%d", result.Contention, round), TTL: ttl}
			}
			return alone(worker, n)
		}
		k := result.Key{Scenario: result.Contention, Variant: fmt.Sprintf("%d, 1 %%", workers), Peer: p}
		return s.measure(s.onMain, k, round, job)
	})
}

// guarded: lock, claim the record and read it, write it, unlock.
func (s *Suite) guarded() []step {
	const workers = 16
	peers := []string{result.HTTPGuarded, result.Unguarded}
	return interleave(s.size.minorRounds, peers, func(p string, round int) step {
		job := s.job(result.Guarded, workers, round)
		job.Uses, job.Blocking = 1, true
		k := result.Key{Scenario: result.Guarded, Variant: strconv.Itoa(workers), Peer: p}
		return s.measure(s.onMain, k, round, job)
	})
}

// hot: all wait for one resource.
func (s *Suite) hot() []step {
	few := []string{result.HTTP, result.InProcess, result.Baseline, result.EtcdGRPC}
	many := few
	if s.size.hotMany {
		many = slices.Concat(few, []string{result.EtcdJSON, result.PgAdvisory})
	}
	var steps []step
	for i, waiters := range s.size.waiters {
		peers := many
		if i == 0 && s.size.hotMany {
			peers = slices.Concat(many, []string{result.HTTPPostgres, result.HTTPEtcd, result.HTTPZooKeeper})
		}
		steps = append(steps, s.hotSteps(waiters, time.Millisecond, peers)...)
	}
	for _, waiters := range s.size.waiters {
		steps = append(steps, s.hotSteps(waiters, 0, few)...)
	}
	for _, waiters := range s.size.crowd {
		steps = append(steps, s.hotSteps(waiters, time.Millisecond, few)...)
		steps = append(steps, s.hotSteps(waiters, 0, few)...)
	}
	return steps
}

func (s *Suite) hotSteps(waiters int, hold time.Duration, peers []string) []step {
	variant := result.HotVariant(waiters, holdName(hold))
	return interleave(s.size.hotRounds, peers, func(p string, round int) step {
		claim := peer.Claim{Resource: fmt.Sprintf("hot/%d/%s/%d", waiters, hold, round), TTL: ttl, Wait: hotWait}
		job := load.Job{
			Workers: waiters, Warm: s.size.hotWarm + time.Duration(waiters)*time.Millisecond, Measure: s.size.hotMeasure,
			Claim: func(int, int) peer.Claim { return claim }, Hot: true, Hold: hold,
		}
		return s.measure(s.onMain, result.Key{Scenario: result.Hot, Variant: variant, Peer: p}, round, job)
	})
}

func holdName(hold time.Duration) string {
	if hold == 0 {
		return "no hold"
	}
	return fmt.Sprintf("%d ms", hold.Milliseconds())
}

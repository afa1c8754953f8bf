package suite

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/result"
	"github.com/fencelock/fencelock/bench/internal/stand"
)

// network measures one worker. A round trip separates the worker from the servers, and the
// servers from each other; only the server of result.HTTPNear runs next to its nodes.
func (s *Suite) network() (steps []step) {
	for i, trip := range s.size.trips {
		var b *bench
		on := func() *bench { return b }
		start := func(ctx context.Context) error {
			b = s.open("network of " + trip.String())
			return s.startNetwork(ctx, b, trip, dbNetwork+i*networkDBs)
		}
		variant := result.NetworkVariant(trip)
		peers := []string{result.HTTP, result.HTTPNear, result.GoClient, result.InProcess, result.Baseline}
		steps = append(steps, step{label: "start a network of " + trip.String(), cost: 6 * time.Second, do: start})
		steps = append(steps, interleave(s.size.rounds, peers, func(p string, round int) step {
			k := result.Key{Scenario: result.Network, Variant: variant, Peer: p}
			return s.measure(on, k, round, s.job(result.Network, 1, round))
		})...)
		steps = append(steps, step{label: "end it", do: func(context.Context) error { s.close(b); return nil }})
	}
	return steps
}

// networkDBs is the number of Redis databases that one network uses.
const networkDBs = 3

// startNetwork starts the network and the contenders that use it. Their databases begin at the
// given number.
func (s *Suite) startNetwork(ctx context.Context, b *bench, trip time.Duration, database int) (err error) {
	to, err := stand.StartNetwork(ctx, b.scope, trip, append(s.main.redis.Addrs(), s.main.server.Addr))
	if err != nil {
		return err
	}
	s.set.Set(result.NetworkVariant(trip)+" of network, a PING in µs", float64(to.Trip.Nanoseconds())/float64(time.Microsecond))
	if b.server, err = stand.StartFencelock(ctx, b.scope, s.program, to.URLs(nodes, database)); err != nil {
		return err
	}
	front, err := stand.StartNetwork(ctx, b.scope, trip, []string{s.main.redis.Addrs()[0], b.server.Addr})
	if err != nil {
		return err
	}
	b.aside = servers{to, front}
	service, store := servers{b.server}, servers{s.main.redis}
	b.add(peer.NewHTTP(front.Addrs[1]), service, store)
	b.add(peer.NewServers(result.HTTPNear, to.Addrs[nodes]), servers{s.main.server}, store)
	client, err := peer.NewClient(result.GoClient, front.Addrs[1])
	if err != nil {
		return err
	}
	b.add(client, service, store)
	redsync, err := peer.NewRedsync(to.URLs(nodes, database+1))
	if err != nil {
		return err
	}
	b.add(redsync, nil, store)
	if b.inProcess, err = peer.NewInProcess(to.URLs(nodes, database+2)); err != nil { //nolint:contextcheck // it ends with Close
		return err
	}
	b.add(b.inProcess, nil, store)
	return b.awaitVoting(ctx, nodes)
}

// starved measures while other work keeps all processors busy.
func (s *Suite) starved() (steps []step) {
	var b *bench
	start := func(context.Context) (err error) {
		b = s.open("busy loops")
		busy, err := stand.StartBusy(b.scope)
		b.aside = servers{&busy}
		return err
	}
	steps = append(steps, step{label: "start busy loops", do: start})
	for round := range s.size.minorRounds {
		for _, workers := range s.size.starved {
			peers := []string{result.HTTP, result.GoClient, result.Baseline}
			if workers < usual {
				peers = []string{result.Baseline} // the ratio needs its best result over all numbers of workers
			}
			for _, p := range peers {
				job := s.job(result.Starved, workers, round)
				job.Warm, job.Measure = s.size.starvedWarm, s.size.starvedMeasure
				k := result.Key{Scenario: result.Starved, Variant: strconv.Itoa(workers), Peer: p}
				steps = append(steps, s.measure(s.onMain, k, round, job))
			}
		}
	}
	return append(steps, step{label: "stop them", do: func(context.Context) error { s.close(b); return nil }})
}

// connections measures a growing number of connections. A round runs all numbers one after the
// other, so that they can be compared.
func (s *Suite) connections() (steps []step) {
	peers := []string{result.HTTP, result.Baseline}
	for round := range s.size.minorRounds {
		for _, workers := range s.size.connections {
			for _, p := range peers {
				job := s.job(result.Connections, workers, round)
				job.Warm += time.Duration(workers) * 200 * time.Microsecond // for the first turn of every worker
				k := result.Key{Scenario: result.Connections, Variant: strconv.Itoa(workers), Peer: p}
				steps = append(steps, s.measure(s.onMain, k, round, job))
			}
		}
	}
	return steps
}

// clients measures fencelock's clients, each with all its workers in one process.
func (s *Suite) clients() (steps []step) {
	peers := []string{
		result.GoClient, result.GoClientSingle, result.Baseline, result.PythonTasks, result.PythonThreads, result.TypeScript,
	}
	few := peers[:3] // the contenders that the checks compare
	for _, workers := range s.size.clients {
		for round := range s.size.rounds {
			these := peers
			if round >= s.size.minorRounds {
				these = few
			}
			steps = append(steps, interleave(1, these, func(p string, _ int) step {
				job := s.job(result.Clients, workers, round)
				if !slices.Contains(few, p) {
					job.Warm += s.size.warm // interpreters need time to start
				}
				k := result.Key{Scenario: result.Clients, Variant: strconv.Itoa(workers), Peer: p}
				return s.measure(s.onMain, k, round, job)
			})...)
		}
	}
	return steps
}

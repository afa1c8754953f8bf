package suite

import (
	"context"
	"fmt"
	"time"

	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/result"
	"github.com/fencelock/fencelock/bench/internal/stand"
	"github.com/fencelock/fencelock/internal/testenv"
)

// topology is a number of servers and of independent node sets. On one machine they share the
// processors, so the results show what a pair costs with more of them, not how much faster they
// are.
type topology struct{ servers, sets int }

func (t topology) String() string { return fmt.Sprintf("%d × %d", t.servers, t.sets) }

// scaleIdle is how long idle servers are measured.
const scaleIdle = 4 * time.Second

// grid is the set of servers of this section.
type grid struct {
	scope *stand.Scope
	redis []*stand.Redis
	fleet *fleet // the servers of the present topology
}

// CPU is the processor time of all its running servers.
func (g *grid) CPU() (total time.Duration) {
	for _, redis := range g.redis {
		total += redis.CPU()
	}
	if g.fleet != nil {
		total += g.fleet.service.CPU()
	}
	return total
}

// end stops the servers of the present topology.
func (g *grid) end() {
	g.fleet.scope.Close()
	g.fleet = nil
}

// scale measures more servers on one node set, and more node sets.
func (s *Suite) scale() []step {
	if len(s.size.topologies) == 0 {
		return nil
	}
	steps := []step{{label: "start two node sets and their servers", cost: 15 * time.Second, do: s.startScale}}
	for _, t := range s.size.topologies {
		steps = append(steps, step{label: "idle, " + t.String(), cost: scaleIdle, do: func(ctx context.Context) error { return s.scaleIdle(ctx, t) }})
	}
	for round := range s.size.minorRounds {
		for _, t := range s.size.topologies {
			k := result.Key{Scenario: result.Scale, Variant: t.String(), Peer: result.HTTP}
			st := s.measure(s.onMain, k, round, s.job(result.Scale, scaleWorkers, round))
			st.do = func(ctx context.Context) error { return s.scaleRound(ctx, t, k, round) }
			steps = append(steps, st)
		}
	}
	return append(steps, step{label: "stop them", do: func(context.Context) error { s.grid.scope.Close(); return nil }})
}

// scaleWorkers is a number that keeps several servers busy.
const scaleWorkers = 256

func (s *Suite) startScale(ctx context.Context) error {
	s.grid = &grid{scope: stand.NewScope("node sets", s.opts.Log)}
	for range 2 {
		redis, err := stand.StartRedis(ctx, s.grid.scope, nodes, testenv.PersistNone)
		if err != nil {
			return err
		}
		s.grid.redis = append(s.grid.redis, redis)
	}
	return nil
}

// fleet is the servers of one topology while it is measured.
type fleet struct {
	scope          *stand.Scope
	addrs          []string
	service, store servers
}

// fleet starts the servers of a topology, which use databases of their own.
func (s *Suite) fleet(ctx context.Context, t topology) (*fleet, error) {
	f := &fleet{scope: stand.NewScope("servers "+t.String(), s.opts.Log)}
	database := 2*t.servers + t.sets // distinct for each topology
	sets := make([][]string, t.sets)
	for i, redis := range s.grid.redis[:t.sets] {
		sets[i] = redis.URLs(database)
		f.store = append(f.store, redis)
	}
	for range t.servers {
		server, err := stand.StartFencelockSets(ctx, f.scope, s.program, sets)
		if err != nil {
			f.scope.Close()
			return nil, err
		}
		f.addrs, f.service = append(f.addrs, server.Addr), append(f.service, server)
	}
	s.grid.fleet = f
	return f, nil
}

func (f *fleet) contender() contender {
	return contender{peer: peer.NewServers(result.HTTP, f.addrs...), service: f.service, store: f.store}
}

// scaleRound measures one round on servers that are started for this round.
func (s *Suite) scaleRound(ctx context.Context, t topology, k result.Key, round int) error {
	f, err := s.fleet(ctx, t)
	if err != nil {
		return err
	}
	defer s.grid.end()
	return s.roundOf(ctx, f.contender(), k, round, s.job(result.Scale, scaleWorkers, round))
}

// scaleIdle measures what an idle topology costs, in shares of a core.
func (s *Suite) scaleIdle(ctx context.Context, t topology) error {
	f, err := s.fleet(ctx, t)
	if err != nil {
		return err
	}
	defer s.grid.end()
	service, store := f.service.CPU(), f.store.CPU()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(scaleIdle):
	}
	s.set.Set("idle servers core, "+t.String(), float64(f.service.CPU()-service)/float64(scaleIdle))
	s.set.Set("idle nodes core, "+t.String(), float64(f.store.CPU()-store)/float64(scaleIdle))
	return nil
}

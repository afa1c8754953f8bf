package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fencelock/fencelock/bench/internal/cpu"
	"github.com/fencelock/fencelock/bench/internal/load"
	"github.com/fencelock/fencelock/bench/internal/peer"
	"github.com/fencelock/fencelock/bench/internal/stand"
	"github.com/fencelock/fencelock/internal/testenv"
)

const (
	maxSets = 4
	perSet  = 3
	warm    = 200 * time.Millisecond
	measure = 800 * time.Millisecond
	slow    = 1500 * time.Millisecond // of a round with long trips
	ttl     = 10 * time.Second
)

// stage is what everything here runs on.
type stage struct {
	scope   *stand.Scope
	program string
	sets    []*stand.Redis
}

func newStage(ctx context.Context) (s *stage, err error) {
	s = &stage{scope: stand.NewScope("capacity", os.Stderr)}
	defer func() {
		if err != nil {
			s.scope.Close()
		}
	}()
	root, err := moduleRoot(ctx)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fencelock-capacity-")
	if err != nil {
		return nil, err
	}
	s.scope.Cleanup(func() { _ = os.RemoveAll(dir) })
	if s.program, err = stand.Build(ctx, root, dir); err != nil {
		return nil, err
	}
	for range maxSets {
		redis, err := stand.StartRedis(ctx, s.scope, perSet, testenv.PersistNone)
		if err != nil {
			return nil, err
		}
		s.sets = append(s.sets, redis)
	}
	return s, nil
}

// fleet is servers over node sets, for a while.
type fleet struct {
	scope   *stand.Scope
	servers []*stand.Fencelock
	redis   []*testenv.Redis
	pids    []int
	nodes   int // of a set
}

// start empties the nodes and starts servers over sets of so many nodes, which are
// reached after trip.
func (s *stage) start(ctx context.Context, servers, sets, nodes int, trip time.Duration) (*fleet, error) {
	f := &fleet{scope: stand.NewScope("servers", os.Stderr), nodes: nodes}
	urls := make([][]string, sets)
	for i := range sets {
		for j, r := range s.sets[i].Nodes[:nodes] {
			r.FlushAll() //nolint:contextcheck // testenv makes contexts of its own
			url := r.URL()
			if trip > 0 {
				p := testenv.StartProxy(f.scope, r.Addr())
				p.Delay(trip / 2) // each way
				url = "redis://" + p.Addr()
			}
			urls[i] = append(urls[i], url)
			f.redis, f.pids = append(f.redis, r), append(f.pids, s.sets[i].PIDs[j])
		}
	}
	timeout := max(50*time.Millisecond, 10*trip)
	for range servers {
		server, err := stand.StartFencelockSets(ctx, f.scope, s.program, urls, "FENCELOCK_NODE_TIMEOUT="+timeout.String())
		if err != nil {
			f.scope.Close()
			return nil, err
		}
		f.servers = append(f.servers, server)
	}
	return f, nil
}

// addrs are the servers'.
func (f *fleet) addrs() (addrs []string) {
	for _, server := range f.servers {
		addrs = append(addrs, server.Addr)
	}
	return addrs
}

func (f *fleet) service() (total time.Duration) {
	for _, server := range f.servers {
		total += cpu.Process(server.PID())
	}
	return total
}

func (f *fleet) store() (total time.Duration) {
	for _, pid := range f.pids {
		total += cpu.Process(pid)
	}
	return total
}

// usage is the processor time so far, that of other programs included.
func (f *fleet) usage() load.Usage {
	u := load.Usage{Load: cpu.Self(), Service: f.service(), Store: f.store()}
	if all, err := cpu.Machine(); err == nil {
		u.Foreign = all - u.Load - u.Service - u.Store
	}
	return u
}

// calls is how many scripts the nodes have run.
func (f *fleet) calls(ctx context.Context) (total float64, err error) {
	for _, r := range f.redis {
		info, err := r.Client().Info(ctx, "commandstats").Result()
		if err != nil {
			return 0, err
		}
		_, line, _ := strings.Cut(info, "cmdstat_evalsha:calls=")
		number, _, _ := strings.Cut(line, ",")
		n, err := strconv.ParseFloat(number, 64)
		if err != nil {
			return 0, fmt.Errorf("commandstats of %s: %w", r.Addr(), err)
		}
		total += n
	}
	return total, nil
}

// round is what one round measured. Processor times are seconds for each pair.
type round struct {
	workers, nodes       int
	rate                 float64 // pairs a second
	p99                  float64 // of an acquire, in seconds
	calls                float64 // scripts for each pair on each node of its set
	load, service, store float64
	foreign              float64 // share of the machine that other programs took
	failed               int
	err                  string
}

// String is a line for who watches.
func (r round) String() string {
	return fmt.Sprintf("%3d callers: %6.0f pairs/s, p99 %5.1f ms, batches of %5.1f; for a pair load %3.0f µs, servers %3.0f, nodes %3.0f; %2.0f %% foreign",
		r.workers, r.rate, 1e3*r.p99, r.batch(), 1e6*r.load, 1e6*r.service, 1e6*r.store, 100*r.foreign)
}

// batch is operations of a script call.
func (r round) batch() float64 { return 2 / r.calls }

// scripts that a server runs on a node in a second without any load: four observations
// and a heartbeat.
const idleScripts = 5

// run measures one round of a closed load, every caller with a resource of its own.
func (f *fleet) run(ctx context.Context, workers int, length time.Duration, name string) (round, error) {
	job := load.Job{Workers: workers, Warm: warm, Measure: length, Claim: func(worker, _ int) peer.Claim {
		return peer.Claim{Resource: name + "/" + strconv.Itoa(worker), TTL: ttl}
	}}
	var calls []float64
	var failed error
	o, err := load.Run(ctx, peer.NewServers("fencelock", f.addrs()), job, func() load.Usage {
		n, err := f.calls(ctx)
		calls = append(calls, n)
		if err != nil {
			failed = err
		}
		return f.usage()
	})
	if err != nil || failed != nil || o.Pairs == 0 {
		return round{}, fmt.Errorf("%d workers, %d pairs, %s: %w", workers, o.Pairs, o.Err, anyOf(err, failed))
	}
	pairs, nodes := float64(o.Pairs), float64(len(f.redis))
	scripts := (calls[1]-calls[0])/nodes - idleScripts*o.Seconds*float64(len(f.servers))
	sets := nodes / float64(f.nodes)
	each := func(d time.Duration) float64 { return d.Seconds() / pairs }
	return round{
		workers: workers, nodes: f.nodes, rate: o.Rate(), p99: o.Acquire.P99.Seconds(),
		calls: max(scripts*sets/pairs, 1e-3),
		load:  each(o.CPU.Load), service: each(o.CPU.Service), store: each(o.CPU.Store),
		foreign: o.CPU.Foreign.Seconds() / o.Seconds / float64(processors()), failed: o.Failed, err: o.Err,
	}, nil
}

func anyOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return errNone
}

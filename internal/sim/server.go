package sim

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencelock/fencelock/lockcore"
)

// server is one server: a Locker and its life.
type server struct {
	w           *world
	id          int
	epoch       int // of its lives; messages of an earlier one are dead
	locker      *lockcore.Locker
	ctx         context.Context
	kill        context.CancelFunc
	ended       chan struct{} // closed when Run has returned
	pausedUntil time.Duration
	relays      []relay
}

// start begins another life.
func (s *server) start() {
	w := s.w
	s.epoch++
	s.pausedUntil = 0
	s.relays = make([]relay, len(w.nodes))
	nodes := make([]lockcore.Node, len(w.nodes))
	for i, n := range w.nodes {
		to := &port{w: w, server: s, epoch: s.epoch, node: n, relays: s.relays, slower: w.plan.slower(s.id)}
		if nodes[i] = to; w.plan.Clocks {
			nodes[i] = clocked{to}
		}
	}
	locker, err := lockcore.New(nodes, s.config())
	if err != nil {
		panic("sim: the plan's configuration is refused: " + err.Error())
	}
	s.locker = locker
	s.ctx, s.kill = context.WithCancel(context.Background())
	s.ended = make(chan struct{})
	go func(ctx context.Context, ended chan struct{}) {
		defer close(ended)
		_ = locker.Run(ctx)
	}(s.ctx, s.ended)
	w.logf("server %d starts", s.id+1)
}

func (s *server) config() lockcore.Config {
	p := &s.w.plan
	slower := p.slower(s.id)
	return lockcore.Config{
		MaxTTL: slower.own(p.MaxTTL), NodeTimeout: slower.own(p.NodeTimeout), WatchInterval: p.Watch, MaxHold: -1,
		New: p.New, Force: p.Mutant.force,
		Entropy: &entropy{from: rand.NewChaCha8(seedOf(p.Seed, uint64(s.id), uint64(s.epoch)))},
	}
}

// pace is how many times slower a server's clock runs than the others'.
type pace int

// slowTimes is the pace of a slow clock.
const slowTimes pace = 40

// slowServer is the number of the server that has one.
const slowServer = 1

// own is what the server must call a time so that it takes as long as d.
func (s pace) own(d time.Duration) time.Duration { return d * time.Duration(s) }

// real is how long what the server calls d takes.
func (s pace) real(d time.Duration) time.Duration { return d / time.Duration(s) }

func (p *Plan) slower(server int) pace {
	if p.Slow && server == slowServer-1 {
		return slowTimes
	}
	return 1
}

// entropy is chance that repeats, for a Locker's many goroutines.
type entropy struct {
	mu   sync.Mutex
	from *rand.ChaCha8
}

func (e *entropy) Read(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.from.Read(b)
}

// seedOf makes a generator's seed of numbers.
func seedOf(numbers ...uint64) (seed [32]byte) {
	for i, n := range numbers {
		for k := range 8 {
			seed[i*8+k] = byte(n >> (8 * k))
		}
	}
	return seed
}

// crash ends this life: nothing more is heard of it, but what it has sent may
// still arrive.
func (s *server) crash() {
	if s.alive() {
		s.epoch++
		s.kill()
		s.locker = nil
		s.w.logf("server %d crashes", s.id+1)
	}
}

func (s *server) alive() bool { return s.locker != nil }

// pause holds everything that the server sends and is sent.
func (s *server) pause(d time.Duration) {
	s.pausedUntil = max(s.pausedUntil, s.w.now()+d)
	s.w.logf("server %d is paused for %s", s.id+1, d)
}

package sim

import (
	"context"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// service is what clients ask of a server: a Locker, or one that a mutant
// stands before.
type service interface {
	Acquire(ctx context.Context, req lockcore.AcquireRequest) (lockcore.Lease, error)
	Extend(ctx context.Context, lease string, ttl time.Duration) (lockcore.Lease, error)
	Release(ctx context.Context, lease string) error
	Lease(ctx context.Context, lease string) (lockcore.Lease, error)
	Cancel(ctx context.Context, req lockcore.AcquireRequest) ([]lockcore.LeasePart, error)
	Break(ctx context.Context, resource string, token fencing.Token) error
	Status() lockcore.ClusterStatus
	Run(ctx context.Context) error
}

// server is one server: a service and its life.
type server struct {
	w           *world
	id          int
	epoch       int // of its lives; messages of an earlier one are dead
	locker      service
	real        *sets.Locker // behind it
	change      int          // of the node sets, for which it is configured, from 1; 0: none yet
	operating   int          // changes that operators make at it
	ctx         context.Context
	kill        context.CancelFunc
	pausedUntil time.Duration
	relays      []relay
	lastMaps    map[int]node.Epoch // by set, of its maps that this life has seen; for a mutant
	skew        time.Duration      // what its steady clock has lost, by which it reads the nodes'
	secrets     node.Secrets       // that a look has shown last; for a mutant
	waiters     int                // requests that stand in its queues
	waitFor     string             // what they all wait for; "" for one that waits for several resources
}

// mayWait: only one resource of a server, or the slots of one, is waited for at a time. When a
// subscription begins again, every first waiter asks at once, and would draw from
// one source of chance in no order.
func (s *server) mayWait(what wanted) bool {
	return s.waiters == 0 || !what.several() && what.String() == s.waitFor
}

func (s *server) waiting(what wanted) {
	s.waiters++
	if s.waitFor = ""; !what.several() {
		s.waitFor = what.String()
	}
}

// start begins another life.
func (s *server) start() {
	w := s.w
	s.epoch++
	s.pausedUntil, s.waiters, s.operating, s.secrets = 0, 0, 0, ""
	s.relays, s.lastMaps = make([]relay, len(w.nodes)), make(map[int]node.Epoch)
	present := make([][]node.Node, w.plan.Sets)
	for _, n := range w.nodes {
		to := &port{w: w, server: s, epoch: s.epoch, node: n, relays: s.relays, slower: w.plan.slower(s.id)}
		if w.plan.Clocks && !w.plan.Mutant.unwatched {
			present[n.set] = append(present[n.set], clocked{to})
		} else {
			present[n.set] = append(present[n.set], to)
		}
	}
	if w.plan.Mutant.narrow && s.id == 1 && len(present) > 1 {
		present = present[1:]
	}
	cfg := s.config()
	present, cfg.Next = s.setsOf(present)
	if w.plan.Mutant.sealsOld {
		cfg.Keys = s.lookedAt
	}
	locker, err := sets.New(cfg, present...)
	if err != nil {
		panic("sim: the plan's configuration is refused: " + err.Error())
	}
	s.real = locker
	if s.locker = locker; w.plan.Mutant.front != nil {
		s.locker = w.plan.Mutant.front(locker)
	}
	s.ctx, s.kill = context.WithCancel(context.Background())
	ctx := s.ctx
	w.lives.Go(func() { _ = locker.Run(ctx) })
	w.logf("server %d starts", s.id+1)
}

func (s *server) config() sets.Config {
	p := &s.w.plan
	slower := p.slower(s.id)
	return sets.Config{
		MaxTTL: slower.own(p.MaxTTL), NodeTimeout: slower.own(p.NodeTimeout), WatchInterval: p.Watch, MaxHold: 0,
		NodeDownAfter: slower.own(p.Options.DownAfter), MaxInFlight: p.Options.InFlight,
		MaxWaiters: p.Options.MaxWaiters,
		New:        p.New, Force: p.Mutant.force, Violated: s.w.invariants.violated,
		Random: func(set int) io.Reader {
			return &entropy{from: rand.NewChaCha8(seedOf(p.Seed, uint64(s.id), uint64(s.epoch), uint64(set)))}
		},
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

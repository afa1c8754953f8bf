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
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// service is the interface that clients call on a server: a Locker, or a mutant in front of one.
type service interface {
	Acquire(ctx context.Context, req lockcore.Request) (lockcore.Lease, error)
	Extend(ctx context.Context, lease string, ttl time.Duration) (lockcore.Lease, error)
	Release(ctx context.Context, lease string) error
	Lease(ctx context.Context, lease string) (lockcore.Lease, error)
	Cancel(ctx context.Context, req lockcore.Request) ([]lockcore.LeasePart, error)
	Break(ctx context.Context, resource string, token fencing.Token) error
	Status() lockcore.ClusterStatus
	Run(ctx context.Context) error
}

// direct calls a Locker without a mutant.
type direct struct {
	*sets.Locker
	servicetest.ByID
}

// server is one server: a service and its successive lives.
type server struct {
	w           *world
	id          int
	epoch       int // number of its life; messages of earlier lives are discarded
	locker      service
	real        *sets.Locker // the Locker behind the service
	change      int          // number of the change of node sets for which it is configured, from 1; 0: none yet
	operating   int          // number of operators' changes that run at it
	ctx         context.Context
	kill        context.CancelFunc
	pausedUntil time.Duration
	relays      []relay
	lastMaps    map[int]node.Epoch // by set: the newest map that this life has seen; for a mutant
	skew        time.Duration      // how much its monotonic clock has lost, with which it reads the nodes' clocks
	secrets     node.Secrets       // the secrets that its last look showed; for a mutant
	waiters     int                // number of requests in its queues
	waitFor     string             // the resource for which all of them wait; "" if one waits for several resources
}

// mayWait reports whether a request may wait. All waiters of a server wait for the same resource, or for slots
// of one. When a subscription begins again, every first waiter tries at once. With several resources they
// would draw from one random source in no fixed order.
func (s *server) mayWait(what wanted) bool {
	return s.waiters == 0 || !what.several() && what.String() == s.waitFor
}

func (s *server) waiting(what wanted) {
	s.waiters++
	if s.waitFor = ""; !what.several() {
		s.waitFor = what.String()
	}
}

// start begins the next life.
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
	s.locker = direct{locker, servicetest.ByID{Calls: locker}}
	if w.plan.Mutant.front != nil {
		s.locker = w.plan.Mutant.front(s.locker)
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
		New: p.New, Force: p.Mutant.force, Violated: s.w.invariants.violated,
		Entropy: func(set int) io.Reader {
			return &entropy{from: rand.NewChaCha8(seedOf(p.Seed, uint64(s.id), uint64(s.epoch), uint64(set)))}
		},
	}
}

// pace is how many times slower a server's clock runs than the others'.
type pace int

// slowTimes is the pace of a slow clock.
const slowTimes pace = 40

// slowServer is the number of the server with a slow clock.
const slowServer = 1

// own converts a real duration to the server's clock.
func (s pace) own(d time.Duration) time.Duration { return d * time.Duration(s) }

// real converts a duration on the server's clock to real time.
func (s pace) real(d time.Duration) time.Duration { return d / time.Duration(s) }

func (p *Plan) slower(server int) pace {
	if p.Slow && server == slowServer-1 {
		return slowTimes
	}
	return 1
}

// entropy is a repeatable random source, for a Locker's many goroutines.
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

// crash ends this life: the server sends nothing more, but its earlier messages may still arrive.
func (s *server) crash() {
	if s.alive() {
		s.epoch++
		s.kill()
		s.locker = nil
		s.w.logf("server %d crashes", s.id+1)
	}
}

func (s *server) alive() bool { return s.locker != nil }

// pause holds back all messages to and from the server.
func (s *server) pause(d time.Duration) {
	s.pausedUntil = max(s.pausedUntil, s.w.now()+d)
	s.w.logf("server %d is paused for %s", s.id+1, d)
}

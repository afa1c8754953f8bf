package servicetest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

// What follows is about one promise: no resource stands free although somebody waits for it at
// a server that runs. Servers share nodes in memory, and time is virtual.

// soon is how long a resource may stay free while a request waits for it.
const soon = 50 * time.Millisecond

// cluster is several servers over the same nodes.
type cluster struct {
	*testing.T
	servers []*server
}

// overNodes runs the test over one node, as on an engine with a single store, and over three.
func overNodes(t *testing.T, servers int, test func(c *cluster)) {
	t.Helper()
	for _, n := range []int{1, 3} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var nodes []node.Node
				for i := range n {
					nodes = append(nodes, nodetest.NewModel(nodetest.ModelOptions{Name: fmt.Sprint("n", i)}))
				}
				c := &cluster{T: t}
				for range servers {
					c.servers = append(c.servers, newServer(t, nodes))
				}
				time.Sleep(time.Second)
				test(c)
			})
		})
	}
}

// server is one server, which can be stopped as by SIGSTOP. Its messages to the nodes, and theirs to it, are
// delivered when it continues.
type server struct {
	servicetest.ByID
	nodes []node.Node
	end   func()

	acquires atomic.Int64 // that it sent

	mu      sync.Mutex
	stopped bool
	deaf    bool        // replies to it wait, and nothing else
	later   [2][]func() // what waits: heartbeats last
}

func newServer(t *testing.T, nodes []node.Node) *server {
	t.Helper()
	s := &server{nodes: nodes}
	var own []node.Node
	for _, n := range nodes {
		own = append(own, port{n, s})
	}
	locker, err := sets.New(sets.Config{New: true, Unlisted: true, WatchInterval: 100 * time.Millisecond}, own)
	if err != nil {
		t.Fatal(err)
	}
	s.ByID = servicetest.ByID{Calls: locker}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = locker.Run(ctx) })
	s.end = sync.OnceFunc(func() {
		s.goOn()
		cancel()
		running.Wait()
	})
	t.Cleanup(s.end)
	return s
}

func (s *server) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
}

// deafen holds back the replies to the server until it continues (goOn).
func (s *server) deafen() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.deaf = true
}

// goOn lets the server continue. The goroutines may run in any order then; heartbeats come last.
func (s *server) goOn() {
	s.mu.Lock()
	later := slices.Concat(s.later[0], s.later[1])
	s.stopped, s.deaf, s.later = false, false, [2][]func(){}
	s.mu.Unlock()
	for _, do := range later {
		do()
	}
}

// awake calls do now, or when the server continues if it is stopped.
func (s *server) awake(last int, do func()) {
	if !s.postpones(last, false, do) {
		do()
	}
}

// postpones reports whether it has kept do until the server continues. It does so if the server is stopped, or if the
// server is deaf and do is a reply.
func (s *server) postpones(last int, reply bool, do func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if waits := s.stopped || reply && s.deaf; !waits {
		return false
	}
	s.later[last] = append(s.later[last], do)
	return true
}

// port is a node as a server sees it.
type port struct {
	node.Node
	server *server
}

func (p port) Submit(op *node.Op, i int, sink node.Sink) {
	last := 0
	switch op.Kind {
	case node.OpHeartbeat:
		last = 1
	case node.OpAcquire:
		p.server.acquires.Add(1)
	}
	p.server.awake(last, func() { p.Node.Submit(op, i, delivery{sink, p.server}) })
}

func (p port) Subscribe(ctx context.Context, name string, l node.Listener) {
	p.Node.Subscribe(ctx, name, listener{l, p.server})
}

type delivery struct {
	node.Sink
	server *server
}

func (d delivery) Deliver(i int, reply node.Reply) {
	deliver := func() { d.Sink.Deliver(i, reply) }
	if !d.server.postpones(0, true, deliver) {
		deliver()
	}
}

type listener struct {
	node.Listener
	server *server
}

func (l listener) Wake(resource string, ticket node.Ticket) {
	l.server.awake(0, func() { l.Listener.Wake(resource, ticket) })
}

// take acquires at once.
func (c *cluster) take(at int, req lockcore.Request) lockcore.Lease {
	c.Helper()
	lease, err := c.servers[at].Acquire(c.Context(), req)
	if err != nil {
		c.Fatalf("%s at server %d: %v", req.Resource, at, err)
	}
	return lease
}

func (c *cluster) release(at int, lease lockcore.Lease) {
	c.Helper()
	if err := c.servers[at].Release(c.Context(), lease.ID); err != nil {
		c.Fatalf("the release of %s at server %d: %v", lease.Resource, at, err)
	}
}

// waiting is a request that is in the queue when wait returns.
type waiting struct {
	c     *cluster
	ended chan struct{}
	lease lockcore.Lease
	err   error
	at    time.Time
}

func (c *cluster) wait(at int, req lockcore.Request) *waiting {
	w := &waiting{c: c, ended: make(chan struct{})}
	ctx := c.Context()
	go func() {
		defer close(w.ended)
		w.lease, w.err = c.servers[at].Acquire(ctx, req)
		w.at = time.Now()
	}()
	time.Sleep(10 * time.Millisecond)
	return w
}

// granted checks that the request got its lease soon after the time.
func (w *waiting) granted(free time.Time) lockcore.Lease {
	w.c.Helper()
	<-w.ended
	if late := w.at.Sub(free); w.err != nil || late > soon {
		w.c.Errorf("%s stood free for %s although somebody waited: %v", w.lease.Resource, late, w.err)
	}
	return w.lease
}

func waitFor(resource, key string) lockcore.Request {
	return lockcore.Request{Resource: resource, IdempotencyKey: key, Wait: 2 * time.Minute, TTL: 30 * time.Second}
}

// A waiter behind a place that a server keeps for a poll asks the nodes. As long as the place is kept they refuse,
// and name the place as the first. The waiter must not ask again at once then. When the place ends, the waiters
// behind it get the resource.
func TestAKeptPlaceIsAskedAboutRarely(t *testing.T) {
	overNodes(t, 2, func(c *cluster) {
		first := c.take(1, lockcore.Request{Resource: "r"})
		poll := waitFor("r", "poll")
		poll.Poll = time.Second
		answered := c.wait(0, poll)
		behind := c.wait(0, waitFor("r", ""))
		if <-answered.ended; !errors.Is(answered.err, lockcore.ErrWaitTimeout) {
			t.Fatal(answered.err)
		}
		before := c.servers[0].acquires.Load()
		c.release(1, first)
		behind.granted(answered.at.Add(2 * time.Second))
		const most = 15 // pauses of 25 ms that grow to a second, and a word of each node
		if asked := int(c.servers[0].acquires.Load()-before) / len(c.servers[0].nodes); asked > most {
			c.Errorf("it asked %d times in 2 s", asked)
		}
	})
}

// A wake comes for a poll whose time is over, and goes to the next waiter. The same holds for the wake of a release
// through the poll's own server, which the nodes leave to this server.
func TestAPollThatEndsAtItsWakeLeavesIt(t *testing.T) {
	overNodes(t, 2, func(c *cluster) {
		for i := range 100 {
			resource := fmt.Sprint("r", i)
			first := c.take(1, lockcore.Request{Resource: resource})
			poll := waitFor(resource, resource)
			poll.Poll = time.Second
			began := time.Now()
			answered := c.wait(0, poll)
			behind := c.wait(0, waitFor(resource, ""))
			time.Sleep(time.Until(began.Add(time.Second)))
			c.release(0, first)
			<-answered.ended
			if answered.err == nil {
				c.release(1, answered.lease)
				answered.at = time.Now().Add(-2 * time.Second)
			}
			c.release(0, behind.granted(answered.at.Add(2*time.Second)))
		}
	})
}

// A server is stopped for longer than its tickets live, and they are swept when a lease is released. When the server
// continues, the nodes soon have the tickets again: those of waiters that find the resource free, and those of
// waiters that find it held.
func TestAStopThatOutlivesTickets(t *testing.T) {
	for name, taken := range map[string]bool{"the resource is free": false, "somebody has it": true} {
		for kind, news := range map[string]bool{"heartbeats first": false, "another ticket before the heartbeats": true} {
			t.Run(name+", "+kind, func(t *testing.T) {
				overNodes(t, 2, func(c *cluster) {
					c.take(1, lockcore.Request{Resource: "other", TTL: time.Minute})
					lease := c.take(1, lockcore.Request{Resource: "r", TTL: time.Minute})
					behind := c.wait(0, waitFor("r", ""))
					c.wait(0, waitFor("other", ""))
					time.Sleep(25 * time.Second) // its tries are rare by now
					c.servers[0].stop()
					time.Sleep(4 * time.Second)
					c.release(1, lease)
					time.Sleep(soon)
					if taken {
						lease = c.take(1, lockcore.Request{Resource: "r", TTL: time.Minute})
					}
					if news {
						c.wait(0, waitFor("other", ""))
					}
					c.servers[0].goOn()
					if taken {
						time.Sleep(time.Second)
						c.release(1, lease)
					}
					behind.granted(time.Now())
				})
			})
		}
	}
}

// A release within the minimum hold time shortens the lock. Waiters learn when the lock ends.
func TestAReleaseWithinTheMinimumHoldWakesWaiters(t *testing.T) {
	overNodes(t, 2, func(c *cluster) {
		const many = 10
		var leases []lockcore.Lease
		var waiters []*waiting
		for i := range many {
			req := lockcore.Request{Resource: fmt.Sprint("r", i), TTL: time.Minute, MinHold: 30 * time.Second}
			leases = append(leases, c.take(1, req))
			waiters = append(waiters, c.wait(i%2, waitFor(req.Resource, "")))
		}
		time.Sleep(29 * time.Second)
		for i, lease := range leases {
			c.release(i%3%2, lease)
		}
		for i, w := range waiters {
			w.granted(leases[i].Acquired.Add(30 * time.Second))
		}
	})
}

// A request under a key keeps its place for two seconds after its server has stopped, however it stopped and at
// whatever time between two heartbeats. No request that came later passes it.
func TestAPlaceOutlivesItsServer(t *testing.T) {
	for name, die := range map[string]func(*server){"it ends": func(s *server) { s.end() }, "it is stopped": (*server).stop} {
		t.Run(name, func(t *testing.T) {
			overNodes(t, 2, func(c *cluster) {
				for phase := time.Duration(0); phase < 4*time.Second; phase += 290 * time.Millisecond {
					c.servers = append(c.servers, newServer(c.T, c.servers[0].nodes))
					last := len(c.servers) - 1
					time.Sleep(time.Second)
					c.outlives(last, phase, die)
				}
			})
		})
	}
}

// A wait that polls at two servers in turn has its place all the time. That holds even if a poll comes back at the
// moment when the first server gives the place up: 2 s after the last poll there, which is how long a poll at the
// other server takes.
func TestAPollThatAlternatesKeepsItsPlace(t *testing.T) {
	overNodes(t, 2, func(c *cluster) {
		for round := range 10 {
			resource := fmt.Sprint("r", round)
			lease := c.take(1, lockcore.Request{Resource: resource, TTL: time.Minute})
			poll := waitFor(resource, resource)
			poll.Poll = 2 * time.Second
			var strangers []*waiting
			for i := range 20 {
				if _, err := c.servers[i%2].Acquire(c.Context(), poll); !errors.Is(err, lockcore.ErrWaitTimeout) {
					t.Fatal(err)
				}
				if i < 2 { // so that the poll is not the first of a server, which tries by itself
					strangers = append(strangers, c.wait(i, waitFor(resource, "")))
				}
			}
			again := c.wait(0, poll)
			c.release(1, lease)
			c.release(1, again.granted(time.Now()))
			for _, s := range strangers {
				c.release(1, s.granted(time.Now()))
			}
		}
	})
}

// outlives lets a request wait at a server that sent a heartbeat some time ago, and that then ends.
func (c *cluster) outlives(at int, phase time.Duration, die func(*server)) {
	c.Helper()
	resource := fmt.Sprint("r", at)
	lease := c.take(1, lockcore.Request{Resource: resource, TTL: time.Minute})
	early, leaves := context.WithTimeout(c.Context(), 1100*time.Millisecond)
	defer leaves()
	_, _ = c.servers[at].Acquire(early, waitFor(resource, ""))
	time.Sleep(phase)
	keyed := waitFor(resource, resource)
	c.wait(at, keyed)
	stranger := c.wait(1, waitFor(resource, ""))
	time.Sleep(phase % (700 * time.Millisecond))
	die(c.servers[at])
	c.release(0, lease)
	time.Sleep(1950 * time.Millisecond)
	lease = c.wait(1, keyed).granted(time.Now())
	select {
	case <-stranger.ended:
		c.Errorf("a stranger passed it %s after a heartbeat", phase)
	default:
	}
	c.release(0, lease)
	c.release(0, stranger.granted(time.Now()))
	c.servers[at].end()
}

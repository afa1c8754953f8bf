package chaos

import (
	"math/rand/v2"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// Fault is something that goes wrong for a while.
type Fault struct {
	Name string
	// Nodes is how many nodes it affects. Faults of one round affect different nodes, and together a minority,
	// unless one of them affects a majority.
	Nodes int
	// On lists the nodes that it can affect; nil for any.
	On []int
	// Major means that it takes away the quorum, or the service in another way. Then the service must be back
	// within the longest TTL + 5 s. Without Major, the service must be up throughout.
	Major bool
	// Jumps: clocks jump, so two leases may be valid at once, and locks may
	// live longer.
	Jumps bool
	// Split means that two primaries grant at once, which no engine can prevent. Then only the guard refuses
	// the tokens of the old primary.
	Split bool
	// cutsServer means that a server cannot reach its engine, or a quorum.
	cutsServer bool
	// lasts is its minimum duration, if [Config].Hold is shorter.
	lasts time.Duration
	// part is the part of the stand that it breaks, partNodes by default. Two faults of one part never happen
	// together.
	part part
	// prepare, if not nil, acts before the clients start.
	prepare func(s *Stand, nodes []*node)
	// begin starts the fault, and returns its course.
	begin func(s *Stand, random *rand.Rand, nodes []*node) course
}

// part is a part of a stand.
type part int

const (
	partNodes    part = iota + 1 // processes and data of nodes
	partLines                    // the network to some nodes
	partAll                      // the network to all of them
	partClocks                   // the clocks of nodes
	partServers                  // fencelock itself
	partPostgres                 // and the network to Postgres
	partClients
	partEngine // and the network to the engine
)

// course is the rest of a fault after its beginning. tick, if not nil, runs a few times a second; end repairs
// everything.
type course struct {
	tick func()
	end  func()
}

// Faults are all that a stand can do, in the order of a short run.
func Faults() []Fault {
	var all []Fault
	for _, group := range [][]Fault{
		{{Name: "none", part: partAll, begin: func(*Stand, *rand.Rand, []*node) course { return course{end: func() {}} }}},
		killFaults(), lossFaults(), replicaFaults(), freezeFaults(), networkFaults(), clockFaults(),
		postgresFaults(), serverFaults(), majorityFaults(),
	} {
		all = append(all, group...)
	}
	for i := range all {
		if all[i].part == 0 {
			all[i].part = partNodes
		}
	}
	return all
}

func killFaults() []Fault {
	kill := func(_ *Stand, _ *rand.Rand, nodes []*node) course {
		each(nodes, func(n *node) { n.redis.Kill() })
		return course{end: func() { each(nodes, func(n *node) { n.redis.Restart() }) }}
	}
	return []Fault{
		{Name: "kill -9, no persistence", Nodes: 1, On: []int{0}, begin: kill},
		{Name: "kill -9, RDB", Nodes: 1, On: []int{1}, begin: kill},
		{Name: "kill -9, AOF everysec", Nodes: 1, On: []int{2}, begin: kill},
		{Name: "kill -9, AOF always", Nodes: 1, On: []int{3, 4}, begin: kill},
		{Name: "kill -9 of two nodes", Nodes: 2, begin: kill},
	}
}

// each calls do for every node.
func each(nodes []*node, do func(*node)) {
	for _, n := range nodes {
		do(n)
	}
}

// atOnce is a fault that needs no end.
func atOnce(do func(*node)) func(*Stand, *rand.Rand, []*node) course {
	return func(_ *Stand, _ *rand.Rand, nodes []*node) course {
		each(nodes, do)
		return course{end: func() {}}
	}
}

func wipe(n *node) {
	n.redis.Kill()
	n.redis.Wipe()
	n.redis.Restart()
}

func lossFaults() []Fault {
	powerLoss := func(_ *Stand, random *rand.Rand, nodes []*node) course {
		for _, n := range nodes {
			n.redis.Kill()
			n.redis.TruncateAOF(random.Int64N(8 << 10))
		}
		return course{end: func() { each(nodes, func(n *node) { n.redis.Restart() }) }}
	}
	return []Fault{
		{Name: "power loss, AOF cut", Nodes: 2, On: []int{2, 3, 4}, begin: powerLoss},
		{Name: "wipe", Nodes: 2, begin: atOnce(wipe)},
		{Name: "FLUSHALL", Nodes: 2, begin: atOnce(func(n *node) { n.redis.FlushAll() })},
	}
}

func replicaFaults() []Fault {
	return []Fault{
		{Name: "demoted and promoted", Nodes: 1, begin: func(_ *Stand, _ *rand.Rand, nodes []*node) course {
			n := nodes[0]
			n.spare.FlushAll()
			n.redis.ReplicaOf(n.spare) // loses all it had
			return course{end: n.redis.Promote}
		}},
		{
			Name: "fail-over and fail-back", Nodes: 1,
			prepare: func(_ *Stand, nodes []*node) { nodes[0].spare.ReplicaOf(nodes[0].redis) },
			begin: func(_ *Stand, _ *rand.Rand, nodes []*node) course {
				n := nodes[0]
				n.spare.Promote() // writes of the old master are lost from now on
				moves := time.Now().Add(200 * time.Millisecond)
				return course{
					tick: func() {
						if !n.moved && time.Now().After(moves) {
							n.move(n.spare)
						}
					},
					end: n.failBack,
				}
			},
		},
	}
}

// move makes the node's address lead to another Redis.
func (n *node) move(to *testenv.Redis) {
	n.moved = to == n.spare
	for _, line := range n.lines {
		line.Retarget(to.Addr())
	}
}

// failBack copies the second master's data to the first and makes the first master again.
func (n *node) failBack() {
	n.redis.ReplicaOf(n.spare)
	n.redis.Promote()
	n.move(n.redis)
}

func freezeFaults() []Fault {
	freeze := func(_ *Stand, _ *rand.Rand, nodes []*node) course {
		each(nodes, func(n *node) { n.redis.Freeze() })
		return course{end: func() { each(nodes, func(n *node) { n.redis.Thaw() }) }}
	}
	return []Fault{
		{Name: "SIGSTOP of two nodes", Nodes: 2, begin: freeze},
		{Name: "SIGSTOP of a server", part: partServers, begin: func(s *Stand, random *rand.Rand, _ []*node) course {
			server := random.IntN(servers)
			frozen := s.servers[server]
			frozen.Freeze()
			return s.without(server, frozen.Thaw)
		}},
		{Name: "clients stopped", part: partClients, begin: func(s *Stand, _ *rand.Rand, _ []*node) course {
			s.gate.shut()
			return course{end: s.gate.lift}
		}},
	}
}

// lines calls do for every server's line to each of the nodes.
func lines(nodes []*node, do func(*testenv.Proxy)) {
	for _, n := range nodes {
		for _, line := range n.lines {
			do(line)
		}
	}
}

// heal ends all faults of the nodes' proxies.
func heal(nodes []*node) {
	lines(nodes, func(line *testenv.Proxy) {
		line.Delay(0)
		line.DropReplies(false)
		line.Cut(testenv.CutNone)
		line.Reset() // the stream would lack the bytes that a cut swallowed
	})
}

// onLines is a fault of the network to some nodes.
func onLines(do func(*testenv.Proxy)) func(*Stand, *rand.Rand, []*node) course {
	return func(_ *Stand, _ *rand.Rand, nodes []*node) course {
		lines(nodes, do)
		return course{end: func() { heal(nodes) }}
	}
}

func networkFaults() []Fault {
	return []Fault{
		{Name: "partition of a node", part: partLines, Nodes: 1, begin: onLines(func(p *testenv.Proxy) { p.Cut(testenv.CutBlackhole) })},
		{Name: "partition of two nodes", part: partLines, Nodes: 2, begin: onLines(func(p *testenv.Proxy) { p.Cut(testenv.CutBlackhole) })},
		{Name: "one-way partition: replies lost", part: partLines, Nodes: 2, begin: onLines(func(p *testenv.Proxy) { p.DropReplies(true) })},
		{Name: "connections refused", part: partLines, Nodes: 2, begin: onLines(func(p *testenv.Proxy) { p.Cut(testenv.CutRefuse) })},
		{Name: "a server cut off from three nodes", part: partAll, cutsServer: true, begin: cutOffServer},
		{Name: "delays", part: partAll, begin: changing(func(s *Stand, random *rand.Rand, line *testenv.Proxy) {
			line.Delay(time.Duration(random.Int64N(int64(s.config.NodeTimeout) / 4)))
		})},
		{Name: "resets", part: partAll, begin: changing(func(_ *Stand, random *rand.Rand, line *testenv.Proxy) {
			if random.IntN(6) == 0 {
				line.Reset()
			}
		})},
		{Name: "flaky lines", part: partLines, Nodes: 2, begin: flaky},
	}
}

// cutOffServer separates one server from the quorum; the others keep it.
func cutOffServer(s *Stand, random *rand.Rand, _ []*node) course {
	lonely := random.IntN(servers)
	var cut []*testenv.Proxy
	for _, i := range random.Perm(nodes)[:3] {
		cut = append(cut, s.nodes[i].lines[lonely])
	}
	for _, line := range cut {
		line.Cut(testenv.CutBlackhole)
	}
	return s.without(lonely, func() {
		for _, line := range cut {
			line.Cut(testenv.CutNone)
			line.Reset()
		}
	})
}

// changing applies do to every proxy at each tick.
func changing(do func(*Stand, *rand.Rand, *testenv.Proxy)) func(*Stand, *rand.Rand, []*node) course {
	return func(s *Stand, random *rand.Rand, _ []*node) course {
		return course{
			tick: func() { lines(s.nodes, func(line *testenv.Proxy) { do(s, random, line) }) },
			end:  func() { heal(s.nodes) },
		}
	}
}

// flaky loses replies, cuts and resets on single proxies, different ones at each tick.
func flaky(_ *Stand, random *rand.Rand, nodes []*node) course {
	return course{
		tick: func() {
			lines(nodes, func(line *testenv.Proxy) {
				line.DropReplies(random.IntN(3) == 0)
				line.Cut([]testenv.Cut{testenv.CutNone, testenv.CutNone, testenv.CutBlackhole, testenv.CutRefuse}[random.IntN(4)])
				line.Reset()
			})
		},
		end: func() { heal(nodes) },
	}
}

// jump is by how much a node's clock jumps.
const jump = 20 * time.Second

func clockFaults() []Fault {
	by := func(d time.Duration, back bool) func(*Stand, *rand.Rand, []*node) course {
		return func(s *Stand, _ *rand.Rand, nodes []*node) course {
			move := func(d time.Duration) {
				for _, n := range nodes {
					if err := n.clock.Jump(d); err != nil {
						s.t.Fatal(err)
					}
				}
			}
			move(d)
			return course{end: func() {
				if back {
					move(-d)
				}
			}}
		}
	}
	return []Fault{
		{Name: "clock of a node +20 s", part: partClocks, Nodes: 1, Jumps: true, begin: by(jump, false)},
		{Name: "clock of a node -20 s", part: partClocks, Nodes: 1, Jumps: true, begin: by(-jump, true)},
		{Name: "clocks of three nodes +20 s", part: partClocks, Nodes: 3, Jumps: true, begin: by(jump, false)},
	}
}

func postgresFaults() []Fault {
	return []Fault{
		{Name: "Postgres killed", part: partPostgres, begin: func(s *Stand, _ *rand.Rand, _ []*node) course {
			s.pg.Kill()
			return course{end: s.pg.Restart}
		}},
		{Name: "Postgres restarted", part: partPostgres, begin: func(s *Stand, _ *rand.Rand, _ []*node) course {
			s.pg.Restart()
			return course{end: func() {}}
		}},
		{Name: "Postgres stopped (SIGSTOP)", part: partPostgres, begin: func(s *Stand, _ *rand.Rand, _ []*node) course {
			s.pg.Freeze()
			return course{end: s.pg.Thaw}
		}},
		{Name: "Postgres: replies lost, resets", part: partPostgres, begin: func(s *Stand, random *rand.Rand, _ []*node) course {
			return course{
				tick: func() {
					s.pgLine.DropReplies(random.IntN(2) == 0)
					s.pgLine.Reset()
				},
				end: func() {
					s.pgLine.DropReplies(false)
					s.pgLine.Reset()
				},
			}
		}},
	}
}

func serverFaults() []Fault {
	return []Fault{
		{Name: "kill -9 of a server", part: partServers, begin: func(s *Stand, random *rand.Rand, _ []*node) course {
			killed := s.servers[random.IntN(servers)]
			killed.Kill()
			return course{end: func() { killed.Restart() }}
		}},
		{Name: "kill -9 of all servers", part: partServers, Major: true, begin: func(s *Stand, _ *rand.Rand, _ []*node) course {
			for _, server := range s.servers {
				server.Kill()
			}
			return course{end: func() {
				for _, server := range s.servers {
					server.Restart()
				}
			}}
		}},
		{Name: "rolling restart of the servers", part: partServers, begin: func(s *Stand, _ *rand.Rand, _ []*node) course {
			for _, server := range s.servers {
				server.Restart()
			}
			return course{end: func() {}}
		}},
	}
}

func majorityFaults() []Fault {
	return []Fault{
		{Name: "majority stopped (SIGSTOP)", Nodes: 3, Major: true, begin: func(_ *Stand, _ *rand.Rand, nodes []*node) course {
			each(nodes, func(n *node) { n.redis.Freeze() })
			return course{end: func() { each(nodes, func(n *node) { n.redis.Thaw() }) }}
		}},
		{Name: "majority lost", Nodes: 3, Major: true, begin: atOnce(wipe)},
		{Name: "all nodes lost", Nodes: 5, Major: true, begin: atOnce(wipe)},
		{Name: "power loss everywhere", Nodes: 5, Major: true, begin: func(_ *Stand, random *rand.Rand, nodes []*node) course {
			each(nodes, func(n *node) { n.redis.Kill() })
			for _, n := range nodes {
				if n.aof {
					n.redis.TruncateAOF(random.Int64N(8 << 10))
				}
			}
			return course{end: func() { each(nodes, func(n *node) { n.redis.Restart() }) }}
		}},
		{Name: "rolling restart of the nodes", Nodes: 5, begin: rollingRestart},
	}
}

// rollingRestart restarts each node after the previous one votes again.
func rollingRestart(s *Stand, _ *rand.Rand, nodes []*node) course {
	for _, n := range nodes {
		n.redis.Restart()
		testenv.Eventually(s.t, time.Minute, s.settled)
	}
	return course{end: func() {}}
}

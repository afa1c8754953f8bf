package chaos

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
)

// etcdEngine is an etcd of three members. Every server reaches each member through a proxy of its own, and the
// members reach each other through proxies, too.
type etcdEngine struct {
	t        testing.TB
	etcd     *testenv.Etcd
	lines    [][]*testenv.Proxy // by server, its proxies to the members
	snapshot string             // the snapshot that a fault took and restores
}

func startEtcdEngine(tb testing.TB, servers int) Engine {
	tb.Helper()
	e := &etcdEngine{t: tb, etcd: testenv.StartEtcd(tb, 3, testenv.EtcdOptions{Lines: true})}
	for range servers {
		var lines []*testenv.Proxy
		for _, m := range e.etcd.Members {
			lines = append(lines, testenv.StartProxy(tb, m.Addr()))
		}
		e.lines = append(e.lines, lines)
	}
	return e
}

func (e *etcdEngine) Store(server int) string {
	var addrs []string
	for _, line := range e.lines[server] {
		addrs = append(addrs, line.Addr())
	}
	return "etcd://" + strings.Join(addrs, ",") + "/chaos"
}

// Faults lists the faults of etcd and of the proxies.
func (e *etcdEngine) Faults() []Fault {
	kill, freeze, isolate := (*testenv.EtcdMember).Kill, (*testenv.EtcdMember).Freeze, (*testenv.EtcdMember).Isolate
	restart, thaw, rejoin := (*testenv.EtcdMember).Restart, (*testenv.EtcdMember).Thaw, (*testenv.EtcdMember).Rejoin
	return []Fault{
		{Name: "engine: kill -9 of the leader", Major: true, begin: e.onOne(true, kill, restart)},
		{Name: "engine: kill -9 of a follower", Major: true, begin: e.onOne(false, kill, restart)},
		{Name: "engine: SIGSTOP of the leader", Major: true, begin: e.onOne(true, freeze, thaw)},
		{Name: "engine: SIGSTOP of a follower", Major: true, begin: e.onOne(false, freeze, thaw)},
		{Name: "engine: partition of the leader", Major: true, begin: e.onOne(true, isolate, rejoin)},
		{Name: "engine: partition of a follower", Major: true, begin: e.onOne(false, isolate, rejoin)},
		{Name: "engine: kill -9 of all", Major: true, begin: e.killAll},
		{Name: "engine: partition", Major: true, begin: e.cutOff},
		{Name: "engine: a server is cut off", cutsServer: true, begin: e.cutOneOff},
		{Name: "engine: replies lost, resets", Major: true, begin: e.flaky},
		{Name: "engine: restore of a snapshot", Major: true, prepare: e.saved, begin: e.restore},
	}
}

// onOne applies do to the leader or to a follower, and end when the fault ends.
func (e *etcdEngine) onOne(leader bool, do, end func(*testenv.EtcdMember)) func(*Stand, *rand.Rand, []*node) course {
	return func(*Stand, *rand.Rand, []*node) course {
		m := e.etcd.Leader()
		if !leader {
			m = e.etcd.Follower()
		}
		do(m)
		return course{end: func() { end(m) }}
	}
}

// killAll kills the members, and restarts them when the fault ends.
func (e *etcdEngine) killAll(*Stand, *rand.Rand, []*node) course {
	for _, m := range e.etcd.Members {
		m.Kill()
	}
	return course{end: func() {
		for _, m := range e.etcd.Members {
			m.Start()
		}
		for _, m := range e.etcd.Members {
			m.Await()
		}
	}}
}

func (e *etcdEngine) saved(*Stand, []*node) { e.snapshot = e.etcd.Snapshot() }

// restore restores the snapshot after clients have made commits that it lacks.
func (e *etcdEngine) restore(*Stand, *rand.Rand, []*node) course {
	wait(lag)
	e.etcd.Restore(e.snapshot, "")
	return course{end: func() {}}
}

// heal ends all faults of the proxies.
func (e *etcdEngine) heal() { healLines(e.lines) }

func (e *etcdEngine) cutOff(*Stand, *rand.Rand, []*node) course {
	eachLine(e.lines, blackhole)
	return course{end: e.heal}
}

func (e *etcdEngine) cutOneOff(s *Stand, random *rand.Rand, _ []*node) course {
	server := random.IntN(len(e.lines))
	eachLine(e.lines[server:][:1], blackhole)
	return s.without(server, e.heal)
}

func (e *etcdEngine) flaky(_ *Stand, random *rand.Rand, _ []*node) course {
	return course{
		tick: func() {
			eachLine(e.lines, func(line *testenv.Proxy) {
				line.DropReplies(random.IntN(3) == 0)
				line.Reset()
			})
		},
		end: e.heal,
	}
}

func eachLine(lines [][]*testenv.Proxy, do func(*testenv.Proxy)) {
	for _, of := range lines {
		for _, line := range of {
			do(line)
		}
	}
}

func healLines(lines [][]*testenv.Proxy) {
	eachLine(lines, func(line *testenv.Proxy) {
		line.DropReplies(false)
		line.Cut(testenv.CutNone)
		line.Reset() // the stream would lack the bytes that a cut swallowed
	})
}

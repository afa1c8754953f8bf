package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
)

// zookeeperEngine is an ensemble of three. Every server reaches each member through a proxy of its own.
type zookeeperEngine struct {
	t        testing.TB
	ensemble []*testenv.ZooKeeper
	lines    [][]*testenv.Proxy // by server, its proxies to the members
	restores []func()           // restore the backups that a fault took
}

func startZooKeeperEngine(tb testing.TB, servers int) Engine {
	tb.Helper()
	e := &zookeeperEngine{t: tb, ensemble: testenv.StartZooKeeperApart(tb, 3)}
	for range servers {
		var lines []*testenv.Proxy
		for _, z := range e.ensemble {
			lines = append(lines, testenv.StartProxy(tb, z.Addr()))
		}
		e.lines = append(e.lines, lines)
	}
	return e
}

func (e *zookeeperEngine) Store(server int) string {
	var addrs []string
	for _, line := range e.lines[server] {
		addrs = append(addrs, line.Addr())
	}
	return "zookeeper://chaos:secret@" + strings.Join(addrs, ",") + "/chaos"
}

// Faults lists the faults of ZooKeeper and of the proxies.
func (e *zookeeperEngine) Faults() []Fault {
	kill, freeze := (*testenv.ZooKeeper).Kill, (*testenv.ZooKeeper).Freeze
	restart, thaw := (*testenv.ZooKeeper).Restart, (*testenv.ZooKeeper).Thaw
	return []Fault{
		{Name: "engine: kill -9 of the leader", Major: true, begin: e.onOne(true, kill, restart)},
		{Name: "engine: kill -9 of a follower", Major: true, begin: e.onOne(false, kill, restart)},
		{Name: "engine: SIGSTOP of the leader", Major: true, begin: e.onOne(true, freeze, thaw)},
		{Name: "engine: SIGSTOP of a follower", Major: true, begin: e.onOne(false, freeze, thaw)},
		{Name: "engine: the others refuse the leader", Major: true, begin: e.onOne(true, isolate(testenv.CutRefuse), isolate(testenv.CutNone))},
		{Name: "engine: the leader hears nothing of the others", Major: true, lasts: noticed, begin: e.onOne(true, isolate(testenv.CutBlackhole), isolate(testenv.CutNone))},
		{Name: "engine: the others refuse a follower", Major: true, begin: e.onOne(false, isolate(testenv.CutRefuse), isolate(testenv.CutNone))},
		{Name: "engine: a follower hears nothing of the others", Major: true, lasts: noticed, begin: e.onOne(false, isolate(testenv.CutBlackhole), isolate(testenv.CutNone))},
		{Name: "engine: all refuse one another", Major: true, begin: e.scattered},
		{Name: "engine: kill -9 of all", Major: true, begin: e.onAll(func() {})},
		{Name: "engine: partition", Major: true, begin: e.cutOff},
		{Name: "engine: a server is cut off", cutsServer: true, begin: e.cutOneOff},
		{Name: "engine: replies lost, resets", Major: true, begin: e.flaky},
		{Name: "engine: restore from a backup", Major: true, prepare: e.backedUp, begin: e.onAll(e.restore)},
	}
}

// noticed is how long members must be silent before the ensemble elects another leader:
// with ZooKeeper's defaults after 10 s (tickTime × syncLimit).
const noticed = 15 * time.Second

// isolate cuts a member off from the others, while the servers reach all.
func isolate(how testenv.Cut) func(*testenv.ZooKeeper) {
	return func(z *testenv.ZooKeeper) { z.Isolate(how) }
}

// scattered isolates each member, so that none has a majority.
func (e *zookeeperEngine) scattered(*Stand, *rand.Rand, []*node) course {
	all := func(how testenv.Cut) {
		for _, z := range e.ensemble {
			z.Isolate(how)
		}
	}
	all(testenv.CutRefuse)
	return course{end: func() {
		all(testenv.CutNone)
		e.whole()
	}}
}

// whole waits until all members are in the ensemble, and returns how long that takes. Only ZooKeeper
// determines this time. The service must be back soon after it, and the next fault must find a sound ensemble.
func (e *zookeeperEngine) whole() {
	began := time.Now()
	testenv.Eventually(e.t, 2*time.Minute, func() error {
		for _, z := range e.ensemble {
			if _, err := z.Mode(); err != nil {
				return err
			}
		}
		return nil
	})
	fmt.Printf("       the ensemble is whole %s after its fault\n", tenths(time.Since(began)))
}

// onOne applies do to the leader or to a follower, and end when the fault ends.
func (e *zookeeperEngine) onOne(leader bool, do, end func(*testenv.ZooKeeper)) func(*Stand, *rand.Rand, []*node) course {
	return func(_ *Stand, random *rand.Rand, _ []*node) course {
		z, followers := testenv.ZooKeeperLeader(e.t, e.ensemble)
		if !leader {
			z = followers[random.IntN(len(followers))]
		}
		do(z)
		return course{end: func() {
			end(z)
			e.whole()
		}}
	}
}

// onAll kills the ensemble, and starts it again when the fault ends.
func (e *zookeeperEngine) onAll(before func()) func(*Stand, *rand.Rand, []*node) course {
	return func(*Stand, *rand.Rand, []*node) course {
		wait(lag)
		e.killAll()
		return course{end: func() {
			before()
			testenv.RestartZooKeeper(e.t, e.ensemble)
		}}
	}
}

func (e *zookeeperEngine) killAll() {
	for _, z := range e.ensemble {
		z.Kill()
	}
}

// backedUp copies the data as they are on disk while no server runs.
func (e *zookeeperEngine) backedUp(*Stand, []*node) {
	e.killAll()
	e.restores = nil
	for _, z := range e.ensemble {
		e.restores = append(e.restores, z.Backup())
	}
	testenv.RestartZooKeeper(e.t, e.ensemble)
}

func (e *zookeeperEngine) restore() {
	for _, restore := range e.restores {
		restore()
	}
}

func (e *zookeeperEngine) each(server int, do func(*testenv.Proxy)) {
	for i, lines := range e.lines {
		for _, line := range lines {
			if server < 0 || i == server {
				do(line)
			}
		}
	}
}

func blackhole(line *testenv.Proxy) { line.Cut(testenv.CutBlackhole) }

// heal ends all faults of the proxies.
func (e *zookeeperEngine) heal() {
	e.each(-1, func(line *testenv.Proxy) {
		line.DropReplies(false)
		line.Cut(testenv.CutNone)
		line.Reset() // the stream would lack the bytes that a cut swallowed
	})
}

func (e *zookeeperEngine) cutOff(*Stand, *rand.Rand, []*node) course {
	e.each(-1, blackhole)
	return course{end: e.heal}
}

func (e *zookeeperEngine) cutOneOff(s *Stand, random *rand.Rand, _ []*node) course {
	server := random.IntN(len(e.lines))
	e.each(server, blackhole)
	return s.without(server, e.heal)
}

func (e *zookeeperEngine) flaky(_ *Stand, random *rand.Rand, _ []*node) course {
	return course{
		tick: func() {
			e.each(-1, func(line *testenv.Proxy) {
				line.DropReplies(random.IntN(3) == 0)
				line.Reset()
			})
		},
		end: e.heal,
	}
}

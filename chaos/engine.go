package chaos

import (
	"slices"
	"testing"
)

// Engine is what a stand's servers keep their locks in, instead of Redis nodes:
// FENCELOCK_STORE. To add one, write this and a line of [engines].
type Engine interface {
	// Store is a server's FENCELOCK_STORE. It leads through a line of that server's own.
	Store(server int) string
	// Faults are what can be done to the engine and to the lines. They take no nodes.
	Faults() []Fault
}

// engines start an engine for a number of servers; it ends with the test.
var engines = map[string]func(tb testing.TB, servers int) Engine{ //nolint:gochecknoglobals // never changed
	"etcd":      startEtcdEngine,
	"postgres":  startPostgresEngine,
	"zookeeper": startZooKeeperEngine,
}

// EngineFaults are all that can go wrong for servers on an engine.
func EngineFaults(e Engine) []Fault {
	others := slices.Concat(freezeFaults(), postgresFaults(), serverFaults())
	others = slices.DeleteFunc(others, func(f Fault) bool { return f.Nodes > 0 })
	return slices.Concat(Faults()[:1], ofEngine(e), others)
}

func ofEngine(e Engine) []Fault {
	all := e.Faults()
	for i := range all {
		all[i].part = partEngine
	}
	return all
}

// without is a course in which a server cannot serve until heal.
func (s *Stand) without(server int, heal func()) course {
	back := s.servers[server].gone()
	return course{end: func() {
		heal()
		back()
	}}
}

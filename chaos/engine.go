package chaos

import (
	"slices"
	"testing"
)

// Engine is the store in which a stand's servers keep their locks instead of on Redis nodes (FENCELOCK_STORE).
// To add one, implement this and add a line to [engines].
type Engine interface {
	// Store is a server's FENCELOCK_STORE. It connects through a proxy of that server's own.
	Store(server int) string
	// Faults are the faults of the engine and of the proxies. They involve no nodes.
	Faults() []Fault
}

// engines start an engine for a number of servers; it ends with the test.
var engines = map[string]func(tb testing.TB, servers int) Engine{ //nolint:gochecknoglobals // never changed
	"etcd":      startEtcdEngine,
	"postgres":  startPostgresEngine,
	"zookeeper": startZooKeeperEngine,
}

// EngineFaults returns all faults of servers on an engine.
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

// without returns the course of a fault during which this server cannot serve. heal ends the fault.
func (s *Stand) without(server int, heal func()) course {
	back := s.servers[server].gone()
	return course{end: func() {
		heal()
		back()
	}}
}

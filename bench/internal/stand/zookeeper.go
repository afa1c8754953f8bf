package stand

import (
	"time"

	"github.com/fencelock/fencelock/bench/internal/cpu"
	"github.com/fencelock/fencelock/internal/testenv"
)

// ZooKeeper is a standalone server that syncs to disk.
type ZooKeeper struct {
	Addr string
	pid  int
}

// StartZooKeeper starts a server.
func StartZooKeeper(s *Scope) (*ZooKeeper, error) {
	z := &ZooKeeper{}
	return z, Guard(func() error {
		server := testenv.StartZooKeeper(s, 1)[0]
		z.Addr, z.pid = server.Addr(), server.PID()
		return nil
	})
}

// CPU is the server's processor time.
func (z *ZooKeeper) CPU() time.Duration { return cpu.Process(z.pid) }

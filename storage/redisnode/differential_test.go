package redisnode_test

import (
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/storage/redisnode"
)

func TestDifferential(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t, unsynced()...)
	nodetest.Differential(t, func() (nodetest.Harness, func()) {
		server.FlushAll()
		node, err := redisnode.Open(server.Addr(), redisnode.Options{Timeout: patient})
		if err != nil {
			t.Fatal(err)
		}
		h := nodetest.Harness{Node: node, Restart: server.Restart, Wipe: server.FlushAll}
		return h, func() { _ = node.Close() }
	})
}

package etcdstore

import (
	"testing"

	"github.com/fencelock/fencelock/internal/crowdtest"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
)

func BenchmarkPair(b *testing.B) {
	etcd := testenv.StartEtcd(b, 1, testenv.EtcdOptions{})
	store := openStore(b, etcd.URL("bench"))
	node := nodetest.Over(b, store, replica.Options{Bootstrap: true})
	servicetest.BenchmarkPairs(b, crowdtest.Start(b, node).Locker, nil)
}

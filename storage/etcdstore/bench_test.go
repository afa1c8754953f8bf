package etcdstore

import (
	"testing"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
)

func BenchmarkPair(b *testing.B) {
	etcd := testenv.StartEtcd(b, 1, testenv.EtcdOptions{})
	store := openStore(b, etcd.URL("bench"))
	locker := startLocker(b, store, replica.Rules{})
	servicetest.BenchmarkPairs(b, locker, nil)
}

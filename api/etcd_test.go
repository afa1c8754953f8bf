package api_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/etcdstore"
)

// TestServiceOnEtcd is the suite over two servers that share an etcd of three members.
func TestServiceOnEtcd(t *testing.T) {
	testenv.Long(t, "a service that does otherwise on an etcd whose store passes storetest")
	etcd := testenv.StartEtcd(t, 3, testenv.EtcdOptions{})
	overTwoServers(t, func(t *testing.T) func() *replica.Node {
		t.Helper()
		url := etcd.URL("suite/" + t.Name())
		return func() *replica.Node {
			store, err := etcdstore.Open(t.Context(), url, etcdstore.Options{Timeout: 20 * time.Second, Patience: time.Minute})
			return nodeOver(t, store, err, true)
		}
	})
}

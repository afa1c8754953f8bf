package api_test

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/storage/zkstore"
)

// TestSoakServiceOnZooKeeper is the suite over two servers that share a path. Calls take
// turns, so that every lease is used through both.
func TestSoakServiceOnZooKeeper(t *testing.T) {
	testenv.Soak(t, "a service on ZooKeeper that breaks a rule which its store keeps")
	addr := testenv.SharedZooKeeper(t)
	overTwoServers(t, func(t *testing.T) func() *replica.Node {
		t.Helper()
		url := zkstore.Scheme + addr + "/suite/" + rand.Text()
		return func() *replica.Node {
			store, err := zkstore.Open(t.Context(), url, zkstore.Options{Timeout: 20 * time.Second, Patience: time.Minute})
			return nodeOver(t, store, err, err == nil && store.Young())
		}
	})
}

package api_test

import (
	"crypto/rand"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/storage/zkstore"
)

// TestSoakServiceOnZooKeeper is the suite over two servers that share a path. Calls take
// turns, so that every lease is used through both.
func TestSoakServiceOnZooKeeper(t *testing.T) {
	testenv.Soak(t, "a service on ZooKeeper that breaks a rule which its store keeps")
	addr := testenv.SharedZooKeeper(t)
	var lines []string
	for _, caller := range servicetest.Callers {
		lines = append(lines, line(caller, "admin=*"))
	}
	servicetest.Run(t, func(t *testing.T) lockcore.Service {
		t.Helper()
		url := zkstore.Scheme + addr + "/suite/" + rand.Text()
		var both [2]remote
		for i := range both {
			both[i].s = serveNode(t, openZooKeeper(t, url), withAccess(t, lines...))
			both[i].Service = both[i].s.handler.Service
		}
		return &turns{Service: both[0].Service, both: both}
	})
}

func openZooKeeper(t *testing.T, url string) *replica.Node {
	t.Helper()
	store, err := zkstore.Open(t.Context(), url, zkstore.Options{Timeout: 20 * time.Second, Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	n, err := replica.New(t.Context(), "zookeeper", store, replica.Options{Bootstrap: store.Young()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

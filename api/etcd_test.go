package api_test

import (
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/replica"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/storage/etcdstore"
)

// TestServiceOnEtcd is the suite over two servers that share an etcd of three members.
func TestServiceOnEtcd(t *testing.T) {
	etcd := testenv.StartEtcd(t, 3, testenv.EtcdOptions{})
	var lines []string
	for _, caller := range servicetest.Callers {
		lines = append(lines, line(caller, "admin=*"))
	}
	servicetest.Run(t, func(t *testing.T) lockcore.Service {
		t.Helper()
		url := etcd.URL("suite/" + t.Name())
		var both [2]remote
		for i := range both {
			both[i].s = serveNode(t, openEtcd(t, url), withAccess(t, lines...))
			both[i].Service = both[i].s.handler.Service
		}
		return &turns{Service: both[0].Service, both: both}
	})
}

func openEtcd(t *testing.T, url string) *replica.Node {
	t.Helper()
	store, err := etcdstore.Open(t.Context(), url, etcdstore.Options{Timeout: 20 * time.Second, Patience: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	n, err := replica.New(t.Context(), "etcd", store, replica.Options{Bootstrap: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.Close() })
	return n
}

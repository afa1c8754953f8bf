package etcdstore

import (
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/crowdtest"
	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/nodetest"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// usage is the space that the prefix takes in etcd.
type usage struct {
	keys, leases int64
	size, inUse  int64 // of the database, in bytes
	revision     int64
}

func usageOf(t *testing.T, s *Store) (u usage, err error) {
	t.Helper()
	keys, err := s.conn.get(t.Context(), s.target.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return u, err
	}
	status, err := s.conn.status(t.Context(), keys.Header.MemberId)
	if err != nil {
		return u, err
	}
	leases, err := s.conn.client.Leases(t.Context())
	if err != nil {
		return u, err
	}
	return usage{keys.Count, int64(len(leases.Leases)), status.DbSize, status.DbSizeInUse, keys.Header.Revision}, nil
}

// TestSoakManyLeases measures the space of 100,000 leases and 10,000 waiters on 100 resources. Little of it stays
// when they have ended and etcd has compacted its history.
func TestSoakManyLeases(t *testing.T) {
	testenv.Soak(t, "what 100,000 leases cost in etcd, and leave behind")
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	store := openStore(t, etcd.URL("crowd"))
	node := nodetest.Over(t, store, replica.Options{Rules: replica.Rules{CounterTTL: 10 * time.Second}, Bootstrap: true})
	report := crowdtest.Report{T: t, Engine: "etcd", Usage: func() (string, int64) {
		last, err := usageOf(t, store)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%d keys and %d leases in etcd, whose database has %.1f MB, %.1f MB of it in use",
			last.keys, last.leases, float64(last.size)/1e6, float64(last.inUse)/1e6), last.inUse
	}}
	empty, err := usageOf(t, store)
	if err != nil {
		t.Fatal(err)
	}
	crowdtest.Run(t, crowdtest.Start(t, node), report, func() {
		fresh := time.Now()
		if err := openStore(t, etcd.URL("crowd")).Close(); err != nil {
			t.Error(err)
		}
		t.Logf("another server has read all after %s", time.Since(fresh).Round(time.Millisecond))
	})
	testenv.Eventually(t, 2*time.Minute, func() error {
		u, err := usageOf(t, store)
		if err != nil || u.keys > 300 {
			return errors.Join(fmt.Errorf("%d keys stay", u.keys), err)
		}
		etcd.Ctl("compact", strconv.FormatInt(u.revision, 10), "--physical", "--command-timeout=60s")
		if u, err = usageOf(t, store); err != nil || u.inUse > empty.inUse+4<<20 {
			return errors.Join(fmt.Errorf("%d bytes of etcd's database stay in use", u.inUse), err)
		}
		return nil
	})
	report.Log("ended, and compacted")
}

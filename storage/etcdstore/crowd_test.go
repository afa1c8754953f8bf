package etcdstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// startLocker runs a Locker on the store.
func startLocker(tb testing.TB, store *Store, rules replica.Rules) *redlock.Locker {
	tb.Helper()
	n := openNode(tb, store, replica.Options{Rules: rules, Bootstrap: true})
	locker, err := redlock.New(redlock.Config{NodeTimeout: 20 * time.Second, MaxTTL: time.Hour, DefaultTTL: time.Hour, MaxWaiters: 20_000}, []node.Node{n})
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = locker.Run(ctx) }()
	tb.Cleanup(func() { cancel(); <-stopped })
	testenv.Eventually(tb, 20*time.Second, func() error {
		lease, err := locker.Acquire(ctx, lockcore.AcquireRequest{Resource: "x"})
		if err == nil {
			err = locker.Release(ctx, lease.ID)
		}
		return err
	})
	return locker
}

// each runs do for every number, 256 at a time.
func each(tb testing.TB, n int, do func(i int) error) {
	tb.Helper()
	var all sync.WaitGroup
	var next atomic.Int64
	for range 256 {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					tb.Errorf("%d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
}

// enqueued waits until so many wait for a resource.
func enqueued(t *testing.T, locker *redlock.Locker, resource string, want int) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		state, err := locker.Inspect(t.Context(), resource)
		if err != nil || state.Waiting < want {
			return errors.Join(fmt.Errorf("%d wait, want %d", state.Waiting, want), err)
		}
		return nil
	})
}

// usage is what the prefix takes of etcd.
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

// What 100,000 leases and 10,000 waiters on 100 resources take, and that little of it
// stays when they have ended, and etcd has compacted its history.
func TestSoakManyLeases(t *testing.T) {
	const leases, waiters, hot = 100_000, 10_000, 100
	etcd := testenv.StartEtcd(t, 1, testenv.EtcdOptions{})
	store := openStore(t, etcd.URL("crowd"))
	locker := startLocker(t, store, replica.Rules{CounterTTL: 10 * time.Second})
	report := func(when string) usage {
		t.Helper()
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		u, err := usageOf(t, store)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d keys and %d leases in etcd, whose database has %.1f MB, %.1f MB of it in use; %.0f MB in this process", when,
			u.keys, u.leases, float64(u.size)/1e6, float64(u.inUse)/1e6, float64(m.HeapAlloc)/1e6)
		return u
	}
	empty := report("empty")
	ids := make([]string, leases)
	began := time.Now()
	each(t, leases, func(i int) error {
		lease, err := locker.Acquire(t.Context(), lockcore.AcquireRequest{Resource: "held/" + strconv.Itoa(i), Metadata: json.RawMessage(`{"job":"nightly"}`)})
		ids[i] = lease.ID
		return err
	})
	t.Logf("%d leases after %s", leases, time.Since(began).Round(time.Millisecond))
	report("held")

	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range waiters {
		if i%1000 == 0 { // a node takes 8192 operations at once
			enqueued(t, locker, "held/"+strconv.Itoa(hot-1), i/hot)
		}
		all.Go(func() {
			_, err := locker.Acquire(ctx, lockcore.AcquireRequest{Resource: "held/" + strconv.Itoa(i%hot), Wait: 5 * time.Minute})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a waiter ended: %v", err)
			}
		})
	}
	enqueued(t, locker, "held/"+strconv.Itoa(hot-1), waiters/hot)
	report("waiting")
	fresh := time.Now()
	if err := openStore(t, etcd.URL("crowd")).Close(); err != nil {
		t.Error(err)
	}
	t.Logf("another server has read all after %s", time.Since(fresh).Round(time.Millisecond))
	cancel()
	all.Wait()
	began = time.Now()
	each(t, leases, func(i int) error {
		for again := false; ; again = true {
			err := locker.Release(t.Context(), ids[i])
			switch {
			case again && errors.Is(err, lockcore.ErrNotHeld): // the first try got there meanwhile
				return nil
			case !errors.Is(err, lockcore.ErrNoQuorum) || !pause(t.Context()):
				return err
			} // else the node's queue is full of those who have left
		}
	})
	t.Logf("released after %s", time.Since(began).Round(time.Millisecond))
	testenv.Eventually(t, 2*time.Minute, func() error {
		if u, err := usageOf(t, store); err != nil || u.keys > 100 {
			return errors.Join(fmt.Errorf("%d keys stay", u.keys), err)
		}
		return nil
	})
	ended := report("ended")
	etcd.Ctl("compact", strconv.FormatInt(ended.revision, 10), "--physical", "--command-timeout=60s")
	if after := report("compacted"); after.inUse > empty.inUse+4<<20 {
		t.Errorf("%d bytes of etcd's database stay in use", after.inUse)
	}
}

package pgstore

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

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/redlock"
	"github.com/fencelock/fencelock/lockcore/replica"
)

// startLocker runs a Locker on the store.
func startLocker(tb testing.TB, store *Store, rules replica.Rules) *redlock.Locker {
	tb.Helper()
	n := openNode(tb, store, store.pool.Config().ConnString(), replica.Options{Rules: rules, Bootstrap: true})
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

// enqueued waits until most of so many wait for a resource, as the database knows: a
// ticket that is not answered in time on a busy machine is sent again only at its turn.
func enqueued(t *testing.T, locker *redlock.Locker, resource string, want int) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		state, err := locker.Inspect(t.Context(), resource)
		if err != nil || state.Waiting < want*8/10 {
			return errors.Join(fmt.Errorf("%d wait, want %d", state.Waiting, want), err)
		}
		return nil
	})
}

// What 100,000 leases and 10,000 waiters on 100 resources take, and that little of it
// stays when they have ended.
func TestSoakManyLeases(t *testing.T) {
	const leases, waiters, hot = 100_000, 10_000, 100
	url := testenv.StartPostgres(t).OwnerURL()
	store := openStore(t, url, Options{Timeout: 20 * time.Second})
	locker := startLocker(t, store, replica.Rules{CounterTTL: 10 * time.Second})
	report := func(when string) (rows int, disk int64) {
		t.Helper()
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		rows = query[int](t, url, `SELECT count(*) FROM fencelock.rows`)
		disk = query[int64](t, url, `SELECT pg_total_relation_size('fencelock.rows')`)
		t.Logf("%s: %d rows of %.1f MB in Postgres; %.0f MB in this process", when, rows, float64(disk)/1e6, float64(m.HeapAlloc)/1e6)
		return rows, disk
	}
	report("empty")
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
	_, most := report("waiting")
	cancel()
	all.Wait()
	began = time.Now()
	each(t, leases, func(i int) error {
		for again := false; ; again = true {
			err := locker.Release(t.Context(), ids[i])
			switch {
			case again && errors.Is(err, lockcore.ErrNotHeld): // the first try got there meanwhile
				return nil
			case !errors.Is(err, lockcore.ErrNoQuorum):
				return err
			} // else the node's queue is full of those who have left
			select {
			case <-t.Context().Done():
				return t.Context().Err()
			case <-time.After(retryPause):
			}
		}
	})
	t.Logf("released after %s", time.Since(began).Round(time.Millisecond))
	testenv.Eventually(t, 2*time.Minute, func() error {
		if rows := query[int](t, url, `SELECT count(*) FROM fencelock.rows`); rows > 100 {
			return fmt.Errorf("%d rows stay", rows)
		}
		return nil
	})
	report("ended")
	execSQL(t, url, `VACUUM fencelock.rows`) // as autovacuum does
	if _, left := report("vacuumed"); left > most/2 {
		t.Errorf("%d bytes stay of %d", left, most)
	}
}

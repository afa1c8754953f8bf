// Package crowdtest puts 100,000 leases and 10,000 waiters on one store.
package crowdtest

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
	"github.com/fencelock/fencelock/lockcore/sets"
)

const (
	leases  = 100_000
	waiters = 10_000
	waited  = 100 // resources that the waiters wait for
	steps   = 10  // in which they come, since a node takes 8192 operations at once
	atOnce  = 256 // callers
	pause   = 20 * time.Millisecond
)

// Start runs a Locker on a node, and returns once it grants.
func Start(tb testing.TB, n node.Node) *sets.Locker {
	tb.Helper()
	locker, err := sets.New(sets.Config{NodeTimeout: 20 * time.Second, MaxTTL: time.Hour, DefaultTTL: time.Hour, MaxWaiters: 2 * waiters}, []node.Node{n})
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

// Report logs what the store takes.
type Report func(when string)

// NewReport makes a Report from the words for what the store takes now.
func NewReport(t *testing.T, usage func() string) Report {
	t.Helper()
	return func(when string) {
		t.Helper()
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		t.Logf("%s: %s; %.0f MB in this process", when, usage(), float64(m.HeapAlloc)/1e6)
	}
}

// Run makes the leases, has the waiters wait, and ends both. It reports when the store is
// empty, and when all leases are held; and it calls waiting while the waiters wait.
func Run(t *testing.T, locker *sets.Locker, report Report, waiting func()) {
	t.Helper()
	report("empty")
	ids := acquireAll(t, locker)
	report("held")
	leave := wait(t, locker)
	report("waiting")
	waiting()
	leave()
	releaseAll(t, locker, ids)
}

func acquireAll(t *testing.T, locker *sets.Locker) []string {
	t.Helper()
	ids := make([]string, leases)
	began := time.Now()
	each(t, func(i int) error {
		lease, err := locker.Acquire(t.Context(), lockcore.AcquireRequest{Resource: resource(i), Metadata: json.RawMessage(`{"job":"nightly"}`)})
		ids[i] = lease.ID
		return err
	})
	t.Logf("%d leases after %s", leases, time.Since(began).Round(time.Millisecond))
	return ids
}

func resource(i int) string { return "held/" + strconv.Itoa(i) }

// each runs do for every lease.
func each(t *testing.T, do func(i int) error) {
	t.Helper()
	var all sync.WaitGroup
	var next atomic.Int64
	for range atOnce {
		all.Go(func() {
			for i := int(next.Add(1)) - 1; i < leases; i = int(next.Add(1)) - 1 {
				if err := do(i); err != nil {
					t.Errorf("%d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
}

// wait has all waiters wait, until leave is called.
func wait(t *testing.T, locker *sets.Locker) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range waiters {
		all.Go(func() {
			_, err := locker.Acquire(ctx, lockcore.AcquireRequest{Resource: resource(i % waited), Wait: 5 * time.Minute})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a waiter ended: %v", err)
			}
		})
		if come := i + 1; come%(waiters/steps) == 0 {
			enqueued(t, locker, come/waited)
		}
	}
	return func() { cancel(); all.Wait() }
}

// enqueued waits until so many wait for the last resource.
func enqueued(t *testing.T, locker *sets.Locker, want int) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		state, err := locker.Inspect(t.Context(), resource(waited-1))
		if err != nil || state.Waiting < want {
			return errors.Join(fmt.Errorf("%d wait, want %d", state.Waiting, want), err)
		}
		return nil
	})
}

func releaseAll(t *testing.T, locker *sets.Locker, ids []string) {
	t.Helper()
	began := time.Now()
	each(t, func(i int) error {
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
			case <-time.After(pause):
			}
		}
	})
	t.Logf("released after %s", time.Since(began).Round(time.Millisecond))
}

// Package crowdtest puts 100,000 leases and 10,000 waiters on one store.
package crowdtest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/lockcore/servicetest"
	"github.com/fencelock/fencelock/lockcore/sets"
)

const (
	leases  = 100_000
	waiters = 10_000
	waited  = 100 // resources for which the waiters wait
	steps   = 10  // the number of groups in which the waiters come, because a node accepts 8192 operations at once
	atOnce  = 256 // callers that work at the same time
	pause   = 20 * time.Millisecond
)

// Locker is a running Locker, and its leases by their ids.
type Locker struct {
	*sets.Locker
	servicetest.ByID
}

// Start runs a Locker on a node, and returns when it can grant leases.
func Start(tb testing.TB, n node.Node) Locker {
	tb.Helper()
	l, err := sets.New(sets.Config{NodeTimeout: 20 * time.Second, MaxTTL: time.Hour, DefaultTTL: time.Hour}, []node.Node{n})
	if err != nil {
		tb.Fatal(err)
	}
	locker := Locker{l, servicetest.ByID{Calls: l}}
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() { defer close(stopped); _ = locker.Run(ctx) }()
	tb.Cleanup(func() { cancel(); <-stopped })
	testenv.Eventually(tb, 20*time.Second, func() error {
		lease, err := locker.Acquire(ctx, lockcore.Request{Resource: "x"})
		if err == nil {
			err = locker.Release(ctx, lease.ID)
		}
		return err
	})
	return locker
}

// Report logs the memory or disk space that an engine uses, and compares it with the figures on the page
// about scale.
type Report struct {
	T      *testing.T
	Engine string                             // the engine's name on the page
	Usage  func() (words string, bytes int64) // the space that the engine uses now
}

// Log logs the space that the engine uses now. It returns that and the memory of this process.
func (r Report) Log(when string) (there, here float64) {
	r.T.Helper()
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	words, bytes := r.Usage()
	r.T.Logf("%s: %s; %.0f MB in this process", when, words, float64(m.HeapAlloc)/1e6)
	return float64(bytes), float64(m.HeapAlloc)
}

// compare compares the bytes of a lease with the figure on the page.
func (r Report) compare(there, here float64) {
	r.T.Helper()
	page, err := os.ReadFile("../../docs/explanation/scale.md")
	if err != nil {
		r.T.Fatal(err)
	}
	row := regexp.MustCompile(`a lease in ` + r.Engine + ` \| (\d+) bytes there, (\d+) bytes in each server`).FindStringSubmatch(string(page))
	if row == nil {
		r.T.Fatalf("the page on scale has no bytes of a lease in %s", r.Engine)
	}
	r.T.Logf("a lease: %.0f bytes in %s, %.0f in this process", there, r.Engine, here)
	for i, measured := range []float64{there, here} {
		const off = 1.5 // the figure may be off by this factor, because logs are cleaned at different times
		if said, _ := strconv.ParseFloat(row[i+1], 64); measured > off*said || measured < said/off {
			r.T.Errorf("a lease takes %.0f bytes; the page says %s", measured, row[i+1])
		}
	}
}

// Run makes the leases, lets the waiters wait, and ends both. It logs the space when the store is empty, when
// all leases are held, and while the waiters wait, when it also calls waiting.
func Run(t *testing.T, locker Locker, report Report, waiting func()) {
	t.Helper()
	emptyThere, emptyHere := report.Log("empty")
	ids := acquireAll(t, locker)
	there, here := report.Log("held")
	report.compare((there-emptyThere)/leases, (here-emptyHere)/leases)
	leave := wait(t, locker)
	report.Log("waiting")
	waiting()
	leave()
	releaseAll(t, locker, ids)
}

func acquireAll(t *testing.T, locker Locker) []string {
	t.Helper()
	ids := make([]string, leases)
	began := time.Now()
	each(t, func(i int) error {
		lease, err := locker.Acquire(t.Context(), lockcore.Request{Resource: resource(i), Metadata: json.RawMessage(`{"job":"nightly"}`)})
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

// wait lets all waiters wait until leave is called.
func wait(t *testing.T, locker Locker) (leave func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range waiters {
		all.Go(func() {
			_, err := locker.Acquire(ctx, lockcore.Request{Resource: resource(i % waited), Wait: 5 * time.Minute})
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

// enqueued waits until want requests wait for the last resource.
func enqueued(t *testing.T, locker Locker, want int) {
	t.Helper()
	testenv.Eventually(t, time.Minute, func() error {
		state, err := locker.Inspect(t.Context(), resource(waited-1))
		if err != nil || state.Waiting < want {
			return errors.Join(fmt.Errorf("%d wait, want %d", state.Waiting, want), err)
		}
		return nil
	})
}

func releaseAll(t *testing.T, locker Locker, ids []string) {
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

package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/fencelock/fencelock/internal/testenv"
	"github.com/fencelock/fencelock/lockcore/node"
	"github.com/fencelock/fencelock/storage/redisnode"
)

// gauges is a Meter that keeps the last values.
type gauges struct {
	batches, operations, failed atomic.Int64
	miscounted                  atomic.Int64
	used                        atomic.Int64
	leaked                      atomic.Int64 // -1 before the first report
	looks                       atomic.Int64
}

func (g *gauges) Batch(operations int, took time.Duration, failed bool) {
	if took > 0 {
		g.batches.Add(1)
	}
	g.operations.Add(int64(operations))
	if failed {
		g.failed.Add(1)
	}
}
func (g *gauges) Memory(used, _ int64) { g.used.Store(used) }
func (g *gauges) Miscounted(int, int)  { g.miscounted.Add(1) }
func (g *gauges) Leaked(locks int) {
	g.leaked.Store(int64(locks))
	g.looks.Add(1)
}

func (g *gauges) of(string) redisnode.Meter { return g }

func TestLocksWithoutAnExpiryAreFound(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	g, log := &gauges{}, &testenv.Buffer{}
	g.leaked.Store(-1)
	watched := openNode(t, server.Addr(), redisnode.Options{Meters: g.of, Logger: slog.New(slog.NewTextHandler(log, nil))})
	epoch := admitted(t, watched)
	for i := range 300 {
		wantOutcome(t, ask(t, watched, acquire(epoch, fmt.Sprintf("r/%d", i))), node.Granted)
	}
	client := server.Client()
	for _, key := range []string{"l:r/7", "l:r/123", "cl:r/9"} { // a counter is no lock
		if changed, err := client.Persist(t.Context(), key).Result(); err != nil || !changed {
			t.Fatalf("PERSIST %s: %t, %v", key, changed, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		watched.WatchLeaks(ctx, redisnode.Leaks{Page: 10, Pause: time.Millisecond, Rest: 10 * time.Millisecond})
	})
	defer watching.Wait()
	defer cancel()
	awaitLeaks := func(want int64) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() error {
			if got := g.leaked.Load(); got != want {
				return fmt.Errorf("%d leaked locks, want %d", got, want)
			}
			return nil
		})
	}
	awaitLeaks(2)
	testenv.Eventually(t, 10*time.Second, func() error {
		if text := log.String(); !strings.Contains(text, "locks=2") || !strings.Contains(text, "r/123") || !strings.Contains(text, "fencelock break --any") {
			return fmt.Errorf("the log says: %s", text)
		}
		return nil
	})
	for _, resource := range []string{"r/7", "r/123"} {
		wantOutcome(t, ask(t, watched, node.Op{Kind: node.OpRelease, Epoch: 10, Resource: resource, Owner: "L1"}), node.Granted)
	}
	awaitLeaks(0)
	if g.batches.Load() == 0 || g.operations.Load() < 302 || g.used.Load() == 0 {
		t.Errorf("%d batches, %d operations, %d bytes", g.batches.Load(), g.operations.Load(), g.used.Load())
	}
	server.Kill()
	testenv.Eventually(t, 10*time.Second, func() error {
		ask(t, watched, node.Op{Kind: node.OpRead, Resource: "r"})
		if g.failed.Load() == 0 {
			return fmt.Errorf("no failed batch")
		}
		return nil
	})
}

// If a hundred servers visited ten million keys every ten minutes, that would take a sixth of each node's time. So a
// server visits the keys only when the number of keys without an expiry has changed.
func TestKeysAreVisitedOnlyIfAnotherNumberHasNoExpiry(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	g := &gauges{}
	watched := openNode(t, "redis://"+server.Addr()+"/3", redisnode.Options{Meters: g.of})
	wantOutcome(t, ask(t, watched, acquire(admitted(t, watched), "r")), node.Granted)
	db := server.Client().Conn()
	defer func() { _ = db.Close() }()
	if err := db.Select(t.Context(), 3).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		watched.WatchLeaks(ctx, redisnode.Leaks{Pause: time.Millisecond, Rest: 10 * time.Millisecond})
	})
	defer watching.Wait()
	defer cancel()
	wantVisits := func(want int64) {
		t.Helper()
		looks := g.looks.Load()
		testenv.Eventually(t, time.Minute, func() error {
			if g.looks.Load() < looks+3 { // the first may have begun earlier
				return errors.New("nothing looks at the node")
			}
			return nil
		})
		if visits := calls(t, server, "scan"); visits != want {
			t.Errorf("%d visits, want %d", visits, want)
		}
	}
	wantVisits(0)
	if changed, err := db.Persist(t.Context(), "l:r").Result(); err != nil || !changed {
		t.Fatalf("PERSIST: %t, %v", changed, err)
	}
	wantVisits(1)
	if changed, err := db.PExpire(t.Context(), "l:r", time.Minute).Result(); err != nil || !changed {
		t.Fatalf("PEXPIRE: %t, %v", changed, err)
	}
	wantVisits(2)
}

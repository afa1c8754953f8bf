package boltnode

import (
	"context"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/fencelock/fencelock/lockcore/nodetest"
)

func TestConformance(t *testing.T) {
	for name, blank := range map[string]bool{"blank": true, "founded": false} {
		t.Run(name, func(t *testing.T) {
			nodetest.Run(t, func(t *testing.T) nodetest.Harness {
				t.Helper()
				return harness(t, blank)
			})
		})
	}
}

const testCounterTTL = time.Hour

func harness(t *testing.T, blank bool) nodetest.Harness {
	t.Helper()
	clock := &testClock{wall: time.UnixMilli(1_800_000_000_000)}
	n := open(t, filepath.Join(t.TempDir(), "node.db"), Options{
		CounterTTL: testCounterTTL, clock: clock.clock(), blank: blank,
		sweep: sweeping{page: 3, pause: time.Millisecond, rest: time.Millisecond},
	})
	h := nodetest.Harness{
		Node: n, Advance: clock.advance, CounterTTL: testCounterTTL,
		Restart: n.reincarnate(t),
	}
	if blank {
		h.Wipe = n.wipe(t)
	}
	return h
}

// open makes a node in a file of its own. Without a sync, since these tests do
// not pull the plug.
func open(tb testing.TB, path string, opts Options) *Node {
	tb.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, NoSync: true})
	if err != nil {
		tb.Fatal(err)
	}
	n, err := New(db, opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { n.shut(tb) })
	return n
}

// shut closes node and file; twice does no harm.
func (n *Node) shut(tb testing.TB) {
	tb.Helper()
	if err := n.Close(); err != nil {
		tb.Error(err)
	}
	if err := n.db.Close(); err != nil {
		tb.Error(err)
	}
}

// reincarnate makes the file another one, which a restart does not.
func (n *Node) reincarnate(tb testing.TB) func() {
	tb.Helper()
	return n.doing(tb, func(tx *txn) { tx.st.Incarnation += "'" })
}

// wipe makes the file an empty one, with its incarnation.
func (n *Node) wipe(tb testing.TB) func() {
	tb.Helper()
	return n.doing(tb, func(tx *txn) {
		for _, bucket := range []string{locksBucket, countersBucket, keysBucket, linesBucket, sessionsBucket} {
			tx.failed(purge(tx.tx, bucket))
		}
		tx.openBuckets()
		tx.st = state{Format: format, Epoch: tx.st.Epoch, Incarnation: tx.st.Incarnation}
	})
}

func (n *Node) doing(tb testing.TB, f func(*txn)) func() {
	tb.Helper()
	return func() {
		tb.Helper()
		err := n.change(context.Background(), func(tx *txn) error {
			f(tx)
			return nil
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// testClock is two clocks that go on by hand.
type testClock struct {
	mono atomic.Int64
	wall time.Time
	off  atomic.Int64 // the wall clock was set by
}

func (c *testClock) advance(d time.Duration) { c.mono.Add(int64(d)) }

func (c *testClock) clock() clock {
	return clock{
		mono: func() time.Duration { return time.Duration(c.mono.Load()) },
		wall: func() time.Time { return c.wall.Add(time.Duration(c.mono.Load() + c.off.Load())) },
	}
}
